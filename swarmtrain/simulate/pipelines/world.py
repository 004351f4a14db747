"""A simulated pipeline: peers, links and coordinator under a virtual clock, drawn from one seed."""

import hashlib
import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from swarmtrain.simulate.pipelines.checks import (
    BrokenInvariant,
    Key,
    Ledger,
    Size,
    check_evaluation,
    check_invitations,
    check_loss,
    check_memory,
    check_step,
    key_of,
)
from swarmtrain.simulate.pipelines.conditions import Conditions, Fault, drawn
from swarmtrain.simulate.pipelines.hostile import Hostile
from swarmtrain.simulate.pipelines.process import JUDGED, TOKENS, Passed, SimProcess
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.assignment import Server, StageNeed, Transfer
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.coordinator.moves import Moves
from swarmtrain_transport.pipeline.coordinator.rounds import Action, Booked, Late, Rounds
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import control, orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage
from swarmtrain_transport.pipeline.wire.orders import Member, Tell
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Span

Trace = Callable[[float, str, str], None]
"""Takes a line per event: the time, who, what."""

_GONE_S = 30.0
"""Silence after which the coordinator gives a peer up."""

_AWAY_S = 4.0
"""Time after which it goes on without a peer whose connection is broken."""

_CALM_S = 80.0
"""After the last fault, until all that it has caused is over."""

_EXCHANGE_S = (2.0, 12.0)
"""Duration of the ops of a round's stages; lost states are tried in worlds of groups."""

_KNOWN = 3
"""Stages of which a source knows who has served: its own, the next one and the end."""

_END_S = 5000.0
"""Rounds with a source that never ends them take 800 s each."""


class World:
    """One pipeline with its faults.

    Args:
        seed: all is drawn from it.
        trace: takes a line per event.
        conditions: conditions in the place of those that are drawn.

    Attributes:
        counts: messages and events by kind.
        digest: digest of all that was sent, for a seed always the same.
    """

    def __init__(
        self, seed: int, trace: Trace | None = None, conditions: Conditions | None = None
    ) -> None:
        self.rng = random.Random(f"pipeline {seed}")
        self.conditions = conditions or drawn(seed, self.rng)
        self.trace = trace
        self.now_s = 0.0
        self.counts: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._lanes: dict[tuple[str, int], float] = {}
        self._cuts: list[Fault] = []
        self._mute_s: dict[int, float] = {}
        self._ever: dict[Key, set[Process]] = {}
        self._left_s = 0.0
        self._began_s: dict[int, float] = {}
        self._calm_rounds = 0
        self._due_s = math.inf
        self._spans: dict[int, dict[Process, Span]] = {}
        self._arriving: PeerId | None = None
        self._sizes: defaultdict[int, Size] = defaultdict(Size)
        self._paced: set[Process] = set()
        self._flushed: set[tuple[int, int, int]] = set()
        conditions = self.conditions
        self.rules = Rules(
            conditions.num_stages, conditions.slots, conditions.steps > 0, tokens=TOKENS,
            step_micro_batches=self.rng.randint(1, 4),
            max_stale_steps=self.rng.choice((2, 1 << 30)),
            under_way=int(seed % 4 == 1), judged=JUDGED, repeat_every=conditions.repeat_every,
            most_slots=conditions.slots * (1 + seed % 3), most_under_way=1 + seed % 5,
            visit=conditions.visit,
        )  # fmt: skip
        self.ledger = Ledger(self.rules.paths, self._hostile)
        self._lane_s = self.rng.choice((0.3, 6.0))
        self.coordinator = Rounds(
            conditions.num_stages,
            conditions.share,
            conditions.steps,
            clips=seed % 2 == 0,
            visit=conditions.visit,
        )
        needs = (StageNeed(1.0, 0, 0, 0, 0),) * conditions.num_stages
        self.moves = Moves(needs)
        if not conditions.moves_by_need:
            self.moves = Moves(needs, 1, self._any_move)
        self._is_moving = False
        self.spans = list(conditions.spans)
        self._boots = [0] * len(conditions.spans)
        self._lives_of_all: list[SimProcess] = []
        self.processes: list[SimProcess] = []
        self.processes = [self._process(index) for index in range(len(conditions.spans))]
        self._ids = {process.me.peer: index for index, process in enumerate(self.processes)}
        self._roster = set(self._ids)

    @property
    def _hostile(self) -> PeerId | None:
        index = self.conditions.hostile
        return None if index < 0 else _peer(index)

    # ---- ground of the processes

    @property
    def is_harsh(self) -> bool:
        """Faults may strike now."""
        return self.now_s < self.conditions.calm_s

    def later(self, process: SimProcess, delay_s: float, act: Callable[[], None]) -> None:
        """Act in so many seconds, if that life of the process still goes on."""

        def fire() -> None:
            if self._lives(process):
                if process.thaws_s > self.now_s:
                    self._at(process.thaws_s + self.rng.random(), fire)
                else:
                    act()

        self._at(self.now_s + delay_s, fire)

    def send(self, process: SimProcess, to: PeerId, message: AnyHopMessage) -> None:
        """Send over links that lose, double and delay."""
        kind = type(message).__name__.upper()
        self.counts[kind] += 1
        self.digest.update(repr((process.me, to, message)).encode())
        sender, receiver = self._ids[process.me.peer], self._ids[to]
        is_cut = any(
            (cut.peer, cut.other) == (sender, receiver)
            and cut.at_s <= self.now_s < cut.at_s + cut.for_s
            for cut in self._cuts
        )
        weather, is_harsh = self.conditions, self.is_harsh
        if is_harsh and (self.rng.random() < weather.loss or is_cut):
            return
        for _ in range(1 + (is_harsh and self.rng.random() < weather.double)):
            slow = is_harsh and self.rng.random() < weather.late
            delay_s = self.rng.uniform(0.1, 1) * (self.rng.uniform(5, 30) if slow else 1)
            self._at(self.now_s + delay_s, self._delivery(process.me, receiver, message))

    def report(self, process: SimProcess, report: orders.Report) -> None:
        """Send to the coordinator, in order."""
        if isinstance(report, orders.Settled):
            span = self._spans[report.round].get(process.me)
            strange = [stage for _, stage in process.work.stepped if span and stage not in span]
            if strange:
                self.broken("P6", f"{process.me} counts in stage {strange[0]}, it serves {span}")
            if report.counted and process.me.peer == self._arriving:
                self._arriving = None
            self.ledger.settled(process, report)
        me, message = process.me, control.pack_report(report)
        if self.is_harsh and self._mute_s.get(self._ids[me.peer], math.inf) <= self.now_s:
            self.counts["unsaid"] += 1
            return
        self._at(self._lane("up", me), lambda: self._reported(me, control.report_of(message)))

    def expelled(self, process: SimProcess) -> None:
        """The process was given up: it begins anew."""
        self._restart(self._ids[process.me.peer], 0.0)

    def evaluated(self, process: SimProcess, evaluated: requests.Evaluated) -> None:
        """An evaluation is over."""
        self.counts["evaluated" if evaluated.loss is not None else "not evaluated"] += 1
        if self._hostile is None:
            check_loss(process, evaluated.loss)

    def counted(self, process: SimProcess, passed: list[Passed]) -> None:
        """An accumulator will hold these, too."""
        for one in passed:
            self._ever.setdefault(key_of(one), set()).add(process.me)

    def check(self, process: SimProcess) -> None:
        """Check a process after an event."""
        if process.me.peer == self._hostile:
            return
        check_memory(process)
        check_evaluation(process, self.now_s)
        if self.coordinator.leaving is not None:
            self._left_s = self.now_s
        # Slots of a peer that leaves the rounds, and those kept for it, are free when all know it.
        since_s = max(self.conditions.calm_s + _CALM_S, self._left_s + _GONE_S)
        member = self.coordinator.members.get(process.me.peer)
        is_here = member is not None and member.boot == process.me.boot
        if self._hostile is None and is_here and self.now_s > since_s:
            check_invitations(process, self.now_s)

    def is_spoiled(self, micro_batch: MicroBatch) -> bool:
        """Return True if a hostile member has given a wrong gradient for it."""
        return any(
            micro_batch in each.lied for each in self._lives_of_all if isinstance(each, Hostile)
        )

    def broken(self, invariant: str, story: str) -> None:
        """Tell that an invariant does not hold."""
        raise BrokenInvariant(invariant, story)

    # ---- life

    def run(self) -> None:
        """Run until the faults are over and two more rounds have gone well.

        Raises:
            BrokenInvariant: something does not hold.
        """
        for fault in self.conditions.faults:
            self._plan(fault)
        for process in self.processes:
            self._begin_life(process)
        self._is_moving = self.rng.random() < 0.5 or self.conditions.moves_by_need
        calm_rounds = self.conditions.calm_rounds
        while self._queue and self._calm_rounds < calm_rounds:
            self.now_s, _, act = heapq.heappop(self._queue)
            if self.now_s > self.conditions.calm_s + _END_S:
                raise BrokenInvariant("P8", f"round {self.coordinator.round} does not end")
            act()
        self.counts["strangers"] = sum(each.machine.strangers for each in self._lives_of_all)
        if self._calm_rounds < calm_rounds:
            raise BrokenInvariant("P8", "nothing happens any more")
        self.ledger.check_share()

    def _process(self, index: int) -> SimProcess:
        conditions = self.conditions
        me = Process(_peer(index), b"%04d" % self._boots[index])
        given = (self, me, self.spans[index], self.rules, conditions.pass_s[index])
        is_hostile = index == conditions.hostile
        process = Hostile(*given, conditions.habits) if is_hostile else SimProcess(*given)
        self._lives_of_all.append(process)
        return process

    def _begin_life(self, process: SimProcess) -> None:
        self.later(process, self.rng.uniform(0, 3), process.tick)
        self._at(self._lane("up", process.me), lambda: self._joined(process))

    def _joined(self, process: SimProcess) -> None:
        if process.span == self.spans[self._ids[process.me.peer]]:
            self._roster.add(process.me.peer)
            member = Member(process.me.boot, process.span)
            self._act(self.coordinator.joined(process.me, member, self.now_s))
        elif self._lives(process):  # the ledger has another span for it meanwhile
            self.expelled(process)

    def _restart(self, index: int, delay_s: float) -> None:
        """A new life, in so many seconds."""
        self.processes[index].is_alive = False

        def begin() -> None:
            if not self.processes[index].is_alive:
                self._boots[index] += 1
                self.processes[index] = self._process(index)
                self._begin_life(self.processes[index])

        self._at(self.now_s + delay_s, begin)

    def _lives(self, process: SimProcess) -> bool:
        return process.is_alive and self.processes[self._ids[process.me.peer]] is process

    def _plan(self, fault: Fault) -> None:
        if fault.kind == "cut":
            self._cuts.append(fault)
        elif fault.kind == "mute":
            self._mute_s[fault.peer] = fault.at_s
        elif fault.kind == "die":
            self._at(fault.at_s, lambda: self._die(fault))
        elif fault.kind == "unplug":
            self._at(fault.at_s, lambda: self._unplug(fault))
        else:
            self._at(fault.at_s, lambda: self._freeze(fault))

    def _die(self, fault: Fault) -> None:
        process = self.processes[fault.peer]
        if not process.is_alive:
            return
        process.is_alive = False
        self.counts["deaths"] += 1
        back_s = fault.for_s if fault.for_s or self._can_do_without(fault.peer) else 9.0
        self._note(f"{fault.peer}", f"dies, back in {back_s:.1f} s")
        self._miss(process)
        if back_s:
            self._restart(fault.peer, back_s)

    def _can_do_without(self, index: int) -> bool:
        """Return True if all stages are served without a peer, and without who is moving."""
        moving = self.moves.under_way
        settled = [
            process.span
            for i, process in enumerate(self.processes)
            if process.is_alive and i not in (index, self.conditions.hostile)
            and (moving is None or process.me.peer != moving.peer)
        ]  # fmt: skip
        return all(any(s in span for span in settled) for s in range(self.conditions.num_stages))

    def _freeze(self, fault: Fault) -> None:
        process = self.processes[fault.peer]
        process.thaws_s = max(process.thaws_s, self.now_s + fault.for_s)
        self.counts["freezes"] += 1
        self._note(f"{fault.peer}", f"freezes for {fault.for_s:.1f} s")
        self._miss(process)

    def _unplug(self, fault: Fault) -> None:
        process = self.processes[fault.peer]
        process.plugged_s = max(process.plugged_s, self.now_s + fault.for_s)
        for way in ("up", "down"):
            key = way, fault.peer
            self._lanes[key] = max(self._lanes.get(key, 0.0), process.plugged_s)
        self.counts["unplugged"] += 1
        self._note(f"{fault.peer}", f"hears no coordinator for {fault.for_s:.1f} s")
        self._miss(process)

    def _miss(self, process: SimProcess) -> None:
        """Go on without the process in a while, and give it up later, if it is not heard of."""

        def is_missed() -> bool:
            silent_s = max(process.thaws_s, process.plugged_s)
            return not process.is_alive or silent_s > self.now_s

        def part() -> None:
            if is_missed():
                was_served = self._is_served()
                self._act(self.coordinator.away(process.me, self.now_s))
                if was_served and not self._is_served():
                    self.broken("P13", f"{process.me} is away, and a stage has nobody else")
                self._take_back(process)

        def give_up() -> None:
            if is_missed():
                if self.processes[self._ids[process.me.peer]] is process:
                    self._gone(process.me.peer)
                self._act(self.coordinator.departed(process.me, self.now_s))

        self._at(self.now_s + _AWAY_S, part)
        self._at(self.now_s + _GONE_S, give_up)

    def _is_served(self) -> bool:
        """Return True if each stage has a member that is not away."""
        spans = [member.span for member in self.coordinator.members.values()]
        stages = range(self.conditions.num_stages)
        return all(any(stage in span for span in spans) for stage in stages)

    def _gone(self, peer: PeerId) -> None:
        """The ledger's GONE: until it comes anew, nobody waits for it."""
        self._roster.discard(peer)
        if peer == self._arriving:
            self._arriving = None

    def _take_back(self, process: SimProcess) -> None:
        """The process is back as soon as it can be heard and is welcome."""
        back_s = max(self.now_s + 1.0, process.thaws_s, process.plugged_s)

        def come() -> None:
            if process.is_alive:
                process.away_s = self.now_s
                self._act(self.coordinator.back(process.me, self.now_s))
                if process.me.peer in self.coordinator.absent:
                    self._take_back(process)

        self._at(back_s, come)

    # ---- coordinator

    def _reported(self, process: Process, report: orders.Report) -> None:
        self._note(f"{process.peer.decode()} -> coordinator", repr(report))
        if isinstance(report, orders.Drained):
            self._sizes[report.round].drained[process] = report.made
            self._paced.add(process)
            self._act(self.coordinator.drained(process, report, self.now_s))
        elif isinstance(report, orders.Weighed):
            self._act(self.coordinator.weighed(process, report, self.now_s))
        elif isinstance(report, orders.Settled):
            self._act(self.coordinator.settled(process, report, self.now_s))

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Tell():
                    self._tell(action)
                case Booked():
                    self._booked(action)
                case Late():
                    self.counts["late"] += 1
                    self._sizes[self._round_told].late.add(action.process)
        if self.moves.released(self.coordinator) is not None:
            self._move()
        due_s = self.coordinator.due_s
        if due_s != self._due_s:
            self._due_s = due_s
            if due_s < math.inf:
                self._at(due_s, lambda: self._overdue(due_s))

    @property
    def _round_told(self) -> int:
        """The newest round whose begin was told; what was said of it may be told after its end."""
        return max(self._began_s, default=-1)

    def _move(self) -> None:
        """The ledger's MOVE: the process is given up, and its peer begins anew elsewhere."""
        moving, process = self.moves.released(self.coordinator), self.coordinator.released
        assert moving is not None and process is not None
        if self._arriving is not None:
            self.broken("P6", f"{moving} while {self._arriving!r} moves")
        for number in (self.coordinator.round, self.coordinator.closing):
            if number is not None and process in self._spans[number]:
                self.broken("P6", f"{moving}, and is in round {number} in its old stage")
        self.counts["moves"] += 1
        self._arriving = moving.peer
        self.spans[self._ids[moving.peer]] = Span(moving.stage, moving.stage)
        self._act(self.coordinator.departed(process, self.now_s))

    def _look_for_moves(self, books: Books) -> None:
        servers, movable = {}, []
        for index, process in enumerate(self.processes):
            if process.me.peer in self._roster:
                span = self.spans[index]
                servers[process.me.peer] = Server(range(span.first, span.last + 1))
            is_free = index != self.conditions.hostile and self._can_do_without(index)
            if process.is_alive and is_free:
                movable.append(process.me.peer)
        self.moves.booked(books, self.coordinator, servers, movable, self.now_s)

    def _any_move(
        self, needs: Sequence[StageNeed], servers: Sequence[Server], movable: Sequence[int]
    ) -> Transfer | None:
        """Send anybody who may go to any other stage."""
        if not movable:
            return None
        place, stage = self.rng.choice(movable), self.rng.randrange(len(needs))
        return None if stage in (servers[place].span or ()) else Transfer(place, stage, "drawn")

    def _overdue(self, due_s: float) -> None:
        if due_s == self._due_s:
            self._act(self.coordinator.overdue(self.now_s))

    def _tell(self, action: Tell) -> None:
        process, order = action.process, control.order_of(control.pack_order(action.order))
        match order:
            case orders.Begin():
                if order.round not in self._began_s:
                    self._spans[order.round] = {
                        Process(peer, member.boot): member.span
                        for peer, member in order.members.items()
                    }
                    self._began_s[order.round] = self.now_s
                    self.counts["rounds"] += 1
                size, is_first = self._sizes[order.round], process in self._spans[order.round]
                (size.begun if is_first else size.came)[process] += order.share
            case orders.More():
                self._sizes[order.round].more[process] += order.share
            case orders.Departed():
                self._sizes[self._round_told].left.add(order.process)
            case orders.Close() if order.round in self._sizes and not self.rules.flushes:
                members = self.coordinator.members.items()
                here = {Process(peer, member.boot) for peer, member in members}
                self._sizes.pop(order.round).check(order.round, here, self._paced)
            case orders.MakeStep():
                self._check_step((order.round, order.step, order.attempt))

        def hear() -> None:
            sim = self.processes[self._ids[process.peer]]
            if not sim.is_alive or sim.me != process:
                return
            if sim.thaws_s > self.now_s:
                # Under its own number: what was said later must not overtake it in the thaw.
                heapq.heappush(self._queue, (sim.thaws_s, number, hear))
                return
            self._note(f"coordinator -> {process.peer.decode()}", repr(order))
            sim.told(order)

        number = self._num_events + 1
        self._at(self._lane("down", process), hear)

    def _check_step(self, fence: tuple[int, int, int]) -> None:
        if fence in self._flushed:
            return
        self._flushed.add(fence)
        self.counts["steps"] += 1
        made: set[MicroBatch] = set()
        here = []
        for process in self._lives_of_all:
            member = self.coordinator.members.get(process.me.peer)
            if member is not None and member.boot == process.me.boot:
                here.append(process)
                made |= {m for m in process.work.made if (m.round, m.step, m.attempt) == fence}
        check_step(self.rules.paths, fence, here, made)

    def _booked(self, action: Booked) -> None:
        books = action.books
        began_s = self._began_s[books.round]
        is_calm = began_s > self.conditions.calm_s + _CALM_S and books.round > 1
        is_harsh = began_s < self.conditions.calm_s
        spans = self._spans[books.round]
        has_hostile = any(who.peer == self._hostile and span.last for who, span in spans.items())
        self.ledger.booked(
            books,
            self._ever,
            is_harsh=is_harsh,
            is_calm=is_calm,
            has_hostile=has_hostile,
            sent_on={
                m for one in self._lives_of_all if isinstance(one, Hostile) for m in one.sent_on
            },
        )
        self._check_suspects(books)
        self._calm_rounds += is_calm
        if self._is_moving:
            self._look_for_moves(books)
        ended_s = self.now_s + self.rng.uniform(*_EXCHANGE_S)
        self._at(ended_s, lambda: self._exchanged(books.round))

    def _exchanged(self, round: int) -> None:
        """All stages' ops have their outcome: each peer has it in place a little later."""
        self._act(self.coordinator.outcome(round, self.now_s))
        op = round + 1
        for process in self.processes:
            self.later(process, self.rng.uniform(0, 2), partial(self._in_place, process, op))
        whole = Span(0, self.conditions.num_stages - 1)
        sources = [
            peer
            for peer, member in self.coordinator.members.items()
            if 0 in member.span and member.span != whole
        ]
        named = self.rng.choice(sources) if sources else None
        asked = self.coordinator.evaluate((op,) * self.conditions.num_stages, named)
        self.counts["evaluations"] += any(
            isinstance(one, Tell) and isinstance(one.order, orders.Evaluate) for one in asked
        )
        self._act(asked)

    def _in_place(self, process: SimProcess, op: int) -> None:
        process.op = max(process.op, op)

    def _check_suspects(self, books: Books) -> None:
        """A source that knows whole routes finds who has given wrong gradients, and nobody else."""
        for source, found in books.compared.items():
            self.counts["compared"] += found.times
            self.counts["at odds"] += found.odd
            self.counts["suspects"] += found.suspect is not None
            if found.suspect not in (None, self._hostile) and self.conditions.num_stages <= _KNOWN:
                self.broken("P10", f"{source} suspects {found.suspect!r}")

    # ---- time and lanes

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._queue, (time_s, self._num_events, act))

    def _lane(self, way: str, process: Process) -> float:
        """Time at which a control message comes, never before what was said earlier."""
        key = way, self._ids[process.peer]
        last_s = self._lanes.get(key, 0.0)
        self._lanes[key] = max(last_s, self.now_s + self.rng.uniform(0.1, self._lane_s))
        return self._lanes[key]

    def _delivery(
        self, sender: Process, receiver: int, message: AnyHopMessage
    ) -> Callable[[], None]:
        def deliver() -> None:
            process = self.processes[receiver]
            if not process.is_alive:
                return
            if process.thaws_s > self.now_s:
                self._at(process.thaws_s + self.rng.uniform(0, 2), deliver)
                return
            self._note(f"{sender.peer.decode()} -> {receiver}", repr(message))
            process.received(sender, message)

        return deliver

    def _note(self, who: str, story: str) -> None:
        if self.trace is not None:
            self.trace(self.now_s, who, story)


def _peer(index: int) -> PeerId:
    return b"peer %027d" % index

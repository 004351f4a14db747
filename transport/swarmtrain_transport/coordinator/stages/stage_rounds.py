"""Rounds of a run in stages: the pipeline's rounds on one side, the stages' groups on the other.

Stage s is group s. A process is in the rounds from when it holds the newest state of all its stages
until it is GONE, comes back under another boot, or MOVE gives it other stages. It is told so, and
never comes in again: its peer begins anew. While its connection is broken, or it is silent, the
others go on without it; nothing of that is in the ledger.

A round's books open the groups of the stages in which somebody has counted. An op of theirs is
planned with those members, and with nobody whose word is in no books. When all these ops have their
outcome, SKIP or REWIND as well as COMMIT, the round has its own. A stage whose members have all
gone or say nothing has no op.

A process is told on its next connection what it has not heard when the last one broke. The ledger
has the books (BOOKS) and nothing else of this: after a restart the next round closes what was under
way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.roster import LiveRoster
from swarmtrain_transport.coordinator.ops.agreement import trusted_root
from swarmtrain_transport.coordinator.ops.planning import is_synced
from swarmtrain_transport.coordinator.stages.staffing import Stages
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.turns import Planes, are_legal, drawn
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books, record_of
from swarmtrain_transport.pipeline.coordinator.rounds import Action, Booked, Late, Rounds
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.control import OrderLane
from swarmtrain_transport.pipeline.wire.orders import Member, Tell
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire.messages import Hello, PipelineOrder, PipelineReport
from swarmtrain_transport.wire.records import Turn

_ROUNDS_PER_TERM = 1 << 20
"""A later life of the coordinator numbers its rounds from a multiple of this on: it does not know
which was the last, and no number comes twice."""


@dataclass(frozen=True, slots=True)
class PipelineTerms:
    """The part of [pipeline] and its surroundings that rounds must know.

    Attributes:
        share: micro-batches that a source makes in a round, or in a step where they are flushed, on
            average.
        steps: steps of a round where they are flushed; 0 where they are free.
        clips: flushed steps are clipped by the norm of the whole gradient.
        start_peers: number of peers that the first round waits for.
        tokens: tokens of a micro-batch.
        round_steps: inner steps that a peer makes of a round.
        step_micro_batches: micro-batches that the schedule takes for a step; 0 where
            it goes by rounds.
        evaluates: the run has validation text.
        visit: stages that a micro-batch visits; 0 for all.
        turn_rounds: rounds from one turn of the subspace to the next; 0 where it stays.
        rank, width, most_units: see `turns.are_legal`.
    """

    share: int
    steps: int = 0
    clips: bool = False
    start_peers: int = 1
    tokens: int = 0
    round_steps: int = 1
    step_micro_batches: int = 0
    evaluates: bool = True
    visit: int = 0
    turn_rounds: int = 0
    rank: int = 0
    width: int = 0
    most_units: int = 0


@dataclass(frozen=True, slots=True)
class _Awaited:
    """An op of a stage that a round waits for.

    Attributes:
        op: number of the op.
        rewinds: number of REWINDs of the group before it.
        until_s: time until which its plan is waited for.
    """

    op: int
    rewinds: int
    until_s: float


class StageRounds:
    """The coordinator of a pipeline's rounds.

    Args:
        terms: terms of the pipeline.
        num_stages: number of the model's stages.
        groups: groups of the run, by their numbers.
        stages: assignment of peers to stages, and their moves.
        writer: the pen.
        live_roster: peers that are here.

    Attributes:
        rounds: the rounds.
    """

    def __init__(
        self, terms: PipelineTerms, num_stages: int, groups: Mapping[int, GroupCoordinator],
        stages: Stages, writer: LedgerWriter, live_roster: LiveRoster,
    ) -> None:  # fmt: skip
        self.rounds = Rounds(
            num_stages, terms.share, terms.steps, clips=terms.clips,
            least_members=terms.start_peers, round_steps=terms.round_steps,
            step_micro_batches=terms.step_micro_batches, visit=terms.visit,
        )  # fmt: skip
        self._terms = terms
        self._groups = groups
        self._stages = stages
        self._writer = writer
        self._live_roster = live_roster
        self._lanes: dict[Process, OrderLane] = {}
        self._proposed: dict[Process, Planes] = {}
        self._left: dict[PeerId, dict[bytes, OrderLane]] = {}  # by boot
        self._said: list[tuple[Process, PipelineOrder]] = []
        self._round: int | None = None
        self._awaited: dict[int, _Awaited] = {}
        self._now_s = 0.0
        self._evaluated = -1

    # ---- events

    def entered(self, peer: PeerId, hello: Hello, now_s: float) -> None:
        """A peer is here, for the first time or again."""
        known = self.rounds.known(peer)
        if known is not None and known.boot != hello.boot:
            self.gone(peer, now_s)
        # The last word to one that has left is that it has.
        left = self._left.get(peer, {})
        lane = left.get(hello.boot) or self._lanes.get(Process(peer, hello.boot))
        if lane is not None:
            for message in lane.again():
                self._writer.send(peer, message)

    def gone(self, peer: PeerId, now_s: float) -> None:
        """A peer has left the run, or has other stages now; void if it is in no round."""
        self._now_s = now_s
        for group in self._groups.values():
            if group.givers is not None:
                group.givers.pop(peer, None)
        known = self.rounds.known(peer)
        if known is not None:
            process = Process(peer, known.boot)
            self._act(self.rounds.departed(process, now_s))
            left = self._left.pop(peer, {})
            left[known.boot] = self._lanes.pop(process)
            if len(left) > limits.BOOTS_LEFT_MAX:
                del left[next(iter(left))]
            self._left[peer] = left
            if len(self._left) > limits.PIPELINE_MEMBERS_MAX:
                del self._left[next(iter(self._left))]

    def received(self, peer: PeerId, boot: bytes, message: PipelineReport, now_s: float) -> None:
        """A report; void from a process that is in no round.

        Raises:
            RemoteFault: it cannot be one, or not from this member.
        """
        self._now_s = now_s
        process = Process(peer, boot)
        lane = self._lanes.get(process)
        report = lane.hear(message) if lane is not None else None
        match report:
            case None:
                pass
            case orders.Drained():
                self._act(self.rounds.drained(process, report, now_s))
            case orders.Weighed():
                self._act(self.rounds.weighed(process, report, now_s))
            case orders.Settled():
                self._act(self.rounds.settled(process, report, now_s))
            case orders.Proposed(planes):
                self._propose(process, planes)

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: nobody was silent meanwhile."""
        self.rounds.pardon(absent_s)
        self._awaited = {
            stage: _Awaited(one.op, one.rewinds, one.until_s + absent_s)
            for stage, one in self._awaited.items()
        }

    def wakeups(self) -> list[float]:
        """When something may fall due."""
        away = (line.life.away_at_s for line in self._live_roster.lines.values())
        return [self.rounds.due_s, *away, *(one.until_s for one in self._awaited.values())]

    def send(self) -> None:
        """Send the orders that were given since the last call."""
        said, self._said = self._said, []
        for process, message in said:
            line = self._live_roster.lines.get(process.peer)
            if line is not None and line.connected and line.hello.boot == process.boot:
                self._writer.send(process.peer, message)

    def settle(self, now_s: float) -> bool:
        """Decide what has fallen due; True if a group may have something to decide now."""
        self._now_s = now_s
        self.rounds.turns = len(self._writer.view.turns)
        views = [group.view for group in self._groups.values()]
        late = (view.standing.lateness.unawaited(view.members.keys()) for view in views)
        self.rounds.unawaited = set[PeerId]().union(*late)
        opened = self._round
        if now_s >= self.rounds.due_s:
            self._act(self.rounds.overdue(now_s))
        for process, lane in list(self._lanes.items()):
            if lane.num_unheard > limits.ORDERS_UNHEARD_MAX:
                self.gone(process.peer, now_s)
        self._part()
        self._take_in()
        self._follow()
        self._evaluate()
        return self._round != opened

    # ---- who is in

    def _part(self) -> None:
        """Members of whom nothing is heard are away, and back when they are heard of again."""
        for peer, line in self._live_roster.lines.items():
            process = Process(peer, line.hello.boot)
            is_away = self._now_s >= line.life.away_at_s
            change = self.rounds.away if is_away else self.rounds.back
            self._act(change(process, self._now_s))

    def _take_in(self) -> None:
        """Processes that hold the newest state of all their stages are in."""
        rounds = self.rounds
        if rounds.round < 0:
            rounds.round = max(0, self._writer.term - 1) * _ROUNDS_PER_TERM - 1
            rounds.ended = self._ended()
            if any(group.view.op is not None for group in self._groups.values()):
                rounds.least_members = 1  # the run has begun, in an earlier life
        for peer, line in self._live_roster.lines.items():
            known, boot = rounds.known(peer), line.hello.boot
            has_left = boot in self._left.get(peer, {})
            is_in = known is not None and known.boot == boot
            if not line.connected or is_in or has_left:
                continue
            span = self._span_of(peer)
            if span is None or not self._holds(peer, span):
                continue
            process = Process(peer, boot)
            self._lanes[process] = OrderLane()
            self._act(rounds.joined(process, Member(boot, span), self._now_s))
            if peer not in rounds.members:
                del self._lanes[process]

    def _span_of(self, peer: PeerId) -> Span | None:
        """The stages of a peer, if they follow each other."""
        stages = self._writer.view.groups_of(peer)
        if not stages or stages != tuple(range(stages[0], stages[-1] + 1)):
            return None
        return Span(stages[0], stages[-1]) if stages[-1] < self.rounds.num_stages else None

    def _holds(self, peer: PeerId, span: Span) -> bool:
        """Return True if it has the newest state of these stages in place."""
        for stage in range(span.first, span.last + 1):
            group = self._groups.get(stage)
            one = group.group_peers.here.get(peer) if group is not None else None
            if group is None or one is None or group.view.genesis is None or not one.in_place:
                return False
            root = trusted_root(group.view, group.group_peers.connected(), group.view.last_op)
            if not is_synced(group.view, root, one):
                return False
        return True

    # ---- rounds and ops

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Tell():
                    self._tell(action)
                case Booked():
                    self._open(action.books, action.waited)
                case Late():
                    first = self._groups[0]
                    first.chronicle.event(
                        first.view.last_op + 1, action.process.peer, "late", action.report
                    )

    def _tell(self, tell: Tell) -> None:
        self._said.append((tell.process, self._lanes[tell.process].say(tell.order)))

    def _open(self, books: Books, waited: Mapping[PeerId, int]) -> None:
        """The round is booked: its members may give to ops of the stages that they have counted in,
        as much as the books say."""
        self._round = books.round
        late = sorted(waited.items(), key=lambda one: (-one[1], one[0]))
        told = dict(sorted(late[: limits.BOOKS_MEMBERS_MAX]))
        record = msgspec.structs.replace(record_of(books), waited=told, turn=self._turn())
        self._writer.append(record)
        self.rounds.turns = len(self._writer.view.turns)
        for stage, group in self._groups.items():
            givers = {
                process.peer: count * self._terms.tokens
                for (process, at), count in books.told.items()
                if at == stage and count and process.peer in group.view.members
            }
            if givers and not group.has_all_planned:
                group.givers = givers
                until_s = self._now_s + limits.ANSWER_S + group.terms.wait_ready_s
                self._awaited[stage] = _Awaited(group.view.next_op, group.view.rewinds, until_s)
        self._stages.booked(books, self.rounds, self._now_s)

    def _propose(self, process: Process, planes: Planes) -> None:
        """Keep a proposal of who sees what falls outside the subspace, until the next books.

        Raises:
            RemoteFault: reason ``turn``: it cannot be one, or not of this member.
        """
        member, terms = self.rounds.known(process.peer), self._terms
        sees = member is not None and member.span.last == self.rounds.num_stages - 1
        may = sees and terms.turn_rounds > 0
        if not (may and are_legal(planes, terms.rank, terms.width, terms.most_units)):
            raise RemoteFault("turn", f"{len(planes)} planes that no turn can have")
        self._proposed[process] = planes

    def _turn(self) -> Turn | None:
        """The turn that the books have, if one is due and somebody has proposed it."""
        view, proposed = self._writer.view, self._proposed
        self._proposed = {}
        here = {one.peer: proposed[one] for one in proposed.keys() & self._lanes.keys()}
        op = view.first.next_op
        since = op - (view.turns[-1].op if view.turns else 1)
        is_due = self._terms.turn_rounds <= since and len(view.turns) < limits.TURNS_MAX
        return Turn(op, drawn(here, self._writer.ledger.head_hash)) if here and is_due else None

    @property
    def awaits_loss(self) -> bool:
        """The newest state is being evaluated."""
        first = self._groups[0]
        op = first.view.last_op
        return op == self._evaluated and op not in first.chronicle.losses

    def _evaluate(self) -> None:
        """Have the newest state of all stages evaluated, once: by whom PLAN has named, if that is a
        source that lacks some of the stages. Any source evaluates what nobody has trained yet."""
        first = self._groups.get(0)
        is_between = self._round is None and self.rounds.has_begun
        if first is None or not is_between or not self._terms.evaluates:
            return
        op = first.view.last_op
        commit = first.view.commits.get(op)
        is_known = op in first.chronicle.losses or (commit is None and op != 0)
        if op in (-1, self._evaluated) or is_known:
            return
        ops = tuple(group.view.last_op for _, group in sorted(self._groups.items()))
        named = commit.plan.evaluate_by if commit is not None else None
        asked = self.rounds.evaluate(ops, named)
        if asked:
            self._evaluated = op
            self._act(asked)

    def _follow(self) -> None:
        """Ops have their outcome, or none is coming."""
        for stage, awaited in list(self._awaited.items()):
            group = self._groups[stage]
            view = group.view
            is_over = view.last_op >= awaited.op or view.rewinds != awaited.rewinds
            is_void = not group.operations and (not group.givers or self._now_s >= awaited.until_s)
            if is_over or is_void:
                group.givers = {}
                del self._awaited[stage]
        missing = [group.terms.rounds - group.view.committed for group in self._groups.values()]
        self.rounds.wanted = max(missing, default=0)
        if self._round is None or not self._awaited:
            self.rounds.ended = self._ended()
        if self._round is not None and not self._awaited:
            closed, self._round = self._round, None
            self._act(self.rounds.outcome(closed, self._now_s))

    def _ended(self) -> int:
        """Steps of the schedule that are over: by what all stages have counted, as the ledger has
        it, or by the rounds of the stage that has the fewest."""
        terms = self._terms
        if terms.step_micro_batches:
            return self._writer.view.booked.get("whole", 0) // terms.step_micro_batches
        rounds = min((group.view.committed for group in self._groups.values()), default=0)
        return rounds * terms.round_steps

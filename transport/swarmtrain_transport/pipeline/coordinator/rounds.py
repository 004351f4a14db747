"""The coordinator's part of pipelines: it begins rounds and closes them, and keeps their books.

A round ends when all its sources have said DRAINED. Then CLOSE goes to everybody, so that no peer
decides by what it sees that nothing more will come; and whoever has made its last step says what it
has counted (SETTLED). Where steps are free the next round begins at once, and is closed only after
the outcome of the one before. Where steps are flushed, a step is made when all that its sources
have made came back and nobody left meanwhile; else it is void and made again. A gradient that is
clipped is weighed before, as no peer knows all of it. The next round begins after the outcome.

A round, or a step of it, is as large as it was begun: what a source that is gone or away was to
make the others make (`shares`).

BEGIN tells the round's pace: its place in the learning rate's schedule, which so is one for all
stages, and how large each stage's part of the gradient was lately, to clip free steps by.

A process that has not answered in time is not waited for any longer: `overdue` goes on without its
word, and after a few such times without asking it, for some rounds (`ledger.standing.Score`). A
member that cannot be reached is `away`: to the others it has left, and if it is back in time, it
goes on where it was.

A coordinator that died is not this file's: the round that was under way is closed by the next one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median_low

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.standing import Score
from swarmtrain_transport.ledger.waits import Waits, add, most_s
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.coordinator.closing import Closing
from swarmtrain_transport.pipeline.coordinator.shares import Shares
from swarmtrain_transport.pipeline.coordinator.step_under_way import StepUnderWay, whole_norm
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.orders import Member, Order, Tell
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import Process, Span


class Booked(msgspec.Struct, frozen=True):
    """All have settled: the ops of the round's stages may be planned. Then `outcome`."""

    books: Books
    waited: dict[PeerId, int] = {}
    """Milliseconds for which the others have waited for each in the round (T19)."""


class Late(msgspec.Struct, frozen=True):
    """The process has not answered in time, and what follows goes on without its word.

    Attributes:
        process: process that was asked.
        report: name of the report that it owes.
    """

    process: Process
    report: str


Action = Tell | Booked | Late


@dataclass(slots=True)
class Rounds:
    """The coordinator's part.

    Args:
        num_stages: number of the model's stages.
        share: micro-batches that a source makes in a round, or in a step where they are flushed, on
            average: fast ones make more.
        steps: steps of a round where they are flushed; 0 where they are free.
        clips: flushed steps are clipped by the norm of the whole gradient.
        least_members: number of members that the first round waits for.
        round_steps: inner steps that a peer makes of a round.
        step_micro_batches: micro-batches that the schedule takes for a step; 0 where it goes by
            rounds, whatever is made of them.
        visit: stages that a micro-batch visits; 0 for all.
        at_random: see `Paths`.

    Attributes:
        ended: steps of the schedule that are over, without the round that has no outcome yet.
        members: members of the run.
        absent: members that are away; they are in no `members`, and are told all orders.
        round, step, attempt: round, step and attempt under way, or the last ones.
        leaving: the member that is in no round that begins from now on.
        unawaited: members for whom nobody waits, since the others have waited for them for too
            long (T19). They make nothing of their own, and count if they answer in time.
        wanted: rounds without an outcome that the run still wants; None for any number.
        turns: turns of the run's subspace so far.
    """

    num_stages: int
    share: int
    steps: int = 0
    clips: bool = False
    least_members: int = 1
    round_steps: int = 1
    step_micro_batches: int = 0
    visit: int = 0
    at_random: bool = False
    ended: int = 0
    members: dict[PeerId, Member] = field(default_factory=dict)
    absent: dict[PeerId, Member] = field(default_factory=dict)
    round: int = -1
    step: int = 0
    attempt: int = 0
    leaving: Process | None = None
    wanted: int | None = None
    turns: int = 0
    _without_from: int | None = None
    _began_s: float = 0.0
    _is_running: bool = False
    _pace: orders.Pace = field(default_factory=orders.Pace)
    _norms: dict[int, float] = field(default_factory=dict)
    _under_way: StepUnderWay = field(default_factory=lambda: StepUnderWay(set(), 0.0))
    _shares: Shares = field(default_factory=Shares)
    _asked: dict[Process, int] = field(default_factory=dict)
    _closing: Closing | None = None
    unawaited: AbstractSet[PeerId] = frozenset()
    _waits: dict[PeerId, Score] = field(default_factory=dict)
    _waited: Waits = field(default_factory=dict)
    _voided: int = 0
    _lost_alone: Counter[Process] = field(default_factory=Counter)
    _given_up: set[Process] = field(default_factory=set)
    _now_s: float = 0.0
    _actions: list[Action] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        """A round has begun; or, before this life of the coordinator, an op."""
        return bool(self._asked) or self.least_members <= 1

    @property
    def closing(self) -> int | None:
        """The round that is closed and has no outcome yet."""
        return None if self._closing is None else self._closing.round

    def joined(self, process: Process, member: Member, now_s: float) -> tuple[Action, ...]:
        """A process is in, with its stages' newest state; void where the run has no place for one
        more.

        Raises:
            RemoteFault: reason ``span``: there are no such stages.
        """
        self._now_s = now_s
        self._check_span(member.span)
        known = self.known(process.peer)
        if known is None and len(self.members) >= limits.PIPELINE_MEMBERS_MAX:
            return ()
        if known is not None:
            if known.boot == process.boot:
                return ()
            self._give_up(Process(process.peer, known.boot))
        self.members[process.peer] = member
        self._tell_all(orders.Joined(process.peer, member), but=process)
        oldest = max(0, self.round + (not self._is_running))
        step = (self.step, self.attempt) if self._is_running else (0, 0)
        welcome = orders.Welcome(self._in_round, oldest, *step, self._is_running, self._pace)
        self._actions.append(Tell(process, welcome))
        if 0 in member.span and self._is_running and not self.steps:
            self._begin_late(process)
        return self._went_on()

    def departed(self, process: Process, now_s: float) -> tuple[Action, ...]:
        """A process is gone: by its word, by silence, or because the organiser says so."""
        self._now_s = now_s
        known = self.known(process.peer)
        if known is None or known.boot != process.boot:
            return ()
        self._give_up(process)
        return self._went_on()

    def known(self, peer: PeerId) -> Member | None:
        """A member, away or not."""
        return self.members.get(peer) or self.absent.get(peer)

    def away(self, process: Process, now_s: float) -> tuple[Action, ...]:
        """A member cannot be reached, and may come back: until then the others go on without it.
        Nothing is done where they could not, as a stage would have nobody."""
        self._now_s = now_s
        member = self._in_round.get(process.peer)
        others = {peer: one for peer, one in self._in_round.items() if peer != process.peer}
        if member is None or member.boot != process.boot or not self._is_served(others):
            return ()
        self._part(process)
        self.absent[process.peer] = member
        self._is_at_fault(process)
        return self._went_on()

    def back(self, process: Process, now_s: float) -> tuple[Action, ...]:
        """A member that was away can be reached. One that is away again and again is taken back
        some rounds later only, if no stage needs it."""
        self._now_s = now_s
        member = self.absent.get(process.peer)
        if member is None or member.boot != process.boot:
            return ()
        if self._is_barred(process) and self._is_served(self.members):
            return ()
        del self.absent[process.peer]
        self.members[process.peer] = member
        self._tell_all(orders.Joined(process.peer, member))
        return self._went_on()

    def drained(self, process: Process, report: orders.Drained, now_s: float) -> tuple[Action, ...]:
        """A source says that all it had to make has ended.

        Raises:
            RemoteFault: reason ``books``: it was not to make so many. It is still waited for.
        """
        self._now_s = now_s
        fence = (report.round, report.step, report.attempt)
        is_awaited = process in self._under_way.awaited
        if self._is_running and is_awaited and fence == (self.round, self.step, self.attempt):
            share = self._shares.given[process]
            if not 0 <= report.lost <= report.made <= share:
                raise RemoteFault("books", f"{report.lost} lost of {report.made}, not of {share}")
            if report.made < share and process in self._under_way.more:
                return ()  # said before it heard that there is more
            self._under_way.awaited.discard(process)
            self._under_way.drained_s[process.peer] = now_s
            self._under_way.lost += report.lost
            if report.lost:
                self._under_way.losers.add(process)
            took_s = self._shares.drained(process, share - report.lost, now_s)
            self._under_way.took_s.append(took_s)
        return self._went_on()

    def weighed(self, process: Process, report: orders.Weighed, now_s: float) -> tuple[Action, ...]:
        """A member says how large its part of the step's gradient is.

        Raises:
            RemoteFault: reason ``books``: that are not its stages. It is still waited for.
        """
        self._now_s = now_s
        unweighed, fence = self._under_way.unweighed, (report.round, report.step, report.attempt)
        if unweighed and process in unweighed and fence == (self.round, self.step, self.attempt):
            span = unweighed[process]
            if len(report.squares) != span.last - span.first + 1:
                raise RemoteFault("books", f"{len(report.squares)} norms of {span}")
            del unweighed[process]
            self._under_way.weighed_s[process.peer] = now_s
            for stage, square in enumerate(report.squares, start=span.first):
                if square is not None and 0 <= square <= limits.NORM_SQUARE_MAX:
                    self._under_way.squares.setdefault(stage, {})[process] = square
        return self._went_on()

    def settled(self, process: Process, report: orders.Settled, now_s: float) -> tuple[Action, ...]:
        """A member says what it has counted in the closed round.

        Raises:
            RemoteFault: reason ``books``: it cannot have counted that. It is still waited for.
        """
        self._now_s = now_s
        closing = self._closing
        if closing is not None and process in closing.unsettled and report.round == closing.round:
            closing.settle(process, report)
            closing.settled_s[process.peer] = now_s
            if process.peer in self._waits:
                self._waits[process.peer].good()
        return self._went_on()

    def outcome(self, round: int, now_s: float) -> tuple[Action, ...]:
        """The ops of all stages that were booked have their outcome."""
        self._now_s = now_s
        if self._closing is not None and self._closing.is_booked and round == self.closing:
            self._closing = None
        return self._went_on()

    def release(self, process: Process) -> None:
        """A member is to leave between two rounds: it is in none that begins from now on, unless
        nobody else serves its stages then. Void while another one leaves."""
        member = self.members.get(process.peer)
        if self.leaving is None and member is not None and member.boot == process.boot:
            self.leaving = process

    @property
    def released(self) -> Process | None:
        """The member that leaves, once its last round has its outcome: now it may be gone. None
        while a stage has nobody else: it is in the next round if its own stage lacks it then."""
        first = self._without_from
        is_over = first is not None and (self.closing is None or self.closing >= first)
        return self.leaving if is_over and self._is_served(self._in_round) else None

    def evaluate(self, ops: tuple[int, ...], named: PeerId | None) -> tuple[Action, ...]:
        """Have the state after these ops of the stages evaluated by a source.

        Args:
            ops: newest op of each stage.
            named: peer that is to evaluate; None for any source.

        Returns:
            Nothing where the source is not here, or a stage has no member; nor where the source
            serves all stages, for then it evaluates alone and unasked.
        """
        whole = Span(0, self.num_stages - 1)
        chosen = {peer: one for peer, one in self.members.items() if 0 in one.span}
        if named is not None:
            chosen = {peer: one for peer, one in chosen.items() if peer == named}
        is_done_alone = any(one.span == whole for one in chosen.values())
        if not chosen or is_done_alone or not self._is_served(self.members):
            return ()
        evaluator = min(Process(peer, one.boot) for peer, one in chosen.items())
        self._tell_all(orders.Evaluate(ops, evaluator, self.turns))
        return self._went_on()

    # ---- those who do not answer

    @property
    def due_s(self) -> float:
        """Time at which `overdue` is due if nobody says anything; infinity if never."""
        times = [math.inf]
        if self._under_way.awaited:
            shares = self._shares.given
            times += [self._under_way.drain_s(shares[one]) for one in self._under_way.awaited]
        if self._under_way.unweighed:
            times.append(self._under_way.asked_s + limits.ANSWER_S)
        if self._closing is not None and self._closing.unsettled:
            times.append(self._closing.closed_s + limits.ANSWER_S)
        return min(times)

    def overdue(self, now_s: float) -> tuple[Action, ...]:
        """Go on without those who have not answered in time.

        Micro-batches of such a source that have not come back are lost with the round, and a
        flushed step is void; it makes none for the rest of the round. Counts of such a member are
        in no books, and its gradient is in no norm.
        """
        self._now_s = now_s
        step, closing = self._under_way, self._closing
        for process in sorted(step.awaited):
            if step.drain_s(self._shares.given[process]) <= now_s:
                step.awaited.discard(process)
                step.lost += 1
                self._shares.give_up(process)
                self._given_up.add(process)
                step.drained_s[process.peer] = now_s
                self._is_late(process, orders.Drained)
        if step.unweighed and step.asked_s + limits.ANSWER_S <= now_s:
            for process in sorted(self._waits_for(step.unweighed)):
                step.weighed_s[process.peer] = now_s
                self._is_late(process, orders.Weighed)
            step.unweighed.clear()
        if closing is not None and closing.closed_s + limits.ANSWER_S <= now_s:
            for process in sorted(self._waits_for(closing.unsettled)):
                closing.settled_s[process.peer] = now_s
                self._is_late(process, orders.Settled)
            closing.unsettled.clear()
        return self._went_on()

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: nobody was silent meanwhile."""
        self._under_way.began_s += absent_s
        self._under_way.asked_s += absent_s
        self._began_s += absent_s
        if self._closing is not None:
            self._closing.closed_s += absent_s

    def _is_late(self, process: Process, report: type[orders.Report]) -> None:
        self._actions.append(Late(process, report.__name__))
        self._is_at_fault(process)

    def _is_at_fault(self, process: Process) -> None:
        self._waits.setdefault(process.peer, Score()).fault(max(0, self.round))
        if len(self._waits) > limits.PIPELINE_MEMBERS_MAX:
            del self._waits[next(iter(self._waits))]

    def _waits_for(self, processes: Iterable[Process]) -> list[Process]:
        """Return those among them that are here and were not waited for in vain too often
        lately."""
        return [p for p in processes if p.peer not in self.absent and not self._is_barred(p)]

    def _is_barred(self, process: Process) -> bool:
        score = self._waits.get(process.peer)
        is_at_fault = score is not None and score.until >= self.round
        return is_at_fault or process.peer in self.unawaited

    def _count(self, came_s: Mapping[PeerId, float]) -> None:
        """Add up for how long the others' answers have waited for each one's."""
        due_s = most_s(came_s.values())
        for peer in came_s.keys() - self.unawaited:
            add(self._waited, peer, came_s[peer] - due_s)

    # ---- rounds and steps

    def _went_on(self) -> tuple[Action, ...]:
        """All that follows from what has happened."""
        while self._advance():
            pass
        actions, self._actions = tuple(self._actions), []
        return actions

    def _advance(self) -> bool:
        """One more transition; False if there is none."""
        closing = self._closing
        is_open = closing is not None and not closing.is_booked
        if closing is not None and is_open and not self._waits_for(closing.unsettled):
            self._book(closing)
            return True
        if self._is_running:
            step = self._under_way
            if self._deal():
                return True
            is_awaited = any(source.peer not in self.absent for source in step.awaited)
            is_awaited = is_awaited or bool(self._waits_for(step.unweighed or ()))
            return not is_awaited and self._step_is_over()
        if self.closing is not None and self.steps:
            return False
        return self._begin()

    def _book(self, closing: Closing) -> None:
        books = closing.book()
        self._count(closing.settled_s)
        waited = {peer: int(1000 * seconds) for peer, seconds in sorted(self._waited.items())}
        self._waited = {}
        self._norms |= {
            stage: median_low(told)
            for stage in range(self.num_stages)
            if (told := closing.norms(stage))
        }
        self._actions.append(Booked(books, waited))

    def _begin(self) -> bool:
        is_first = not self.has_begun and len(self.members) < self.least_members
        is_last = self.wanted is not None and (self.closing is not None) >= self.wanted
        if is_first or is_last or not self._is_served(self.members):
            return False
        self.round += 1
        self._leave_out()
        members = self._in_round
        able = {Process(peer, member.boot) for peer, member in members.items() if 0 in member.span}
        sources = set(self._waits_for(able)) or able
        self.step = self.attempt = self._voided = 0
        self._lost_alone.clear()
        self._given_up.clear()
        self._is_running, self._began_s = True, self._now_s
        self._shares.divide(sources, self.share, self._now_s)
        shares = self._shares.given
        self._asked = dict(shares)
        self._under_way = StepUnderWay(set(sources), self._now_s)
        self._pace = self._pace_of_round()
        for process in self._everybody():
            share = shares.get(process, 0)
            begin = orders.Begin(self.round, share, members, self._pace)
            self._actions.append(Tell(process, begin))
        return True

    def _begin_late(self, process: Process) -> None:
        """A source that comes in the midst of a round has a part of it."""
        share = self._shares.come(process, self._sources, self._now_s)
        if share:
            self._asked[process] = share
            self._under_way.awaited.add(process)
            begin = orders.Begin(self.round, share, self._in_round, self._pace)
            self._actions.append(Tell(process, begin))

    def _deal(self) -> bool:
        """Deal what is missing of the round, where steps are free, once a source could make it;
        False if nothing is."""
        step, sources = self._under_way, self._sources
        able = set(self._waits_for(sources)) - self._given_up
        if self.steps or not able - step.awaited:
            return False
        more = self._shares.deal(sources, able, step.awaited, self._now_s)
        for process, count in sorted(more.items()):
            self._asked[process] = self._asked.get(process, 0) + count
            step.awaited.add(process)
            step.more.add(process)
            self._actions.append(Tell(process, orders.More(self.round, count)))
        if more:
            step.took_s.clear()  # it is no measure of the others any more
        return bool(more)

    @property
    def _sources(self) -> list[Process]:
        """Members of the round that are here and make micro-batches."""
        return [who for who, span in self._spans().items() if 0 in span]

    def _pace_of_round(self) -> orders.Pace:
        """The round that is closing counts for what was asked for it: its end is not told yet."""
        closing = 0 if self._closing is None else self._length(self._closing.size)
        shares: tuple[float, ...] = ()
        if len(self._norms) == self.num_stages:
            whole = whole_norm(norm * norm for _, norm in sorted(self._norms.items()))
            shares = tuple(min(1.0, norm / whole) for _, norm in sorted(self._norms.items()))
        length = self._length(self._size)
        return orders.Pace(
            self.ended + closing, length, self.round_steps, self.share, shares, self.turns
        )  # fmt: skip

    @property
    def _size(self) -> int:
        """Micro-batches of the round that is under way."""
        return self._shares.size * max(1, self.steps)

    def _length(self, size: int) -> int:
        """Steps of the schedule that so many micro-batches take."""
        return size // self.step_micro_batches if self.step_micro_batches else self.round_steps

    def _leave_out(self) -> None:
        """A member that is to leave is not in the round that begins, unless a stage would have
        nobody now."""
        if self.leaving is None:
            return
        if self._without_from is None:
            self._without_from = self.round
        if not self._is_served(self._in_round):
            self.leaving = self._without_from = None

    def _is_served(self, members: Mapping[PeerId, Member]) -> bool:
        """Return True if every stage has a member."""
        spans = [member.span for member in members.values()]
        return all(any(stage in span for span in spans) for stage in range(self.num_stages))

    def _step_is_over(self) -> bool:
        """All sources of the step have drained, or are gone."""
        if self.steps and self.step < self.steps:
            self._end_step()
            return True
        if self.closing is not None:
            return False
        self._is_running = False
        self._count(self._under_way.drained_s)
        self._under_way.awaited.clear()
        absent = {Process(peer, one.boot): one.span for peer, one in self.absent.items()}
        self._closing = Closing(
            self.round, self._size, self._asked, self._spans() | absent, self._voided, self._now_s,
            self._now_s - self._began_s, Paths(self.num_stages, self.visit, self.at_random),
        )  # fmt: skip
        self._tell_all(orders.Close(self.round))
        return True

    def _end_step(self) -> None:
        """STEP or VOID, where steps are flushed."""
        over = (self.round, self.step, self.attempt)
        sources = set(self._shares.sources) & set(self._present())
        is_whole = bool(sources) and not self._under_way.lost and not self._under_way.left
        norm = None
        if is_whole and self.clips:
            if self._under_way.unweighed is None:
                self._under_way.unweighed, self._under_way.asked_s = self._spans(), self._now_s
                self._tell_all(orders.Weigh(*over))
                return
            norm = self._under_way.whole_norm
        if is_whole:
            self.step, self.attempt = self.step + 1, 0
        elif sources and self.attempt + 1 < limits.VOIDS_MAX:
            sources -= self._void_by_themselves(sources)
            self.attempt += 1
            self._voided += self._shares.size
        else:
            self.step = self.steps
        goes_on = self.step < self.steps
        self._count(self._under_way.drained_s)
        self._count(self._under_way.weighed_s)
        self._under_way = StepUnderWay(sources if goes_on else set(), self._now_s)
        before = self._shares.given
        if goes_on:
            self._shares.again(sources, self._now_s)
        for one, share in self._shares.given.items() if goes_on else ():
            void = 0 if is_whole else before.get(one, 0)
            self._asked[one] += max(0, share - void)
        for process in self._everybody():
            share = self._shares.given[process] if goes_on and process in sources else 0
            made = orders.MakeStep(*over, share, norm) if is_whole else orders.Void(*over, share)
            self._actions.append(Tell(process, made))

    def _void_by_themselves(self, sources: set[Process]) -> set[Process]:
        """Sources that have been the only ones to lose something in several attempts: they make
        nothing for the rest of the round, unless nobody else does."""
        step = self._under_way
        if len(step.losers) == 1 and not step.left:
            self._lost_alone.update(step.losers)
        often = {one for one in sources if self._lost_alone[one] >= limits.VOIDS_ALONE}
        for process in often if sources - often else ():
            self._shares.give_up(process)
        return often if sources - often else set()

    # ---- members

    def _check_span(self, span: Span) -> None:
        if not 0 <= span.first <= span.last < self.num_stages:
            raise RemoteFault("span", f"{span} of {self.num_stages} stages")

    def _give_up(self, process: Process) -> None:
        """It is no member any more, and is told so if it ever comes back."""
        if process.peer in self.members:
            self._part(process)
        self.absent.pop(process.peer, None)
        self._actions.append(Tell(process, orders.Departed(process)))
        self._shares.forget(process)
        self._under_way.awaited.discard(process)
        if self._under_way.unweighed:
            self._under_way.unweighed.pop(process, None)
        if self._closing is not None:
            self._closing.unsettled.discard(process)

    def _part(self, process: Process) -> None:
        """The others have to do without it."""
        self._under_way.left |= process.peer in self._in_round
        self._shares.left(process, process not in self._under_way.awaited, self._now_s)
        if self.leaving == process:
            self.leaving = self._without_from = None
        self._tell_all(orders.Departed(process), but=process)
        del self.members[process.peer]

    @property
    def _in_round(self) -> dict[PeerId, Member]:
        """Members, without the one that has left already."""
        members = dict(self.members)
        if self.leaving is not None and self._without_from is not None:
            del members[self.leaving.peer]
        return members

    def _present(self) -> list[Process]:
        return sorted(Process(peer, member.boot) for peer, member in self._in_round.items())

    def _everybody(self) -> list[Process]:
        """All members, also those that are away, who may hear it when they are back."""
        absent = (Process(peer, member.boot) for peer, member in self.absent.items())
        return sorted([*self._present(), *absent])

    def _spans(self) -> dict[Process, Span]:
        return {who: self.members[who.peer].span for who in self._present()}

    def _tell_all(self, order: Order, *, but: Process | None = None) -> None:
        self._actions += [Tell(process, order) for process in self._everybody() if process != but]

"""The coordinator's part of pipelines: it begins rounds and closes them, and keeps their books.

A round ends when all its sources have said DRAINED. Then CLOSE goes to everybody, so that no peer
decides by what it sees that nothing more will come; and whoever has made its last step says what it
has counted (SETTLED). Where steps are free the next round begins at once, and is closed only after
the outcome of the one before. Where steps are flushed, a step is made when all that its sources
have made came back and nobody left meanwhile; else it is void and made again. A gradient that is
clipped is weighed before, as no peer knows all of it. The next round begins after the outcome.

A coordinator that died is not this file's: the round that was under way is closed by the next one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline import orders
from swarmtrain_transport.pipeline.books import Books, books_of, check
from swarmtrain_transport.pipeline.orders import Member, Order
from swarmtrain_transport.pipeline.route import Process, Span


class Tell(msgspec.Struct, frozen=True):
    """Tell a process, after all that it was told before."""

    process: Process
    order: Order


class Booked(msgspec.Struct, frozen=True):
    """All have settled: the ops of the round's stages may be planned. Then `outcome`."""

    books: Books


Action = Tell | Booked


def whole_norm(squares: Iterable[float]) -> float:
    """The norm of a gradient from the squared norms of its parts, added in their order.

    >>> whole_norm([9.0, 16.0])
    5.0
    """
    total = 0.0
    for square in squares:  # in this order: sum() may have another last bit
        total += square
    return math.sqrt(total)


@dataclass(slots=True)
class _Step:
    """A step that is under way; the whole round where steps are free.

    Attributes:
        awaited: sources that have not drained.
        began_s: when they were told of it.
        lost: micro-batches that did not come back.
        left: whether a member left meanwhile.
        unweighed: members that have not told the size of its gradient; None before they are asked.
        squares: of the gradient by stage and member.
    """

    awaited: set[Process]
    began_s: float
    lost: int = 0
    left: bool = False
    unweighed: dict[Process, Span] | None = None
    squares: dict[int, dict[Process, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Rounds:
    """The coordinator's part.

    Args:
        num_stages: of the model.
        share: micro-batches that a source makes in a round, or in a step where they are flushed, on
            average: fast ones make more.
        steps: of a round where they are flushed; 0 where they are free.
        clips: flushed steps are clipped by the norm of the whole gradient.

    Attributes:
        members: who is in the run.
        round, step, attempt: that is under way, or was last.
        closing: the round that is closed and has no outcome yet.
        moving: the member that fetches another stage's state, and its span to come.
    """

    num_stages: int
    share: int
    steps: int = 0
    clips: bool = False
    members: dict[PeerId, Member] = field(default_factory=dict)
    round: int = -1
    step: int = 0
    attempt: int = 0
    closing: int | None = None
    moving: tuple[Process, Span] | None = None
    _may_switch: bool = False
    _is_running: bool = False
    _under_way: _Step = field(default_factory=lambda: _Step(set(), 0.0))
    _shares: dict[Process, int] = field(default_factory=dict)
    _paces: dict[Process, float] = field(default_factory=dict)
    _unsettled: dict[Process, Span] = field(default_factory=dict)
    _settled: dict[Process, orders.Settled] = field(default_factory=dict)
    _is_booked: bool = False
    _now_s: float = 0.0
    _actions: list[Action] = field(default_factory=list)

    def joined(self, process: Process, member: Member, now_s: float) -> tuple[Action, ...]:
        """A process is in, with its stages' newest state."""
        self._now_s = now_s
        known = self.members.get(process.peer)
        if known is not None:
            if known.boot == process.boot:
                return ()
            self._leave(Process(process.peer, known.boot))
        self.members[process.peer] = member
        self._tell_all(orders.Joined(process.peer, member), but=process)
        oldest = max(0, self.round + (not self._is_running))
        step = (self.step, self.attempt) if self._is_running else (0, 0)
        welcome = orders.Welcome(dict(self.members), oldest, *step, self._is_running)
        self._actions.append(Tell(process, welcome))
        return self._went_on()

    def departed(self, process: Process, now_s: float) -> tuple[Action, ...]:
        """A process is gone: by its word, by silence, or because the organiser says so."""
        self._now_s = now_s
        member = self.members.get(process.peer)
        if member is None or member.boot != process.boot:
            return ()
        self._leave(process)
        return self._went_on()

    def drained(self, process: Process, report: orders.Drained, now_s: float) -> tuple[Action, ...]:
        """A source says that all it had to make has ended."""
        self._now_s = now_s
        fence = (report.round, report.step, report.attempt)
        is_awaited = process in self._under_way.awaited
        if self._is_running and is_awaited and fence == (self.round, self.step, self.attempt):
            self._under_way.awaited.discard(process)
            self._under_way.lost += report.lost
            took_s = now_s - self._under_way.began_s
            ended = self._shares[process] - min(report.lost, self._shares[process])
            self._paces[process] = ended / took_s if took_s > 0 else math.inf
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
        if process in self._unsettled and report.round == self.closing:
            check(report, self._unsettled[process])
            del self._unsettled[process]
            self._settled[process] = report
        return self._went_on()

    def outcome(self, round: int, now_s: float) -> tuple[Action, ...]:
        """The ops of all stages that were booked have their outcome."""
        self._now_s = now_s
        if round == self.closing and self._is_booked:
            self.closing = None
        return self._went_on()

    def move(self, process: Process, span: Span) -> tuple[Action, ...]:
        """A member is to serve other stages: after it has fetched their state, from a round's begin
        on. One at a time; nothing is done where another one is under way, or where nobody would
        serve what it leaves."""
        member = self.members.get(process.peer)
        if self.moving is not None or member is None or member.boot != process.boot:
            return ()
        after = self.members | {process.peer: Member(process.boot, span)}
        if span == member.span or not self._is_served(after):
            return ()
        self.moving, self._may_switch = (process, span), False
        return (Tell(process, orders.Move(span)),)

    def fetched(self, process: Process, report: orders.Fetched, now_s: float) -> tuple[Action, ...]:
        """A member has the state of the stages that it is to serve."""
        self._now_s = now_s
        if self.moving == (process, report.span):
            self._may_switch = True
        return self._went_on()

    # ---- rounds and steps

    def _went_on(self) -> tuple[Action, ...]:
        """All that follows from what has happened."""
        while self._advance():
            pass
        actions, self._actions = tuple(self._actions), []
        return actions

    def _advance(self) -> bool:
        """One more transition; False if there is none."""
        if self.closing is not None and not self._unsettled and not self._is_booked:
            self._is_booked = True
            self._actions.append(Booked(books_of(self.closing, self.num_stages, self._settled)))
            return True
        if self._is_running:
            is_awaited = self._under_way.awaited or self._under_way.unweighed
            return not is_awaited and self._step_is_over()
        if self.closing is not None and self.steps:
            return False
        return self._begin()

    def _begin(self) -> bool:
        if not self._is_served(self.members):
            return False
        self._switch()
        sources = {
            Process(peer, member.boot) for peer, member in self.members.items() if 0 in member.span
        }
        self.round += 1
        self.step = self.attempt = 0
        self._is_running = True
        self._shares = self._shares_of(sources)
        self._under_way = _Step(set(sources), self._now_s)
        for process in self._present():
            share = self._shares.get(process, 0)
            begin = orders.Begin(self.round, share, dict(self.members))
            self._actions.append(Tell(process, begin))
        return True

    def _shares_of(self, sources: set[Process]) -> dict[Process, int]:
        """The round's micro-batches, by what each source brought to its end in a second of the last
        round: so they are done together. By our own clock, as far as the middle one allows; one
        that has shown nothing counts as the middle one."""
        known = [pace for one, pace in self._paces.items() if one in sources and pace]
        middle = median_low(known) if known else math.inf
        if middle == math.inf:
            return dict.fromkeys(sorted(sources), self.share)
        least, most = middle / limits.PACE_SPREAD, middle * limits.PACE_SPREAD
        weights = {
            one: min(max(self._paces.get(one, middle), least), most) for one in sorted(sources)
        }
        total, whole = self.share * len(sources), sum(weights.values())
        parts = {one: total * weight / whole for one, weight in weights.items()}
        shares = {one: max(1, int(part)) for one, part in parts.items()}
        by_rest = sorted(parts, key=lambda one: (shares[one] - parts[one], one))
        for one in by_rest[: max(0, total - sum(shares.values()))]:
            shares[one] += 1
        return shares

    def _switch(self) -> None:
        """A member that has fetched another stage's state serves it from this round on, unless its
        old stage would have nobody now."""
        if self.moving is None or not self._may_switch:
            return
        process, span = self.moving
        after = self.members | {process.peer: Member(process.boot, span)}
        if self._is_served(after):
            self.members = after
        self.moving = None

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
        self.closing, self._is_booked = self.round, False
        self._unsettled = self._spans()
        self._settled = {}
        self._tell_all(orders.Close(self.round))
        return True

    def _end_step(self) -> None:
        """STEP or VOID, where steps are flushed."""
        over = (self.round, self.step, self.attempt)
        sources = self._shares.keys() & set(self._present())
        is_whole = bool(sources) and not self._under_way.lost and not self._under_way.left
        norm = None
        if is_whole and self.clips:
            if self._under_way.unweighed is None:
                self._under_way.unweighed = self._spans()
                self._tell_all(orders.Weigh(*over))
                return
            norm = self._norm()
        if is_whole:
            self.step, self.attempt = self.step + 1, 0
        elif sources:
            self.attempt += 1
        else:
            self.step = self.steps
        goes_on = self.step < self.steps
        self._under_way = _Step(sources if goes_on else set(), self._now_s)
        for process in self._present():
            share = self._shares[process] if goes_on and process in sources else 0
            made = orders.MakeStep(*over, share, norm) if is_whole else orders.Void(*over, share)
            self._actions.append(Tell(process, made))

    def _norm(self) -> float:
        """The norm of the step's whole gradient. A stage has the low median of its members'
        squares: no single one of several chooses how far the others step."""
        squares = sorted(self._under_way.squares.items())
        return whole_norm([median_low(stage.values()) for _, stage in squares])

    # ---- members

    def _leave(self, process: Process) -> None:
        self._tell_all(orders.Departed(process))
        del self.members[process.peer]
        self._paces.pop(process, None)
        self._under_way.awaited.discard(process)
        self._under_way.left = True
        if self._under_way.unweighed:
            self._under_way.unweighed.pop(process, None)
        self._unsettled.pop(process, None)
        if self.moving is not None and self.moving[0] == process:
            self.moving = None

    def _present(self) -> list[Process]:
        return sorted(Process(peer, member.boot) for peer, member in self.members.items())

    def _spans(self) -> dict[Process, Span]:
        return {who: self.members[who.peer].span for who in self._present()}

    def _tell_all(self, order: Order, *, but: Process | None = None) -> None:
        self._actions += [Tell(process, order) for process in self._present() if process != but]

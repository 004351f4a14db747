"""The coordinator's side of one op, of whatever kind: the next record, and when to ask for it.

`decide` is a function of (what is logged, what was reported, who is alive, the time) to the next
record body or None. The caller logs it and asks again, so every decision is durable before
anything follows from it, and a restarted coordinator that replays the log and hears the reports
again goes on without deciding twice (protocol.md T4 to T9, T14).

    SCATTER --FREEZE--> GATHER --COMMIT--> ENDED        SKIP ends an op from either phase

A slice has the phases of its op until it is reassigned: then its contributions are awaited once
more (SCATTER) until SFREEZE names them.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum

from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.coordinator.ops import lateness
from swarmtrain_transport.coordinator.ops.faults import Moment
from swarmtrain_transport.coordinator.ops.policies import POLICIES
from swarmtrain_transport.coordinator.ops.reassignment import relieve, slice_freeze
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.coordinator.ops.slicing import Detours
from swarmtrain_transport.coordinator.ops.timers import Pace, Timers, most_arrived_s
from swarmtrain_transport.ledger.fold import OpDecision, OpView
from swarmtrain_transport.ledger.pairing import least_in
from swarmtrain_transport.ledger.waits import Waits, add
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign, Skip, SliceFreeze


class Phase(Enum):
    """Progress of an op, or of one slice of it."""

    SCATTER = "contributions are on their way"
    GATHER = "contributors are named, results are on their way"
    ENDED = "it has its outcome"


_TRANSITIONS: Mapping[Phase, Mapping[type, Phase]] = {
    Phase.SCATTER: {Reassign: Phase.SCATTER, Freeze: Phase.GATHER, Skip: Phase.ENDED},
    Phase.GATHER: {
        Reassign: Phase.GATHER,
        SliceFreeze: Phase.GATHER,
        Commit: Phase.ENDED,
        Skip: Phase.ENDED,
    },
    Phase.ENDED: {},
}
"""Records that may follow in each phase, and the phase that they lead to."""

_OF_SLICES: Mapping[type, frozenset[Phase]] = {
    Reassign: frozenset({Phase.SCATTER, Phase.GATHER}),
    SliceFreeze: frozenset({Phase.SCATTER}),
    Commit: frozenset({Phase.GATHER}),
}
"""Phases in which a slice may be that a record names; COMMIT names all."""


class OpDecider:
    """One op in this term.

    Args:
        view: the ledger's view of the op; it changes as decisions are folded.
        now_s: start of the op, or of this term's part of it.

    Attributes:
        reports: reports of peers on it.
        timers: deadlines of the op.
    """

    def __init__(self, view: OpView, now_s: float, reports: Reports | None = None) -> None:
        self.view = view
        self.reports = reports or Reports(view)
        self.timers = Timers(now_s, view.plan.deadline_s)
        self._policy = POLICIES[view.plan.kind]
        self._seen = self.phase
        self._frozen_s = now_s
        self._grace_s = math.inf
        self._idle: tuple[AbstractSet[PeerId], int, float] | None = None
        """With these alive and so much reported nothing falls due before this time."""

    @property
    def phase(self) -> Phase:
        """Phase of the op by the ledger."""
        if self.view.outcome is not None:
            return Phase.ENDED
        return Phase.SCATTER if self.view.frozen is None else Phase.GATHER

    def phase_of(self, index: int) -> Phase:
        """Return the phase of one slice."""
        is_open = self.view.given_sets[index] is None
        return Phase.SCATTER if is_open else self.phase

    def is_unchanged(self, alive: AbstractSet[PeerId], now_s: float) -> bool:
        """Return True if nothing has happened since `decide` found nothing to decide."""
        if self._idle is None:
            return False
        known_alive, changes, until_s = self._idle
        is_same = changes == self.reports.changes and now_s < until_s
        return is_same and (alive is known_alive or alive == known_alive)

    def decide(
        self,
        alive: AbstractSet[PeerId],
        now_s: float,
        lives: Mapping[PeerId, LifeLine] | None = None,
        detours: Callable[[], Detours] = dict,
    ) -> OpDecision | None:
        """The next record of this op, or None when there is nothing to decide yet.

        Args:
            alive: peers that the failure detector holds to be alive.
            now_s: the time.
            lives: life lines of the failure detector; only told, never decided upon.
            detours: tells which pairs have no direct way, if that is asked.
        """
        before, self._seen = self._seen, self.phase
        assert self._seen in (before, *_TRANSITIONS[before].values()), (before, self._seen)
        if self._seen is Phase.ENDED:
            return None
        if self.is_unchanged(alive, now_s):
            return None
        live = (self.view.boots.keys() & alive) - self.reports.lost
        at = Moment(self.reports, self.timers, live, now_s, lives or {}, detours)
        decision = self._next(at)
        if decision is None:
            self._grace_s = lateness.next_s(at)
            later_s = (time_s for time_s in self.wakeups() if time_s > now_s)
            self._idle = (frozenset(alive), self.reports.changes, min(later_s, default=now_s))
            return None
        self._idle = None
        self._check(decision)
        if isinstance(decision, Freeze):
            self._frozen_s = now_s
            self.timers.given_s = self.reports.half_given_s() - self.timers.start_s
        elif isinstance(decision, Reassign):
            self.timers.reassigned(decision.slice_index, now_s)
        return decision

    def wakeups(self) -> list[float]:
        """Every moment at which a decision may fall due."""
        return [*self.timers.wakeups(), self._grace_s]

    def _next(self, at: Moment) -> OpDecision | None:
        decision = self._policy.skip(at) or relieve(at)
        if decision is not None:
            return decision
        if self.phase is Phase.SCATTER:
            return self._policy.freeze(at)
        return slice_freeze(at) or self._policy.commit(at)

    def _check(self, decision: OpDecision) -> None:
        """Nothing is decided that the phase of op and slice does not allow (I6)."""
        assert type(decision) in _TRANSITIONS[self.phase], (self.phase, decision)
        if isinstance(decision, Reassign | SliceFreeze):
            named = [decision.slice_index]
        else:
            named = list(range(len(self.view.owners))) if isinstance(decision, Commit) else []
        for index in named:
            assert self.phase_of(index) in _OF_SLICES[type(decision)], (index, decision)
        if isinstance(decision, SliceFreeze):
            assert set(decision.contributors) <= set(self.view.frozen or ()), decision
        if isinstance(decision, Freeze) or (
            isinstance(decision, SliceFreeze) and self.view.cells.count == 1
        ):
            assert len(decision.contributors) >= least_in(self.view.plan), decision

    def is_with(self, peer: PeerId, commit: Commit) -> bool:
        """Return True if a member holds all that COMMIT is about to name."""
        named = [index for index, one in enumerate(commit.slices) if one.contributors]
        return all(self.reports.is_with(index, {peer}) for index in named)

    # ---- what is measured

    def waits(self, alive: AbstractSet[PeerId], now_s: float) -> Waits:
        """Return for how long, in seconds, the others have waited for each since the PLAN."""
        live = (self.view.boots.keys() & alive) - self.reports.lost
        at = Moment(self.reports, self.timers, live, now_s, {})
        frozen_s = self._frozen_s if self.view.frozen is not None else now_s
        waits = lateness.of_contributions(at, frozen_s)
        for peer, seconds in lateness.of_results(at, frozen_s).items():
            add(waits, peer, seconds)
        return waits

    def unheard(self) -> set[tuple[PeerId, PeerId]]:
        """Return each contributor that has published, with each owner that lacks a part of it."""
        found, reports = set(), self.reports
        for transfer in reports.transfers:
            owner = self.view.owners[transfer.index]
            came = reports.came_s.get((transfer.index, self.view.attempts[transfer.index]), {})
            lacking = reports.signed_s.keys() & set(transfer.givers) - {owner} - came.keys()
            found |= {(giver, owner) for giver in lacking}
        return found

    def teach(self, pace: Pace, now_s: float) -> None:
        """The op has ended: what it says of how long the next one may take.

        Measured is how long most contributions took to be whole with most owners, and how long most
        contributors took to hold most of the result, if this term saw all of it: from FREEZE or,
        where a slice had to go to somebody else, from then on. Waiting for its first owner is
        nothing that anybody needed, nor is waiting for one owner that takes its time. For whom
        nobody waits sets no pace, nor do reports of before records were adopted, or of before a
        stop of this process: the timers have begun anew since.
        """
        reports, late = self.reports, set(self.view.plan.unawaited)
        frozen = [peer for peer in self.view.frozen or () if peer not in late]
        awaited = reports.awaited - late
        given_s = [moment_s for peer, moment_s in reports.given_s.items() if peer in awaited]
        scatter_s = most_arrived_s(given_s, len(awaited))
        held = [moment_s for peer in frozen if (moment_s := self._held_most_s(peer)) is not None]
        gather_s = most_arrived_s(held, len(frozen))
        if isinstance(self.view.outcome, Skip):
            if now_s >= self.timers.scatter_s:
                pace.was_too_short(self.view.plan.deadline_s)
        elif scatter_s is None or gather_s is None:
            pass  # too few have told
        elif self.timers.start_s <= scatter_s <= self._frozen_s:
            starts_s = (self._frozen_s, *self.timers.assigned_s.values())
            began_s = max(
                (start_s for start_s in starts_s if start_s <= gather_s), default=gather_s
            )
            pace.measured(scatter_s - self.timers.start_s, gather_s - began_s)

    def _held_most_s(self, peer: PeerId) -> float | None:
        """Return when a contributor held most of what it was to hold, None if it has not said
        so."""
        tries = enumerate(self.view.attempts)
        held = [self.reports.held_s.get(slice_try, {}).get(peer) for slice_try in tries]
        told = [moment_s for moment_s in held if moment_s is not None]
        return most_arrived_s(told, self._policy.num_results(self.view))

"""The coordinator's side of one op, whatever its kind: when it is asked, and what it is told.

`decide` is a function of (what is logged, what was reported, who is alive, the time) to the next
record body or None. The caller logs it and asks again, so every decision is durable before
anything follows from it, and a restarted coordinator that replays the log and hears the reports
again goes on without deciding twice (protocol.md T4 to T9, T14). What is decided is the kind's
affair: `operation` for means, `gather_operation` for gathers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.arrivals import SliceTry
from swarmtrain_transport.coordinator.failure import LifeLine
from swarmtrain_transport.coordinator.reports import Reports
from swarmtrain_transport.coordinator.timers import Pace, Timers, most_arrived_s
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Reassign,
    Skip,
    SliceFreeze,
    Times,
)

Decision = Reassign | Freeze | SliceFreeze | Commit | Skip


class Decisions(Reports, ABC):
    """One op in this term: what was reported of it, and what follows.

    Args:
        view: the ledger's view of the op; it changes as decisions are folded.
        now_s: start of the op, or of this term's part of it.
    """

    def __init__(self, view: OpView, now_s: float) -> None:
        super().__init__(view, now_s)
        self.timers = Timers(now_s, view.plan.deadline_s)
        self._frozen_s = now_s
        self._lives: Mapping[PeerId, LifeLine] = {}

    def decide(
        self,
        alive: AbstractSet[PeerId],
        now_s: float,
        lives: Mapping[PeerId, LifeLine] | None = None,
    ) -> Decision | None:
        """The next record of this op, or None when there is nothing to decide yet.

        Args:
            alive: peers that the failure detector holds to be alive.
            now_s: the time.
            lives: what the failure detector knows; only told, never decided upon.
        """
        if self.view.outcome is not None:
            return None
        self._now_s = now_s
        if self._idle is not None and now_s < self._idle[1] and alive == self._idle[0]:
            return None
        self._lives = lives or {}
        decision = self._decide((set(alive) & set(self.view.boots)) - self.lost, now_s)
        later_s = (time_s for time_s in self.timers.wakeups() if time_s > now_s)
        self._idle = (frozenset(alive), min(later_s, default=now_s)) if decision is None else None
        if isinstance(decision, Freeze):
            self._frozen_s = now_s
            times = {peer: self._times(peer) for peer in decision.excluded}
            decision = msgspec.structs.replace(decision, times=times)
        return decision

    @abstractmethod
    def _decide(self, live: set[PeerId], now_s: float) -> Decision | None:
        """The next record, given who of the op's members is alive."""

    # ---- what is measured

    def teach(self, pace: Pace, now_s: float) -> None:
        """The op has ended: what it says of how long the next one may take.

        Measured is how long most contributions took to be whole with most owners, and how long most
        contributors took to hold most of the result, if this term saw all of it: from FREEZE or,
        where a slice had to go to somebody else, from then on. Waiting for its first owner is
        nothing that anybody needed, nor is waiting for one owner that takes its time.
        """
        outcome, frozen = self.view.outcome, self.view.frozen or ()
        scatter_s = most_arrived_s(list(self.arrivals.whole_s.values()), self._num_awaited)
        held = [moment_s for peer in frozen if (moment_s := self._held_most_s(peer)) is not None]
        gather_s = most_arrived_s(held, len(frozen))
        if isinstance(outcome, Skip):
            if now_s >= self.timers.scatter_s:
                pace.was_too_short(self.view.plan.deadline_s)
        elif scatter_s is not None and gather_s is not None and scatter_s <= self._frozen_s:
            starts_s = (self._frozen_s, *self.timers.assigned_s.values())
            began_s = max(
                (start_s for start_s in starts_s if start_s <= gather_s), default=gather_s
            )
            pace.measured(scatter_s - self.timers.start_s, gather_s - began_s)

    @property
    def _num_awaited(self) -> int:
        """How many contributions the op waits for."""
        return len(self.view.weights)

    def _held_most_s(self, peer: PeerId) -> float | None:
        """When a contributor held most of what it was to hold, None if it has not said so."""
        tries = enumerate(self.view.attempts)
        held = [self.whole_s.get(slice_try, {}).get(peer) for slice_try in tries]
        return most_arrived_s([moment_s for moment_s in held if moment_s is not None],
                              self._num_published)  # fmt: skip

    @property
    def _num_published(self) -> int:
        """How many slices' results a contributor is to hold."""
        return len(self.view.owners)

    def _lacking(self, peers: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those of `peers` that lack a slice that more than half of `peers` have held
        whole for as long as a slice may take. What has come through later is its owner's lateness;
        else an owner could give it to a few in the last moment, and the others would be to blame.
        """
        lacking = set[PeerId]()
        for slice_try in enumerate(self.view.attempts):
            due_s = self._common_s(slice_try, peers) + limits.D_REPAIR * self.view.plan.deadline_s
            if due_s <= self._now_s:
                lacking |= peers - self.whole_s[slice_try].keys()
        return lacking

    def _common_s(self, slice_try: SliceTry, peers: AbstractSet[PeerId]) -> float:
        """Since when more than half of these hold all of a slice."""
        times = self.whole_s.get(slice_try, {})
        held = sorted(times[peer] for peer in peers & times.keys())
        return held[len(peers) // 2] if len(held) > len(peers) // 2 else math.inf

    def _needed_elsewhere(self, contributors: AbstractSet[PeerId]) -> int:
        """How many others must hold a slice for it to have come through: where there are enough,
        two, so that its owner and one other cannot make it so by their word."""
        return min(limits.RESULT_HOLDERS - 1, max(1, len(contributors) - 2))

    # ---- why somebody is left out

    def _times(self, peer: PeerId) -> Times:
        """What is known of a peer that FREEZE leaves out."""
        start_s = self.timers.start_s
        complete, owners = self._given(peer)
        life = self._lives.get(peer)
        return Times(
            complete=complete,
            owners=owners,
            last_s=_since(start_s, self.arrivals.last_s.get(peer)),
            heard_s=_since(start_s, life.heard_s if life is not None else None),
            frozen_s=_since(start_s, self._now_s),
            deadline_s=round(self.timers.scatter_s - start_s, 3),
        )

    def _given(self, peer: PeerId) -> tuple[int, int]:
        """How many of those who are to have a contribution have it, and how many they are."""
        rows = self.arrivals.rows()
        return sum(peer in row for row in rows), len(rows)

    def _fault(self, peer: PeerId) -> str:
        """Why a peer is not counted on: lost, deaf or idle."""
        life = self._lives.get(peer)
        return "lost" if life is None or peer in self.lost else life.fault(self._now_s)


def _since(start_s: float, moment_s: float | None) -> float:
    """Seconds after PLAN to the millisecond, -1 for never or before."""
    return -1.0 if moment_s is None or moment_s < start_s else round(moment_s - start_s, 3)

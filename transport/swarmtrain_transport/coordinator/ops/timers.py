"""Times at which things fall due in one op, and the longest that an op may take at all.

An op has one deadline, D_op. PLAN carries it, everything else is a fraction of it (protocol.md,
TIMERS). It follows what was measured: how long contributions and results take to arrive at most
peers, never how long the swarm had to wait for somebody, or one dead peer after another would
stretch the deadline up to its cap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmtrain_transport import limits


def most_arrived_s(times_s: Sequence[float], count: int) -> float | None:
    """Return when most of `count` (`most_of`) had arrived; None if fewer have.

    Args:
        times_s: moments of arrival, one each, in any order.
        count: number of arrivals that were awaited.
    """
    needed = most_of(count)
    return sorted(times_s)[needed - 1] if len(times_s) >= needed else None


def most_of(count: int) -> int:
    """Three quarters of so many; two of three, where the slowest alone would be the measure. Of
    two it is both: the one that has the thinner line needs its time, and nobody can tell whether
    it takes more."""
    return 2 if count == 3 else max(1, math.ceil(limits.ARRIVED_SHARE * count))


@dataclass(slots=True)
class Pace:
    """Pace of recent ops: moving averages of the two halves of an op.

    Attributes:
        scatter_s: time from PLAN until most contributions were whole at all owners.
        gather_s: time from FREEZE until most contributors held the whole result.
    """

    scatter_s: float | None = None
    gather_s: float | None = None

    def measured(self, scatter_s: float, gather_s: float) -> None:
        """An op was committed."""
        keep = limits.PACE_KEEP
        old_scatter, old_gather = self.scatter_s, self.gather_s
        if old_scatter is None or old_gather is None:
            self.scatter_s, self.gather_s = scatter_s, gather_s
        else:
            self.scatter_s = keep * old_scatter + (1 - keep) * scatter_s
            self.gather_s = keep * old_gather + (1 - keep) * gather_s

    def was_too_short(self, deadline_s: float) -> None:
        """An op ran out of time: a network that is slower now must not skip for ever.

        Args:
            deadline_s: D_op of that op.
        """
        fitting_s = limits.PACE_RELIEF * deadline_s / limits.DEADLINE_FACTOR
        self.scatter_s = max(self.scatter_s or 0.0, fitting_s * limits.D_SCATTER)
        self.gather_s = max(self.gather_s or 0.0, fitting_s * (limits.D_GATHER - limits.D_SCATTER))

    def deadline_s(self, floor_s: float, cap_s: float) -> float:
        """D_op of the next op: either half may take DEADLINE_FACTOR times what it took.

        Args:
            floor_s, cap_s: the only settings.
        """
        if self.scatter_s is None or self.gather_s is None:
            return cap_s
        scatter_s = self.scatter_s / limits.D_SCATTER
        gather_s = self.gather_s / (limits.D_GATHER - limits.D_SCATTER)
        return min(cap_s, max(floor_s, limits.DEADLINE_FACTOR * max(scatter_s, gather_s)))


@dataclass(slots=True)
class Timers:
    """The op's deadlines. All derive from D_op and restart at full length with the coordinator.

    Attributes:
        start_s: time when the op (or this term's part of it) began.
        deadline_s: D_op as PLAN says it.
        extended_s: seconds that deaths have added to it.
        given_s: seconds that more than half of the first owners needed for most contributions.
        assigned_s: time of the last REASSIGN per slice.
    """

    start_s: float
    deadline_s: float
    extended_s: float = 0.0
    given_s: float = 0.0
    assigned_s: dict[int, float] = field(default_factory=dict)

    def reassigned(self, slice_index: int, now_s: float) -> None:
        """A death costs the op at most half a deadline, in total at most one."""
        room = (limits.DEADLINE_EXTENSION_MAX - 1) * self.deadline_s
        self.extended_s = min(room, self.extended_s + self.deadline_s / 2)
        self.assigned_s[slice_index] = now_s

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: nothing that came then was late."""
        self.start_s += absent_s
        for index in self.assigned_s:
            self.assigned_s[index] += absent_s

    @property
    def scatter_s(self) -> float:
        """FREEZE happens at this time at the latest."""
        return self.start_s + limits.D_SCATTER * self.deadline_s

    @property
    def gather_s(self) -> float:
        """From here on COMMIT needs holders, not everybody."""
        return self.end_s - (1 - limits.D_GATHER) * self.deadline_s

    @property
    def silent_s(self) -> float:
        """From here on an owner is relieved that has published nothing, or gives no sums. That is
        D_gather; earlier where deaths have used up what extends the op, as the slice is made again
        in what is left."""
        room = (limits.DEADLINE_EXTENSION_MAX - 1) * self.deadline_s - self.extended_s
        return self.gather_s - max(0.0, self.deadline_s / 2 - room)

    @property
    def spread_s(self) -> float:
        """From here on an owner is relieved whose publication has not come through. Where that is
        before D_gather it is later than for a silent one: a new owner makes void what may only
        just have come."""
        return min(self.gather_s, self.last_s - (1 - limits.D_GATHER) * self.deadline_s)

    @property
    def last_s(self) -> float:
        """Until here one more owner can still make a slice, and peers fetch it, before D_op,
        extended as the new owner would extend it."""
        most_s = self.start_s + limits.DEADLINE_EXTENSION_MAX * self.deadline_s
        end_s = min(most_s, self.end_s + self.deadline_s / 2)
        return end_s - 2 * limits.D_REPAIR * self.deadline_s

    @property
    def end_s(self) -> float:
        """D_op itself: SKIP."""
        return self.start_s + self.deadline_s + self.extended_s

    def repair_s(self, slice_index: int) -> float:
        """SFREEZE of a reassigned slice happens at this time at the latest. If the first owners
        needed longer than D_repair, as where D_op is at its cap, a new one does, too."""
        last = self.assigned_s.get(slice_index, self.start_s)
        waits_s = limits.D_REPAIR * self.deadline_s
        if self.given_s > waits_s:
            needed_s = (1 + limits.LATE_GRACE) * self.given_s
            waits_s = min(needed_s, limits.D_SCATTER * self.deadline_s)
        return last + waits_s

    def stuck_s(self, slice_index: int) -> float:
        """From here on a slice's owner, the first or a new one, is relieved if it is stuck."""
        last = self.assigned_s.get(slice_index)
        if last is None:
            return self.silent_s
        return max(self.silent_s, self.repair_s(slice_index) + limits.D_REPAIR * self.deadline_s)

    def wakeups(self) -> list[float]:
        """Every moment at which a decision may fall due."""
        times = [self.scatter_s, self.silent_s, self.spread_s, self.gather_s, self.end_s]
        for index in self.assigned_s:
            times += [self.repair_s(index), self.stuck_s(index)]
        return times

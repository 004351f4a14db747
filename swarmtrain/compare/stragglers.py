"""Stragglers: peers that are slow for some steps, and what is done about those who are late.

A peer is slow in bursts (Gilbert and Elliott's two states). The others wait for it, or leave it
out, or its work is coded: peers in groups of `tolerates + 1` have the same parts of a step's batch,
so one of each group suffices, and every peer computes as many parts (fractional repetition). Or it
is repeated: who was needed and late makes the same part again under the next step, which is that of
another model, as two are trained in turn; so a group that is late as a whole is waited for a step
later, by when its burst may be over. Coded and repeated sums have all parts: what is learned
is what is learned without stragglers, and only the seconds are modelled here.

References:
    Tandon et al., Gradient Coding, arXiv 1612.03301, section 3 (fractional repetition).
    Krishnan, Ebrahimi, Khisti, Sequential Gradient Coding for Straggler Mitigation, ICLR 2023,
    section 3.2 (selective repetition, SR-SGC), with bursts of one step, B = 1.
"""

import math
import random
from collections.abc import Sequence

from swarmtrain.compare.plan import Plan

PATIENCE = 2.0
"""A straggler takes longer than so many times the fastest (1 + mu, with mu = 1 as there)."""


class Clocks:
    """Times of all peers since the last exchange, and how long the exchange waits for them.

    Args:
        plan: with stragglers.

    Attributes:
        left_out: indices of peers that an exchange which begins now would leave out.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.stragglers is not None
        self._slow = plan.stragglers
        self._late, self._group = plan.late, plan.tolerates + 1
        self._rng = random.Random(f"stragglers {plan.seed}")
        self._times = [1 / speed for speed in plan.relative_speeds()]
        self._is_slow = [self._rng.random() < self._slow.share for _ in self._times]
        self._since = [0.0] * plan.peers
        self._passed = 0.0
        self._owed: list[int] = []
        self.left_out: tuple[int, ...] = ()

    def stepped(self) -> float:
        """Let everybody make an inner step: return the time that passes more, in steps of the
        fastest peer."""
        times = self._drawn()
        if self._late == "repeated":
            return self._repeated(times)
        if self._late == "coded":
            first = [min(group) for group in _parted(times, self._group)]
            return self._group * max(first)
        self._since = [one + more for one, more in zip(self._since, times, strict=True)]
        order = sorted(range(len(times)), key=self._since.__getitem__)
        kept = len(order) - (self._group - 1) * (self._late == "leave")
        passed = self._since[order[kept - 1]]
        self.left_out = tuple(i for i in order[kept:] if self._since[i] > passed)
        more, self._passed = passed - self._passed, passed
        return more

    def exchanged(self) -> None:
        """All begin again at the same moment."""
        self._since = [0.0] * len(self._since)
        self._passed = 0.0

    def _drawn(self) -> list[float]:
        """Times of the next step."""
        leaves = 1 / self._slow.burst
        enters = leaves * self._slow.share / (1 - self._slow.share)
        times = []
        for i, time in enumerate(self._times):
            times.append(time * (self._slow.slowness if self._is_slow[i] else 1.0))
            changes = self._rng.random() < (leaves if self._is_slow[i] else enters)
            self._is_slow[i] ^= changes
        return times

    def _repeated(self, times: Sequence[float]) -> float:
        """Make a step in which whoever owes a part of the one before makes that; it lasts until all
        of these are here, and of the others all parts, or all but stragglers'."""
        own = [math.inf if i in self._owed else time for i, time in enumerate(times)]
        ends = min(max(map(min, _parted(own, self._group))), PATIENCE * min(times))
        ends = max([ends, *(times[i] for i in self._owed)])
        is_here = [time <= ends for time in own]
        groups = range(0, len(times), self._group)
        self._owed = [first for first in groups if not any(is_here[first : first + self._group])]
        return self._group * ends


def _parted(times: Sequence[float], size: int) -> list[Sequence[float]]:
    return [times[first : first + size] for first in range(0, len(times), size)]

"""A budget of exchanges: the rounds that end with one, where most do not.

A run of R rounds that ends with a merge has B exchanges before it, and its other rounds are inner
steps alone. All peers work the places out from the run's settings, so nobody is told. Not here:
what is exchanged.

References:
    On the Surprising Effectiveness of a Single Global Merging in Decentralized Learning, ICLR 2026:
    a budget is better spent late than early, as long as it is not nothing. The abstract was read.
"""

from dataclasses import dataclass
from typing import Literal

When = Literal["late", "even", "early"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Places of a run's exchanges, the last merge among them.

    Attributes:
        rounds: R, rounds of the run.
        exchanges: B, exchanges before the last merge, fewer than rounds.
        when: late for rounds R - B to R - 1, early for 1 to B, even for every (R / (B + 1))-th.
    """

    rounds: int
    exchanges: int
    when: When = "late"

    @property
    def ops(self) -> int:
        """Number of ops of the run."""
        return self.exchanges + 1

    def round_of(self, op: int) -> int:
        """The round, counted from 1, that ends with op `op`. Of a run that was extended each round
        after the merge has one.

        >>> [Budget(10, 2, when).round_of(op) for when in ("late", "early") for op in (1, 2, 3, 4)]
        [8, 9, 10, 11, 1, 2, 10, 11]
        >>> [Budget(10, 2, "even").round_of(op) for op in (0, 1, 2, 3)]
        [0, 3, 6, 10]
        """
        if op > self.exchanges:
            return self.rounds + op - self.ops
        if op < 1 or self.when == "early":
            return max(0, op)
        if self.when == "late":
            return self.rounds - self.ops + op
        return op * self.rounds // self.ops

    def rounds_alone(self, op: int) -> int:
        """Rounds without an exchange between op `op` and the one before it."""
        return self.round_of(op) - self.round_of(op - 1) - 1

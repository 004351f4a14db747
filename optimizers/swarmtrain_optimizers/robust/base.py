"""The contract of a robust rule: one vector from many, of which some may be hostile.

A rule replaces the weighted mean of an op where `exact` is false (protocol.md rule 7): the owner
keeps the contributions and computes once, after it is known who is in. Some rules look at every
coordinate by itself, so each owner computes its slice alone. The others need numbers of whole
vectors: every owner makes `scalars` of its slice, these are added up in the order of the slices,
and with the sum each owner computes its slice as if it had seen all.

All rules keep to the following, so that every machine reaches the same bits: float64 sums in a
fixed order, elementwise operations only (protocol.md rule 4), contributors put in an order of their
values before anything is added, and no random draw. Which peers are called first changes nothing.

Counting goes by contributors, not by samples: a median or a number of values to drop that followed
claimed samples would let few peers outvote many. Weights enter where what is left is averaged.

Not here: who is hostile. A rule bounds what anybody can do, it accuses nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor

CONTRIBUTORS_MIN = 3
"""Fewer cannot be told apart: of two that differ, either may be the hostile one."""


class Needs(Enum):
    """Knowledge that a rule needs beyond the coordinates that it computes."""

    COORDINATES = "coordinates"
    """Nothing: owners compute their slices alone."""

    NORMS = "norms"
    """One squared norm per contributor."""

    PRODUCTS = "products"
    """The inner products of all pairs, the previous aggregate included where there is one."""


@dataclass(frozen=True, slots=True)
class ContributorFacts:
    """The fate of one contribution, for reports.

    Attributes:
        is_finite: False where it held NaN or an infinity and was left out; the rest is 0 then.
        clip: the factor in 0..1 that it was scaled by; 1 in rules that do not clip.
        share_kept: the share of it, 0..1, that entered the aggregate; each rule says which share.
    """

    is_finite: bool
    clip: float
    share_kept: float


LEFT_OUT = ContributorFacts(is_finite=False, clip=0.0, share_kept=0.0)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The aggregate that a rule makes of the contributions.

    Attributes:
        values: (num_values,) float32; |x| < 2^-100 is 0 (protocol.md rule 5).
        contributors: one per contribution, in the order in which they were given.
    """

    values: Tensor
    contributors: tuple[ContributorFacts, ...]


class RobustRule(Protocol):
    """One way to aggregate. An instance holds settings only and serves every thread."""

    @property
    def name(self) -> str:
        """The name in settings and reports."""

    @property
    def needs(self) -> Needs:
        """The rule's need of facts about whole vectors."""

    def tolerated(self, num_contributors: int) -> int:
        """Return how many of so many may be hostile before what they can do has no bound any more.

        Raises:
            ValueError: the rule cannot work with so few.
        """

    def scalars(self, rows: Sequence[Tensor], previous: Tensor | None = None) -> Tensor:
        """The numbers that slices have to add up, in the order of the slices.

        Args:
            rows: a slice of every contribution, (slice_values,) float32 each.
            previous: the same slice of the previous aggregate.

        Returns:
            float64: (0,) for `COORDINATES`, (n,) for `NORMS`, (n, n) for `PRODUCTS`, one more
            row and column there if `previous` is given.
        """

    def aggregate(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[int],
        *,
        scalars: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Aggregate:
        """Make one vector from all contributions.

        A contribution with NaN or an infinity is left out whole and counts no more: neither for
        medians nor for how many may be hostile. A rule of `COORDINATES` sees its own slice only
        and leaves it out there.

        Args:
            rows: decoded contributions, (num_values,) float32 on the CPU each, or (n, num_values);
                only read.
            weights: one integer in 1..255 for each (protocol.md rule 2).
            scalars: the sum of `scalars` over all slices; None if `rows` are whole vectors.
            previous: (num_values,) float32, the aggregate of the op before, for rules that begin
                from it; others do not look at it.

        Raises:
            ValueError: shapes, types or weights do not fit, or too few finite contributions are
                left for the rule.
        """

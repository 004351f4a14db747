"""The contract of a robust rule: one vector from many, of which some may be hostile.

A rule replaces the weighted mean of an op where `exact` is false (protocol.md rule 7): the owner
keeps the contributions and computes once, after it is known who is in. Some rules look at every
coordinate by itself, so each owner computes its slice alone. The others need numbers of whole
vectors: every owner makes them of its slice, they are added up in the order of the slices,
and with the sum each owner computes its slice as if it had seen all.

All rules keep to the following, so that every machine reaches the same bits: float64 sums in a
fixed order, elementwise operations only (protocol.md rule 4), contributors put in an order of their
values before anything is added, and no random draw. Which peers are called first changes nothing.

Counting goes by contributors, not by samples: a median or a number of values to drop that followed
claimed samples would let few peers outvote many. Weights enter where what is left is averaged.

Not here: who is hostile. A rule bounds what anybody can do, it accuses nobody.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from torch import Tensor


class Needs(Enum):
    """Knowledge that a rule needs beyond the coordinates that it computes."""

    COORDINATES = "coordinates"
    """Nothing: owners compute their slices alone."""

    NORMS = "norms"
    """One squared norm per contributor."""

    PRODUCTS = "products"
    """The inner products of all pairs, the previous aggregate included where there is one."""


class RobustRule(ABC):
    """One way to aggregate. An instance holds settings only and serves every thread.

    Attributes:
        name: the name in settings and reports.
        needs: the rule's need of facts about whole vectors.
    """

    name: ClassVar[str]
    needs: ClassVar[Needs]

    @abstractmethod
    def aggregate(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[int],
        *,
        scalars: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Make one vector from all contributions: (num_values,) float32, where |x| < 2^-100 is 0
        (protocol.md rule 5).

        A contribution with NaN or an infinity is left out whole and counts no more: neither for
        medians nor for how many may be hostile. A rule of `COORDINATES` sees its own slice only
        and leaves it out there.

        Args:
            rows: decoded contributions, (num_values,) float32 on the CPU each, or (n, num_values);
                only read.
            weights: one integer in 1..255 for each (protocol.md rule 2).
            scalars: sum over all slices of what the rule `needs`, float64; None if `rows` are whole
                vectors. (n,) for `NORMS`, (n, n) for `PRODUCTS`, one more row and column there for
                a `previous` that the rule begins from.
            previous: (num_values,) float32, the aggregate of the op before, for rules that begin
                from it; others do not look at it.

        Raises:
            ValueError: shapes, types or weights do not fit, or too few finite contributions are
                left for the rule.
        """

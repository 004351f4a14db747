"""Trimmed mean: in every coordinate the lowest and the highest values are dropped.

From n finite contributions the `trim` lowest and the `trim` highest are dropped in each coordinate,
with trim = ceil(trim_share n), and the rest is averaged by weight. The rest lies between two honest
values as long as at most `trim` contributors are hostile.

References:
    Yin et al., arXiv 1803.01498, definition 2 (beta is our `trim_share`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.rows import check_enough, check_rows, pieces
from swarmtrain_optimizers.subnormals import flush_tiny_

_ROUNDING = 1e-9
"""Keeps a share such as 0.1 of 30, which is 3.0000000000000004 in floats, from counting as 4."""


@dataclass(frozen=True, slots=True)
class TrimmedMean(RobustRule):
    """The weighted mean of what is left in each coordinate.

    Stands `trim_share` of the contributors, and is computed by each owner for its own slice.
    Ties: equal values are ordered by weight, so of them the lightest are dropped at the low end
    and the heaviest at the high end.

    Args:
        trim_share: share of contributors dropped at each end, above 0 and below 0.5, rounded up.

    Raises:
        ValueError: `trim_share` is outside its range.
    """

    trim_share: float = 0.25

    name: ClassVar[str] = "trimmed-mean"
    needs: ClassVar[Needs] = Needs.COORDINATES

    def __post_init__(self) -> None:
        if not 0 < self.trim_share < 0.5:
            raise ValueError(f"trim_share must be above 0 and below 0.5, it is {self.trim_share}")

    def tolerated(self, num_contributors: int) -> int:
        """Return how many of so many may be hostile: ceil(trim_share n).

        Raises:
            ValueError: dropping twice as many would leave nobody.
        """
        check_enough(num_contributors)
        trim = math.ceil(self.trim_share * num_contributors - _ROUNDING)
        if 2 * trim >= num_contributors:
            raise ValueError(
                f"of {num_contributors} contributions none is left after dropping {trim} at both "
                "ends: more peers or a smaller trim_share is needed"
            )
        return trim

    def aggregate(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[int],
        *,
        scalars: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """See `RobustRule.aggregate`."""
        check_rows(rows, weights)
        places = [place for place, row in enumerate(rows) if bool(torch.isfinite(row).all())]
        trim = self.tolerated(len(places))
        # Stable sorting keeps this order among equal values.
        places.sort(key=lambda place: weights[place])
        by_place = torch.tensor([weights[place] for place in places], dtype=torch.float64)
        out = torch.empty(rows[0].numel(), dtype=torch.float32)
        for piece in pieces(out.numel()):
            values, order = torch.sort(
                torch.stack([rows[place][piece] for place in places]), dim=0, stable=True
            )
            total = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
            total_weight = torch.zeros_like(total)
            for level in range(trim, len(places) - trim):
                weight = by_place[order[level]]
                total.add_(values[level].to(torch.float64).mul_(weight))
                total_weight.add_(weight)
            out[piece] = total.div_(total_weight)
        return flush_tiny_(out)

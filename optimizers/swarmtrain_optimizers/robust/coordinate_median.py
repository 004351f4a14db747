"""Coordinate-wise median: in every coordinate the value in the middle.

With an even number of contributions it is half the sum of the two in the middle. As long as fewer
than half are hostile, every coordinate lies between two honest values. The price is signal: where
honest differences disagree, their median is shorter than their mean, and where most are zero (as in
sparse contributions) it is zero.

References:
    Yin et al., arXiv 1803.01498, definition 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.rows import check_enough, check_rows, pieces
from swarmtrain_optimizers.subnormals import flush_tiny_


@dataclass(frozen=True, slots=True)
class CoordinateMedian(RobustRule):
    """The median of each coordinate; weights are checked, and not used.

    Stands any minority (share 0.5), and is computed by each owner for its own slice. There is no
    weighting: a weighted median would stand a minority of samples only, and samples are claimed.
    """

    name: ClassVar[str] = "median"
    needs: ClassVar[Needs] = Needs.COORDINATES

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
        finite = [row for row in rows if bool(torch.isfinite(row).all())]
        check_enough(len(finite))
        low, high = (len(finite) - 1) // 2, len(finite) // 2
        out = torch.empty(rows[0].numel(), dtype=torch.float32)
        for piece in pieces(out.numel()):
            together = torch.stack([row[piece] for row in finite])
            values = torch.sort(together, dim=0, stable=True).values
            # In float64 the sum of two float32 values cannot overflow.
            middle = values[low].to(torch.float64).add_(values[high].to(torch.float64))
            out[piece] = middle.mul_(0.5)
        return flush_tiny_(out)

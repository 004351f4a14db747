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

from swarmtrain_optimizers.robust.base import LEFT_OUT, Aggregate, ContributorFacts, Needs
from swarmtrain_optimizers.robust.rows import check_enough, check_rows, pieces
from swarmtrain_optimizers.subnormals import flush_tiny_


@dataclass(frozen=True, slots=True)
class CoordinateMedian:
    """The median of each coordinate; weights are checked, and not used.

    Stands any minority (share 0.5), and is computed by each owner for its own slice. There is no
    weighting: a weighted median would stand a minority of samples only, and samples are claimed.
    `share_kept` is the share of coordinates in which a contributor's value was in the middle; where
    values tie it names whoever was given first.
    """

    name: ClassVar[str] = "median"
    needs: ClassVar[Needs] = Needs.COORDINATES

    def tolerated(self, num_contributors: int) -> int:
        """Fewer than half; see `RobustRule`."""
        check_enough(num_contributors)
        return (num_contributors - 1) // 2

    def scalars(self, rows: Sequence[Tensor], previous: Tensor | None = None) -> Tensor:
        """(0,): nothing of whole vectors is needed."""
        check_rows(rows)
        return torch.zeros(0, dtype=torch.float64)

    def aggregate(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[int],
        *,
        scalars: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Aggregate:
        """See `RobustRule.aggregate`."""
        check_rows(rows, weights)
        places = [place for place, row in enumerate(rows) if bool(torch.isfinite(row).all())]
        check_enough(len(places))
        low, high = (len(places) - 1) // 2, len(places) // 2
        used = torch.zeros(len(places), dtype=torch.int64)
        out = torch.empty(rows[0].numel(), dtype=torch.float32)
        for piece in pieces(out.numel()):
            values, order = torch.sort(
                torch.stack([rows[place][piece] for place in places]), dim=0, stable=True
            )
            # In float64 the sum of two float32 values cannot overflow.
            middle = values[low].to(torch.float64).add_(values[high].to(torch.float64))
            out[piece] = middle.mul_(0.5)
            used.add_(torch.bincount(order[low : high + 1].flatten(), minlength=len(places)))
        facts = [LEFT_OUT] * len(rows)
        for place, count in zip(places, used.tolist(), strict=True):
            share = count / max(1, out.numel())
            facts[place] = ContributorFacts(is_finite=True, clip=1.0, share_kept=share)
        return Aggregate(flush_tiny_(out), tuple(facts))

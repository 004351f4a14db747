"""Norm clipping to the median norm: nobody's voice is louder than that of the one in the middle.

With g_r the contributions, w_r their weights, W the sum of weights and tau the median of |g_r|:

    aggregate = sum_r (w_r / W) g_r min(1, tau / |g_r|)

So `hostile` contributors of equal weights move the aggregate by at most 2 hostile / n times tau;
what they say against the others' direction is counted at that size, not dropped. Cheap, keeps
sparse contributions sparse, and leaves honest peers of usual norm as they are: the rule for
compressed contributions with error feedback, where medians of coordinates would be zero.

References:
    Clipping to a fixed norm: Sun et al., arXiv 1911.07963, section 4. To the median of the norms
    as a permissionless run does it: Covenant-72B's trainer on SparseLoCo, arXiv 2508.15706.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.rows import (
    canonical_order,
    check_enough,
    check_rows,
    combined,
    finite_places,
    median,
    squared_norms,
)


def clip_factor(norm: float, bound: float) -> float:
    """min(1, bound / norm); 1 for a zero vector."""
    return 1.0 if norm <= bound else bound / norm


@dataclass(frozen=True, slots=True)
class NormClip(RobustRule):
    """The weighted mean of contributions clipped to the median norm.

    Stands any minority (share 0.5): the median lies among honest norms as long as hostile peers
    are fewer than half. Computed slice by slice once the squared norms of whole vectors are known.
    """

    name: ClassVar[str] = "norm-clip"
    needs: ClassVar[Needs] = Needs.NORMS

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
        squares = squared_norms(rows) if scalars is None else scalars
        if squares.shape != (len(rows),):
            raise ValueError(f"squared norms are {tuple(squares.shape)}, wanted ({len(rows)},)")
        places = finite_places(squares)
        check_enough(len(places))
        norms = {place: math.sqrt(squares[place].item()) for place in places}
        bound = median(list(norms.values()))
        total_weight = sum(weights[place] for place in places)
        order = canonical_order(
            [rows[place] for place in places],
            [(norms[place], float(weights[place])) for place in places],
        )
        ordered = [places[index] for index in order]
        return combined(
            [rows[place] for place in ordered],
            [weights[place] * clip_factor(norms[place], bound) / total_weight for place in ordered],
        )

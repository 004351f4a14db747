"""Centered clipping: contributions are clipped around a centre, which moves towards them.

With g_r the contributions, w_r their weights, W the sum of weights, and v the previous aggregate
(zero where there is none), `iterations` times:

    v <- v + sum_r (w_r / W) (g_r - v) min(1, tau / |g_r - v|)

tau is `radius`, or anew in each iteration the median of |g_r - v|. Once v is near the honest
contributions, tau is their spread, and a hostile one moves v by w_r / W of that spread at most.
Beginning from the previous aggregate is what makes slow attacks cost their makers time; a rule
without memory can be misled a little in every round in the same direction.

Every v is a combination of contributions and the start, so the distances follow from inner
products of whole vectors, and one exchange of those serves all iterations. Near a common value the
distances are then exact to about 1e-8 of the contributions' norm, far below what travels.

References:
    Karimireddy, He, Jaggi, arXiv 2012.10333, algorithm 2 and section 4. There the contributions
    are momenta of peers and tau is a constant; our contributions are sums over a whole round of
    inner steps. tau as the median of distances is ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.norm_clip import clip_factor
from swarmtrain_optimizers.robust.rows import (
    check_enough,
    check_products,
    check_rows,
    combined,
    content_order,
    finite_places,
    inner_products,
    median,
)


@dataclass(frozen=True, slots=True)
class CenteredClip(RobustRule):
    """The centre after some iterations.

    Stands any minority in the sense that its pull is bounded by honest distances (share 0.5); the
    paper's guarantee on how near it stays is for small shares. Computed slice by slice once the
    inner products of whole vectors are known.

    Args:
        radius: tau, in the units of the contributions' norm; None takes the median of distances.
        iterations: number of moves of v. 1 to 3 are usual with a previous aggregate; from zero each
            one halves what two of eight flipped contributors still pull, so five are the default.

    Raises:
        ValueError: `radius` or `iterations` is not positive.
    """

    radius: float | None = None
    iterations: int = 5

    name: ClassVar[str] = "centered-clip"
    needs: ClassVar[Needs] = Needs.PRODUCTS

    def __post_init__(self) -> None:
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive, it is {self.radius}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, it is {self.iterations}")

    def aggregate(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[int],
        *,
        scalars: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """See `RobustRule.aggregate`.

        Raises:
            ValueError: as there, or the previous aggregate is not finite.
        """
        check_rows(rows, weights, previous)
        start = [] if previous is None else [previous]
        table = inner_products([*rows, *start]) if scalars is None else scalars
        check_products(table, len(rows) + len(start))
        places = finite_places(table.diagonal())
        if start:
            if places[-1:] != [len(rows)]:
                raise ValueError("the previous aggregate is not finite")
            places.pop()
        check_enough(len(places))
        ordered = content_order(rows, weights, table, places)
        used = ordered + ([len(rows)] if start else [])
        products = [[table[first, second].item() for second in used] for first in used]
        coefficients = self._centre(products, [weights[place] for place in ordered])
        return combined([*(rows[place] for place in ordered), *start], coefficients)

    def _centre(self, products: list[list[float]], weights: list[int]) -> list[float]:
        """Coefficients of v on the rows (and on the start)."""
        num_rows, total_weight = len(weights), sum(weights)
        centre = [0.0] * num_rows + [1.0] * (len(products) - num_rows)
        for _ in range(self.iterations):
            distances = _distances(products, centre, num_rows)
            bound = median(distances) if self.radius is None else self.radius
            pulls = [
                weight * clip_factor(distance, bound) / total_weight
                for weight, distance in zip(weights, distances, strict=True)
            ]
            stays = 1.0 - math.fsum(pulls)
            centre = [stays * share for share in centre]
            for index, pull in enumerate(pulls):
                centre[index] += pull
        return centre


def _distances(products: list[list[float]], centre: list[float], num_rows: int) -> list[float]:
    """|g_r - v| of every row, with v given by its coefficients; fsum rounds once."""
    towards = [
        math.fsum(share * product for share, product in zip(centre, row, strict=True))
        for row in products
    ]
    square = math.fsum(share * toward for share, toward in zip(centre, towards, strict=True))
    return [
        math.sqrt(max(0.0, math.fsum((products[row][row], -2.0 * towards[row], square))))
        for row in range(num_rows)
    ]

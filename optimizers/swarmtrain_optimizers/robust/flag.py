"""Flag Aggregator: contributions are projected onto the subspace that explains most of them.

With ĝ_r = g_r / |g_r|, an orthonormal Y of m columns is sought that minimises

    sum_r sqrt(1 - |Y' ĝ_r|^2)  +  (pairs / (n - 1)) sum_{i<j} sqrt(1 - |Y' d_ij|^2)

where d_ij is (ĝ_i - ĝ_j) at unit length, by iteratively reweighted least squares: the m leading
eigenvectors of sum_r c_r ĝ_r ĝ_r' + (pairs / (n - 1)) sum c_ij d_ij d_ij', with c = 1 at first and
then 1 / sqrt(1 - explained). The aggregate is the weighted mean of Y Y' h_r, where h_r is g_r
clipped to the median norm.

All vectors lie in the span of the contributions, so the iteration runs in that span with the inner
products alone; the result comes as one coefficient per contribution.

Departures from the paper, and why. The clipping: a sign flip times ten lies on the honest
contributions' own line, which every good subspace holds, so projecting does nothing against it.
The relative weight of pairs: each contributor's pairs count together as much as it does itself
(`pairs` = 1); the paper's constant could not be checked. At ties of eigenvalues around the m-th all
of the tied ones are taken, else the order of contributors would choose.

References:
    Almasi et al., arXiv 2302.05865, section 2 (the estimator, and m = ceil((n + 1) / 2)).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.eigen import Matrix, symmetric_eigen
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

_RANK_SHARE = 1e-12
"""Directions of the span with less of the largest eigenvalue are rounding, or copies."""

_TIE_SHARE = 1e-9
"""Eigenvalues that differ by less of the larger are tied."""

_UNEXPLAINED_MIN = 1e-6
"""Bounds the weight of a fully explained contribution at a thousand."""


@dataclass(frozen=True, slots=True)
class FlagAggregator(RobustRule):
    """The mean of clipped contributions in the subspace that explains most of them.

    Stands any minority in the sense that its pull is bounded by the median norm (share 0.5, from
    the clipping); what the subspace adds against hostile peers is measured by the paper, not
    proved. Computed slice by slice once the inner products of whole vectors are known.

    Args:
        num_directions: m; None takes ceil((n + 1) / 2). Fewer leave out more of what contributors
            do not have in common, honest or not.
        iterations: number of reweightings.
        pairs: weight of the pairwise part; 0 leaves it out.

    Raises:
        ValueError: a setting is out of range.
    """

    num_directions: int | None = None
    iterations: int = 5
    pairs: float = 1.0

    name: ClassVar[str] = "flag"
    needs: ClassVar[Needs] = Needs.PRODUCTS

    def __post_init__(self) -> None:
        if self.num_directions is not None and self.num_directions < 1:
            raise ValueError(f"num_directions must be at least 1, it is {self.num_directions}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, it is {self.iterations}")
        if not 0 <= self.pairs < math.inf:
            raise ValueError(f"pairs must be at least 0, it is {self.pairs}")

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
        table = inner_products(rows) if scalars is None else scalars
        check_products(table, len(rows))
        places = finite_places(table.diagonal())
        check_enough(len(places))
        norms = {place: math.sqrt(table[place, place].item()) for place in places}
        bound = median(list(norms.values()))
        # A zero vector has no direction; it counts in the mean, where it adds nothing.
        ordered = content_order(
            rows, weights, table, [place for place in places if norms[place] > 0]
        )
        if not ordered:
            return combined(rows[places[0] : places[0] + 1], [0.0])
        cosines = _cosines(table, norms, ordered)
        total_weight = sum(weights[place] for place in places)
        lengths = [
            weights[place] * norms[place] * clip_factor(norms[place], bound) / total_weight
            for place in ordered
        ]
        shares = _projected(self, cosines.tobytes(), tuple(lengths), len(places))
        return combined(
            [rows[place] for place in ordered],
            [share / norms[place] for share, place in zip(shares, ordered, strict=True)],
        )

    def _computed(
        self, cosines: Matrix, lengths: tuple[float, ...], num_contributors: int
    ) -> list[float]:
        values, vectors = symmetric_eigen(cosines)
        rank = sum(value > _RANK_SHARE * values[0] for value in values)
        roots = [math.sqrt(value) for value in values[:rank]]
        # Unit contributions in an orthonormal basis of their span, (n, rank).
        units = np.stack([vectors[k] * roots[k] for k in range(rank)], axis=1)
        basis = self._subspace(units, num_contributors)
        summed = _summed((units * np.array(lengths)[:, None]).T)
        kept = _summed(basis.T * _projections(basis, summed[None])[0])
        return list(_summed(vectors[:rank].T * (kept / np.array(roots))).tolist())

    def _subspace(self, units: Matrix, num_contributors: int) -> Matrix:
        """(m, rank) orthonormal rows: the subspace after the last reweighting."""
        wanted = self.num_directions or (num_contributors + 2) // 2  # ceil((n + 1) / 2)
        pairs = _pair_directions(units)
        pair_share = self.pairs / (num_contributors - 1)
        own, paired = np.ones(len(units)), np.ones(len(pairs))
        basis = np.zeros((0, units.shape[1]))
        for _ in range(self.iterations):
            scatter = _scatter(units, own) + _scatter(pairs, paired * pair_share)
            values, vectors = symmetric_eigen(scatter)
            edge = values[min(wanted, len(values)) - 1]
            taken = sum(value >= edge - _TIE_SHARE * values[0] for value in values)
            basis = vectors[:taken]
            own = _reweighted(_explained(basis, units))
            paired = _reweighted(_explained(basis, pairs))
        return basis


@functools.lru_cache(maxsize=4)
def _projected(
    rule: FlagAggregator, cosines: bytes, lengths: tuple[float, ...], num_contributors: int
) -> list[float]:
    """Coefficients on the unit contributions of the projected sum of `lengths` times them. They
    follow from inner products alone, and an owner asks for them with every chunk of its slice: with
    64 contributors they take seconds, so they are remembered."""
    table = np.frombuffer(cosines, dtype=np.float64).reshape(len(lengths), len(lengths))
    return rule._computed(table, lengths, num_contributors)


def _cosines(table: Tensor, norms: dict[int, float], places: list[int]) -> Matrix:
    """(n, n) inner products of the unit contributions; exactly 1 on the diagonal."""
    return np.array(
        [
            [
                1.0
                if first == second
                else table[first, second].item() / norms[first] / norms[second]
                for second in places
            ]
            for first in places
        ]
    )


def _pair_directions(units: Matrix) -> Matrix:
    """(pairs, rank) unit vectors along the differences; equal contributions have none."""
    firsts, seconds = np.triu_indices(len(units), k=1)
    differences = units[firsts] - units[seconds]
    squares = _summed(differences * differences)
    apart = squares > _RANK_SHARE
    directions: Matrix = differences[apart] / np.sqrt(squares[apart])[:, None]
    return directions


def _scatter(units: Matrix, weights: Matrix) -> Matrix:
    """(rank, rank) sum of weight times u u' over the rows, one row after the other."""
    total = np.zeros((units.shape[1], units.shape[1]))
    for weight, unit in zip(weights.tolist(), units, strict=True):
        total += np.multiply.outer(unit, unit) * weight
    return total


def _explained(basis: Matrix, units: Matrix) -> Matrix:
    """(rows,) |Y' u|^2 of every unit vector, 0..1."""
    projections = _projections(basis, units)
    return np.minimum(1.0, _summed(projections * projections))


def _projections(basis: Matrix, rows: Matrix) -> Matrix:
    """(rows, m) inner products, added coordinate by coordinate: no order is a library's choice."""
    total = np.zeros((len(rows), len(basis)))
    for k in range(basis.shape[1]):
        total += np.multiply.outer(rows[:, k], basis[:, k])
    return total


def _summed(values: Matrix) -> Matrix:
    """(rows,) sums along rows, from the first column on."""
    total = np.zeros(len(values))
    for k in range(values.shape[1]):
        total += values[:, k]
    return total


def _reweighted(explained: Matrix) -> Matrix:
    weights: Matrix = 1.0 / np.sqrt(np.maximum(1.0 - explained, _UNEXPLAINED_MIN))
    return weights

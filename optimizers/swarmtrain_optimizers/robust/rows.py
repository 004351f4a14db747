"""Arithmetic that robust rules share, on many rows of one length.

Sums along a row are made by folding: a piece of 32768 values is added onto itself by halves until
one value is left, and pieces are added one after the other. That is elementwise, so neither thread
count nor processor changes a bit; torch.sum, mean, norm and products of matrices do not promise
that (protocol.md rule 4).
"""

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import PIECE_VALUES, check_weight
from swarmtrain_optimizers.subnormals import flush_tiny_

_CONTRIBUTORS_MIN = 3
"""Fewer cannot be told apart: of two that differ, either may be the hostile one."""


def check_rows(
    rows: Sequence[Tensor], weights: Sequence[int] | None = None, previous: Tensor | None = None
) -> None:
    """Refuse what is not a list of flat float32 vectors of one length with a weight each.

    Raises:
        ValueError: says which.
    """
    if not len(rows):
        raise ValueError("there is no contribution to aggregate")
    for index, row in enumerate((*rows, *([] if previous is None else [previous]))):
        if row.dtype != torch.float32 or row.ndim != 1 or row.device.type != "cpu":
            raise ValueError(f"row {index} is {tuple(row.shape)} {row.dtype}, wanted flat float32")
        if row.numel() != rows[0].numel():
            raise ValueError(f"row {index} has {row.numel()} values, row 0 {rows[0].numel()}")
    if weights is not None and len(weights) != len(rows):
        raise ValueError(f"{len(weights)} weights for {len(rows)} contributions")
    for weight in weights or ():
        check_weight(weight)


def check_enough(num_contributors: int) -> None:
    """Refuse fewer contributors than a rule can work with.

    Raises:
        ValueError: there are fewer than 3.
    """
    if num_contributors < _CONTRIBUTORS_MIN:
        raise ValueError(
            f"{num_contributors} finite contributions, a rule needs at least "
            f"{_CONTRIBUTORS_MIN}: skip the op, or wait for more peers"
        )


def pieces(num_values: int) -> Iterator[slice]:
    """Slices that cover a vector; temporaries of that many values stay in a cache."""
    for start in range(0, num_values, PIECE_VALUES):
        yield slice(start, min(start + PIECE_VALUES, num_values))


def median(numbers: Sequence[float]) -> float:
    """The middle one, or half the sum of the two in the middle.

    >>> median([4.0, 1.0, 2.0, 9.0])
    3.0
    """
    ordered = sorted(numbers)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return 0.5 * (low + high)


def squared_norms(rows: Sequence[Tensor]) -> Tensor:
    """(n,) float64: the sum of squares of every row, not finite where the row is not."""
    totals = torch.zeros(len(rows), dtype=torch.float64)
    for piece in pieces(rows[0].numel()):
        values = _stacked(rows, piece)
        totals.add_(_folded(torch.mul(values, values)))
    return totals


def inner_products(rows: Sequence[Tensor]) -> Tensor:
    """(n, n) float64, symmetric: the inner products of all pairs of rows."""
    num_rows = len(rows)
    totals = torch.zeros((num_rows, num_rows), dtype=torch.float64)
    for piece in pieces(rows[0].numel()):
        values = _stacked(rows, piece)
        for index in range(num_rows):
            totals[index, index:].add_(_folded(torch.mul(values[index:], values[index])))
    for index in range(num_rows):
        totals[index + 1 :, index] = totals[index, index + 1 :]
    return totals


def products_with(row: Tensor, others: Sequence[Tensor]) -> Tensor:
    """(n,) float64: inner products of one row with others, the bits of `inner_products`."""
    totals = torch.zeros(len(others), dtype=torch.float64)
    for piece in pieces(row.numel()):
        values = _stacked(others, piece)
        totals.add_(_folded(values.mul_(_stacked([row], piece)[0])))
    return totals


def check_products(table: Tensor, num_rows: int) -> None:
    """Refuse a table of inner products of another size.

    Raises:
        ValueError: its shape is not (num_rows, num_rows).
    """
    if table.shape != (num_rows, num_rows):
        raise ValueError(
            f"inner products are {tuple(table.shape)}, wanted ({num_rows}, {num_rows})"
        )


def content_order(
    rows: Sequence[Tensor], weights: Sequence[int], table: Tensor, places: Sequence[int]
) -> list[int]:
    """The places in an order of norm, weight and inner products with each other, then content."""
    keys = [
        (
            table[place, place].item(),
            float(weights[place]),
            *sorted(table[place, other].item() for other in places),
        )
        for place in places
    ]
    order = canonical_order([rows[place] for place in places], keys)
    return [places[index] for index in order]


def finite_places(diagonal: Tensor) -> list[int]:
    """Places of the rows whose squared norm is finite; of float32 values it never overflows."""
    return [place for place, square in enumerate(diagonal.tolist()) if math.isfinite(square)]


def canonical_order(rows: Sequence[Tensor], keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Places of the rows in an order that only depends on what they hold.

    Rows are ordered by key, those of equal keys by their first coordinate that differs.
    """

    def compare(first: int, second: int) -> int:
        if keys[first] != keys[second]:
            return -1 if keys[first] < keys[second] else 1
        return _compared(rows[first], rows[second])

    return sorted(range(len(rows)), key=functools.cmp_to_key(compare))


def combined(rows: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """(num_values,) float32: the sum of coefficient times row in float64, in the given order."""
    out = torch.empty(rows[0].numel(), dtype=torch.float32)
    for piece in pieces(out.numel()):
        total = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
        for row, coefficient in zip(rows, coefficients, strict=True):
            total.add_(row[piece].to(torch.float64).mul_(coefficient))
        out[piece] = total
    return flush_tiny_(out)


def _stacked(rows: Sequence[Tensor], piece: slice) -> Tensor:
    """(n, PIECE_VALUES) float64, zeros behind the end."""
    values = torch.zeros((len(rows), PIECE_VALUES), dtype=torch.float64)
    for index, row in enumerate(rows):
        values[index, : piece.stop - piece.start] = row[piece]
    return values


def _folded(values: Tensor) -> Tensor:
    """(n,) sums along rows of a power of two values; `values` is spent."""
    length = values.shape[1]
    while length > 1:
        length //= 2
        values[:, :length].add_(values[:, length : 2 * length])
    return values[:, 0]


def _compared(first: Tensor, second: Tensor) -> int:
    """-1, 0 or 1 by the first coordinate that differs."""
    for piece in pieces(first.numel()):
        places = torch.nonzero(torch.ne(first[piece], second[piece]))
        if len(places):
            place = piece.start + int(places[0])
            return -1 if bool(first[place] < second[place]) else 1
    return 0

"""The cosine transform of tiles, in both directions, with the same bits on every machine.

Momentum is spread over all values of a tile, and few of its waves hold most of it; so waves are
what is chosen and sent. The transform is orthonormal: it keeps lengths, and its inverse is its
transpose. Each is a chain of separate products and sums (protocol.md rule 4) over tables whose
cosines are a series, for what waves become stands in the state root.
"""

import math

import torch
from torch import Tensor

from swarmtrain_optimizers.schedule import half_turn_cosine

_PIECE_VALUES = 65_536
"""Values transformed at once: they, the sums and the products stay in a cache."""


class Cosines:
    """The two-dimensional DCT of tiles, DCT-II there and DCT-III back.

    A tile is `block` values of a vector, one after the other, as rows x columns: 64 x 64 for 4096;
    the most nearly square one where there is no root. The last tile of a vector, which may be
    filled up with zeros, stays as it is, for waves would spread into them.

    Args:
        block: values of a tile.
        dtype: float32; float64 for oracles.
    """

    def __init__(self, block: int, *, dtype: torch.dtype = torch.float32) -> None:
        self._block = block
        rows = next(side for side in range(math.isqrt(block), 0, -1) if block % side == 0)
        self._tables = tuple(_table(side, dtype) for side in (rows, block // rows))

    def waves(self, values: Tensor) -> Tensor:
        """(num_values,) coefficients of the waves in `values`, tile by tile, a new tensor."""
        return self._made(values, tuple(table.T for table in self._tables))

    def values(self, waves: Tensor) -> Tensor:
        """(num_values,) the values that have these coefficients, a new tensor."""
        return self._made(waves, self._tables)

    def _made(self, flat: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        made = flat.clone()
        end = flat.numel() - self._block
        rows, columns = (len(table) for table in tables)
        step = max(1, _PIECE_VALUES // self._block) * self._block
        for start in range(0, end, step):
            piece = flat[start : min(start + step, end)].view(-1, rows, columns)
            # The side that is transformed comes first: then each product is one long run.
            down = _transformed(piece.transpose(0, 1).reshape(rows, -1), tables[0])
            down = down.view(rows, -1, columns).transpose(0, 2).reshape(columns, -1)
            across = _transformed(down, tables[1]).view(columns, -1, rows)
            made[start : start + piece.numel()] = across.permute(1, 2, 0).reshape(-1)
        return made


def _transformed(values: Tensor, table: Tensor) -> Tensor:
    """table[k, i] values[k, j], summed over k from 0 on: (i, j)."""
    sums = torch.mul(values[0], table[0, :, None])
    product = torch.empty_like(sums)
    for row, factors in zip(values[1:], table[1:], strict=True):
        sums.add_(torch.mul(row, factors[:, None], out=product))
    return sums


def _table(side: int, dtype: torch.dtype) -> Tensor:
    """(side, side): value i of wave k, the root of 2 / side times cos(pi k (2 i + 1) / (2 side));
    that of 1 / side where k is 0."""
    rows = []
    for wave in range(side):
        size = math.sqrt((2 if wave else 1) / side)
        # The angle in half turns, brought into 0..2 in whole numbers, then folded onto 0..1.
        turns = [wave * (2 * i + 1) % (4 * side) for i in range(side)]
        rows.append([size * half_turn_cosine(min(t, 4 * side - t) / (2 * side)) for t in turns])
    return torch.tensor(rows, dtype=dtype)

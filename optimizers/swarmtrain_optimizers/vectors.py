"""New memory for vectors as long as the model.

The system hands such memory out page by page, when it is first written to: making a fresh vector
then takes eight times as long as copying into an old one. numpy asks for huge pages, which Linux
gives to whoever asks, and torch does not: for 40 MB it is 3.4 ms instead of 14 on a core of
2.5 GHz, ten times a round on the thread that trains. Not here: memory of chunks, which is used
again.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

PIECE_VALUES = 262_144
"""Values per pass: temporaries stay in a cache, and calls cost little beside the work."""


class Parts(Protocol):
    """A vector of which parts are asked for."""

    def __getitem__(self, places: slice, /) -> Tensor:
        """(stop - start,)."""


_KINDS = {torch.float32: np.float32, torch.float64: np.float64}


def fresh(num_values: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(num_values,) in this machine's memory, whatever a program has set for its tensors."""
    return torch.from_numpy(np.empty(num_values, dtype=_KINDS[dtype]))


def zeros(num_values: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(num_values,) of the system's own zeros: they take no memory before something is written."""
    return torch.from_numpy(np.zeros(num_values, dtype=_KINDS[dtype]))


def pieces(num_values: int) -> Iterator[slice]:
    """The places of a vector, `PIECE_VALUES` at a time."""
    for start in range(0, num_values, PIECE_VALUES):
        yield slice(start, min(start + PIECE_VALUES, num_values))


def lying(
    ranges: Sequence[tuple[int, int]], first: int, stop: int
) -> Iterator[tuple[slice, slice]]:
    """Values [first, stop) of the (start, stop) parts of a vector one after the other: their places
    in that row, and in the vector."""
    position = 0
    for low, high in ranges:
        begin, end = max(first - position, 0), min(stop - position, high - low)
        if begin < end:
            yield slice(position + begin, position + end), slice(low + begin, low + end)
        position += high - low


def parts_of(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, slice]]:
    """All of these parts as `lying` does, and never across a multiple of `PIECE_VALUES` in the row:
    what is decoded in such chunks is decoded once."""
    for piece in pieces(sum(stop - start for start, stop in ranges)):
        yield from lying(ranges, piece.start, piece.stop)


def copied(vector: Tensor) -> Tensor:
    """A copy of (num_values,)."""
    return fresh(vector.numel(), vector.dtype).copy_(vector.detach())


def taken(
    values: Parts, ranges: Sequence[tuple[int, int]], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The (start, stop) parts of a vector one after the other, a new tensor."""
    found = fresh(sum(stop - start for start, stop in ranges), dtype)
    for part, place in parts_of(ranges):
        found[part] = values[place]
    return found

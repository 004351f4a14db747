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


def copied(vector: Tensor) -> Tensor:
    """A copy of (num_values,)."""
    return fresh(vector.numel(), vector.dtype).copy_(vector.detach())


def taken(
    values: Parts, ranges: Sequence[tuple[int, int]], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The (start, stop) parts of a vector one after the other, a new tensor."""
    found = fresh(sum(stop - start for start, stop in ranges), dtype)
    position = 0
    for start, stop in ranges:
        for piece in pieces(stop - start):
            there = values[start + piece.start : start + piece.stop]
            found[position + piece.start : position + piece.stop] = there
        position += stop - start
    return found

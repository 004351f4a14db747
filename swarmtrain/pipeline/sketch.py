"""Sketches of gradients: a few hundred numbers that tell how alike two large ones are.

Each value is added with a drawn sign to one of the sketch's places, so the product of two sketches
is that of the gradients, give or take its expected error (a count sketch: Charikar, Chen and
Farach-Colton, 2002). Without knowing the seed nobody can hide a difference from it.
"""

import math

import torch
from torch import Tensor

from swarmtrain_transport.pipeline.peer.comparisons import Likeness

_PLACES = 256
_PART = _PLACES << 8
"""Signs that are drawn at a time."""


def sketch(values: Tensor, seed: int) -> Tensor:
    """The sketch of values, float64.

    Args:
        values: tensor on the CPU.
        seed: seed of the signs, 0 to 2^64 - 1.
    """
    signs, cpu = torch.Generator("cpu").manual_seed(seed), torch.device("cpu")
    total = torch.zeros(_PLACES, dtype=torch.float64, device=cpu)
    for part in torch.split(values.reshape(-1), _PART):
        drawn = torch.randint(0, 2, part.shape, generator=signs, dtype=torch.int8, device=cpu)
        padded = -(-len(part) // _PLACES) * _PLACES
        signed = torch.zeros(padded, dtype=torch.float64, device=cpu)
        signed[: len(part)] = part * (2 * drawn - 1)
        total += signed.view(-1, _PLACES).sum(0)
    return total


def likeness(one: Tensor, other: Tensor) -> Likeness:
    """The likeness of what two sketches are of; they have the same seed."""
    norms = [float(torch.linalg.vector_norm(each)) for each in (one, other)]
    if not all(norms):
        return Likeness(0.0, math.inf)
    return Likeness(float(one @ other) / math.prod(norms), max(norms) / min(norms))

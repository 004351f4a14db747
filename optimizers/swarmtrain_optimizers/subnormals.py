"""Zero for values too small to be the same on every machine (protocol.md rule 5).

Subnormals become zero on CPUs and libraries that flush them and stay on others. Cutting at 2^-100
keeps a wide margin above float32's smallest normal, 2^-126. The cut is torch's hardshrink, a
comparison and a choice in one pass over memory. Not for values that travel: int8 blocks are cut by
their window instead.
"""

import math

import torch
from torch import Tensor

TINY_EXPONENT = -100
"""Values with a magnitude below two to this power become +0."""

_LARGEST_CUT = {
    torch.float32: math.ldexp(1 - math.ldexp(1, -24), TINY_EXPONENT),
    torch.float64: math.nextafter(math.ldexp(1, TINY_EXPONENT), 0),
}
"""Neighbour of 2^-100 on the side of zero: hardshrink cuts what is at most that."""


def flush_tiny_(values: Tensor) -> Tensor:
    """Set every |x| < 2^-100, and -0, to +0 in place; NaN and infinity stay.

    Args:
        values: (n,) contiguous float32 or float64.

    Returns:
        `values` itself.
    """
    return torch.hardshrink(values, _LARGEST_CUT[values.dtype], out=values)

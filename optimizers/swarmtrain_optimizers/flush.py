"""Zero for values too small to be the same on every machine (protocol.md rule 5).

Subnormals become zero on CPUs and libraries that flush them and stay on others. Cutting at 2^-100
keeps a wide margin above float32's smallest normal, 2^-126. The cut is made with integer
operations on the bits: one comparison with `where` costs three times as much. Not for values that
travel: int8 blocks are cut by their window instead.
"""

import torch
from torch import Tensor

TINY_EXPONENT = -100
"""Values with a magnitude below two to this power become +0."""

_LAYOUTS = {
    torch.float32: (torch.int32, 0x7FFF_FFFF, (127 + TINY_EXPONENT) << 23, 31),
    torch.float64: (torch.int64, 0x7FFF_FFFF_FFFF_FFFF, (1023 + TINY_EXPONENT) << 52, 63),
}
"""Integer type of the same width, mask of the magnitude, bits of 2^-100, sign bit's index."""


def flush_tiny_(values: Tensor) -> Tensor:
    """Set every |x| < 2^-100, and -0, to +0 in place; NaN and infinity stay.

    Args:
        values: (n,) contiguous float32 or float64.

    Returns:
        `values` itself.
    """
    integer, magnitude_mask, tiny_bits, sign_index = _LAYOUTS[values.dtype]
    bits = values.view(integer)
    # Magnitudes compare like integers: the sign of (2^-100 - 1 - magnitude) tells who stays.
    keep = torch.bitwise_and(bits, magnitude_mask)
    torch.sub(torch.tensor(tiny_bits - 1, dtype=integer), keep, out=keep)
    torch.bitwise_right_shift(keep, sign_index, out=keep)
    bits.bitwise_and_(keep)
    return values

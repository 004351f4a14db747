"""Two bits per value: sign, and one of two magnitudes, s and 4 s with s = .55 mean|x| per block.

The scale follows the mean magnitude, not the largest value or the root of the mean square: then
what is sent is always nearer to x than nothing would be, which error feedback needs. Proof: a
value with |x| < 2.5 s has level 1 and adds s^2 - 2 s|x| to the squared error over |x|^2; one
above has level 4 and adds 16 s^2 - 8 s|x| <= -1.6 s|x|. Over n values that is at most
n s^2 - 1.6 s sum|x| = -n s^2 (1.6 / .55 - 1) < 0. (With .5 rms and levels 1 and 3, a block of
one large value among zeros would be sent worse than as nothing.)

Levels 1 and 4 rather than four equal bins of 1.5 sigma around the mean (SparseLoCo, arXiv
2508.15706, decodes such bins to their means): the relative error is .36 for Gaussian values and .59
for student-t(3), where those bins have .42 and .59; with levels 1 and 3 it is .345 and .61. Biased,
so it needs error feedback. Decoded values do not encode to themselves: their mean is another.

A code is 2 * (x < 0) + (|x| >= 2.5 s).
"""

import numpy as np

from swarmtrain_optimizers.codecs.grid import Grid, GridCodec
from swarmtrain_optimizers.codecs.scales import Codes, Floats
from swarmtrain_optimizers.codecs.sign import mean_of

SCALE_PER_MEAN = np.float32(0.55)
LARGE_LEVEL = 4
BOUND = np.float32(2.5)
"""Halfway between the two levels."""


def _scales_wanted(magnitudes: Floats) -> Floats:
    return mean_of(magnitudes) * SCALE_PER_MEAN


def _codes_of(ratio: Floats) -> Codes:
    """The nearest of -4, -1, 1, 4; at the bound the larger one, and 1 for zero."""
    codes: Codes = (ratio < 0).view(np.uint8)
    codes <<= np.uint8(1)
    np.abs(ratio, out=ratio)
    codes |= (ratio >= BOUND).view(np.uint8)
    return codes


class TwoBit(GridCodec):
    """The two_bit codec; `grid` has its layout and why its sums are exact."""

    def __init__(self) -> None:
        levels = (1, LARGE_LEVEL, -1, -LARGE_LEVEL)
        super().__init__(Grid("two_bit", 2, levels, None, _scales_wanted, _codes_of))

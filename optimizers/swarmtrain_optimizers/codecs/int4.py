"""Four bits per value: fifteen equal steps around zero, s = max|x| / 7 per block.

Half a byte and a bfloat16 scale per block. For small blocks: at 128 values the relative error is
.12 for Gaussian values, at 4096 it is .16, and one value far out costs all others of its block
their precision, where `e3m0` keeps them. Code q & 15 for q in -7..7 (two's complement); code 8
would be -8, which no encoder makes.
"""

import numpy as np

from swarmtrain_optimizers.codecs.dither import round_dithered
from swarmtrain_optimizers.codecs.grid import Grid, GridCodec
from swarmtrain_optimizers.codecs.scales import Codes, Floats, Words

LEVEL_MAX = 7


def _scales_wanted(magnitudes: Floats) -> Floats:
    """absmax / 7. Rounded up to bfloat16 it is at most 1/128 larger, so the largest value still
    has level 7: what was decoded encodes to itself."""
    largest: Floats = magnitudes.max(axis=1)
    return largest / np.float32(LEVEL_MAX)


def _codes_of(ratio: Floats) -> Codes:
    """clamp(round(x / s), -7, 7), halves to even."""
    np.rint(ratio, out=ratio)
    return _to_codes(ratio)


def _codes_dithered(ratio: Floats, words: Words) -> Codes:
    """One of the two integers around x / s, right on average."""
    round_dithered(ratio, words)
    return _to_codes(ratio)


def _to_codes(whole: Floats) -> Codes:
    # Clamp before converting: out of range, float to int8 differs between CPUs (rule 3).
    np.clip(whole, -LEVEL_MAX, LEVEL_MAX, out=whole)
    codes: Codes = whole.astype(np.int8).view(np.uint8)
    np.bitwise_and(codes, np.uint8(15), out=codes)
    return codes


class Int4(GridCodec):
    """The int4 codec; `grid` has its layout and why its sums are exact."""

    def __init__(self) -> None:
        levels = tuple(code if code < 8 else code - 16 for code in range(16))
        super().__init__(Grid("int4", 4, levels, 8, _scales_wanted, _codes_of, _codes_dithered))

"""Four bits per value as sign and exponent: 0 and the seven powers of two below max|x|.

Streaming DiLoCo casts what it sends to E3M0, one sign bit, three exponent bits, no mantissa
(Douillard et al., arXiv 2501.18512). Values are +-{0, 2^-6 .. 2^0} * max|x|: the error
of a value is at most a third of it over six binades, whatever else is in its block, so one
value far out does no harm and blocks may be large. The paper does not say how it scales; here each
block has a scale.

The scale is kept as that of the smallest level, s = max|x| / 64, and levels as the integers
1, 2, 4 .. 64: then `grid` sums them exactly in the same window as int8. It is a bfloat16 rather
than a power of two, so that the largest value of a block is met within 1/128: where one value
holds much of a block's energy (student-t(3), blocks of 128) the relative error is .165, and with
powers of two .197.

A code is sign * 8 + (0 for zero, 1 + k for 2^k). Code 8, minus zero, no encoder makes.
"""

import math

import numpy as np

from swarmtrain_optimizers.codecs.dither import fractions
from swarmtrain_optimizers.codecs.grid import Grid, GridCodec
from swarmtrain_optimizers.codecs.scales import Codes, Floats, Words

TOP = 64
"""The largest level: 2^6 times the smallest."""

_BIAS = 127
_KEPT_BITS = 10
"""Sign, exponent and the first mantissa bit of a float32 decide its level."""


def _code_of(ratio: float) -> int:
    """The code of the nearest level; the larger one of two that are equally near."""
    magnitude = abs(ratio)
    if magnitude < 0.5:
        return 0
    exponent = next((k for k in range(6) if magnitude < math.ldexp(1.5, k)), 6)
    return 1 + exponent + (8 if ratio < 0 else 0)


def _code_table() -> Codes:
    """The code of every float32 by its highest ten bits: all bounds between levels, 0.5 and
    1.5 * 2^k, begin there, so a value and its ten bits followed by zeros have the same code."""
    heads = np.arange(1 << _KEPT_BITS, dtype=np.uint32) << np.uint32(32 - _KEPT_BITS)
    return np.array([_code_of(value) for value in heads.view(np.float32).tolist()], dtype=np.uint8)


_CODES = _code_table()


def _scales_wanted(magnitudes: Floats) -> Floats:
    """absmax / 64, an exact division. Rounded up to bfloat16 it is at most 1/128 larger, so the
    largest value still has level 64: what was decoded encodes to itself."""
    largest: Floats = magnitudes.max(axis=1)
    return largest / np.float32(TOP)


def _codes_of(ratio: Floats) -> Codes:
    """The nearest level by value; halfway, the one further from zero."""
    codes: Codes = np.take(_CODES, ratio.view(np.uint32) >> np.uint32(32 - _KEPT_BITS), mode="clip")
    return codes


def _codes_dithered(ratio: Floats, words: Words) -> Codes:
    """One of the two levels around x / s, right on average.

    Between 2^k and 2^(k+1) a float32's mantissa is how far it is from the lower one, so 23 random
    bits added to it carry into the exponent as often as they should.
    """
    is_negative = np.signbit(ratio)
    np.abs(ratio, out=ratio)
    # Below 1 the levels are 0 and 1, and the chance of 1 is the ratio itself.
    small = (fractions(words) < ratio).view(np.uint8)
    raised = (ratio.view(np.uint32) + (words >> np.uint32(9))) >> np.uint32(23)
    # 127 is level 1 with code 1, 133 is level 64 with code 7.
    large = (np.clip(raised, _BIAS, _BIAS + 6) - np.uint32(_BIAS - 1)).astype(np.uint8)
    codes: Codes = np.where(ratio < 1, small, large)
    codes |= (is_negative & (codes != 0)).view(np.uint8) << np.uint8(3)
    return codes


class E3M0(GridCodec):
    """The E3M0 codec; `grid` has its layout and why its sums are exact."""

    def __init__(self) -> None:
        magnitudes = (0, *(1 << exponent for exponent in range(7)))
        levels = magnitudes + tuple(-level for level in magnitudes)
        super().__init__(Grid("e3m0", 4, levels, 8, _scales_wanted, _codes_of, _codes_dithered))

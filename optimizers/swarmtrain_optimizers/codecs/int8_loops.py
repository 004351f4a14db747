"""The int8 codec's loops on numpy, a few operations at a time on pieces that fit the cache.

`int8_kernels` has the same four functions for a compiler; both make the same bits, and a codec uses
either through `Loops`. numpy rather than torch: it rounds the same, and a call costs a fraction.

Scales are float32, or their upper sixteen bits in a uint32; values are int8.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from swarmtrain_optimizers.codecs.base import row_slices, rows_at_once
from swarmtrain_optimizers.codecs.dither import random_words, round_dithered
from swarmtrain_optimizers.codecs.scales import (
    Bytes,
    Doubles,
    Floats,
    Words,
    absmax_of,
    raised_bits,
    scales_of,
)

VALUE_MAX = 127
"""Largest magnitude of an encoded value; -128 is not used, so that signs are symmetric."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Four functions; `int8_kernels` says what each takes and gives."""

    encode: Callable[[Floats, int, int, int, Words, Bytes], bool]
    add: Callable[[Floats, Bytes, np.float32, Doubles], None]
    finish: Callable[[Doubles, float, Floats, int, int, Words, Bytes], None]
    decode: Callable[[Floats, Bytes, Floats], None]


def scale_bits(absmax: Floats, lowest: int) -> Words:
    """absmax / 127 in float32, rounded up to bfloat16, 0 below `lowest`; not NaN."""
    return raised_bits(absmax / np.float32(VALUE_MAX), lowest)


def _scratch(num_blocks: int, block: int) -> Floats:
    """Memory for the rows of one of `row_slices`."""
    return np.empty((min(rows_at_once(block), num_blocks), block), dtype=np.float32)


def _nearest(ratio: Floats, row: int) -> None:
    """Round in place, halves to even."""
    np.rint(ratio, out=ratio)


def _quantize(
    blocks: Floats, bits: Words, ratio: Floats, out: Bytes, rounds: Callable[[Floats, int], None],
    row: int, *, clamps: bool,
) -> None:  # fmt: skip
    """q = clamp(round(x / s)) of a row per scale; `ratio` is overwritten, and may be `blocks`."""
    # A zero scale stands for a block of zeros: dividing by infinity makes them, without NaN.
    divisors = np.where(bits == 0, np.float32(math.inf), scales_of(bits)).reshape(-1, 1)
    np.divide(blocks, divisors, out=ratio)
    rounds(ratio, row)
    # Clamp before converting: out of range, float to int8 differs between CPUs (rule 3).
    if clamps:
        np.clip(ratio, -VALUE_MAX, VALUE_MAX, out=ratio)
    np.copyto(out.reshape(blocks.shape), ratio, casting="unsafe")


def encode(values: Floats, block: int, lowest: int, highest: int, bits: Words, out: Bytes) -> bool:
    """See `int8_kernels.encode`. A row's values lie below 127.5 scales, so nothing is clamped."""
    return _encode(values, block, lowest, highest, bits, out, _nearest, clamps=False)


def encode_stochastic(
    values: Floats, block: int, lowest: int, highest: int, bits: Words, out: Bytes,
    seed: int, first_index: int,
) -> bool:  # fmt: skip
    """Encode with each value rounded to one of the two around it, right on average.

    Args:
        values: (num_values,) float32.
        block: values per scale.
        lowest: bits of the smallest legal scale.
        highest: bits of the largest legal scale.
        bits: (num_values / block,) uint32 for the scales' bits.
        out: (num_values,) int8 for the values.
        seed: seed of the random numbers.
        first_index: place of the first value in the whole vector.
    """

    def dithered(ratio: Floats, row: int) -> None:
        round_dithered(ratio, random_words(seed, first_index + row * block, ratio.size))

    return _encode(values, block, lowest, highest, bits, out, dithered, clamps=True)


def _encode(
    values: Floats, block: int, lowest: int, highest: int, bits: Words, out: Bytes,
    rounds: Callable[[Floats, int], None], *, clamps: bool,
) -> bool:  # fmt: skip
    """`rounds` gets ratios and the number of their first row, and rounds them in place."""
    blocks = values.reshape(-1, block)
    scratch = _scratch(len(blocks), block)
    for rows in row_slices(len(blocks), block):
        ratio = scratch[: rows.stop - rows.start]
        absmax = absmax_of(blocks[rows], ratio)
        # First of all: rounding a NaN up as an integer could wrap to -0.0 (rule 3).
        if not math.isfinite(absmax.max()):
            return False
        bits[rows] = scale_bits(absmax, lowest)
        if bits[rows].max() > highest:
            return False
        flat = slice(rows.start * block, rows.stop * block)
        _quantize(blocks[rows], bits[rows], ratio, out[flat], rounds, rows.start, clamps=clamps)
    return True


def add(scales: Floats, values: Bytes, factor: np.float32, sums: Doubles) -> None:
    """See `int8_kernels.add`. 8 bits of a scale, 8 of a weight and 7 of a value: float32 holds the
    product exactly, at half the cost; only the sum needs float64."""
    block = values.size // scales.size
    factors = (scales * factor).reshape(-1, 1)
    rows_of_values, rows_of_sums = values.reshape(-1, block), sums.reshape(-1, block)
    scratch = _scratch(scales.size, block)
    for rows in row_slices(scales.size, block):
        part = scratch[: rows.stop - rows.start]
        np.copyto(part, rows_of_values[rows])
        np.multiply(part, factors[rows], out=part)
        np.add(rows_of_sums[rows], part, out=rows_of_sums[rows])


def finish(
    sums: Doubles, weight: float, means: Floats, lowest: int, highest: int, bits: Words, out: Bytes
) -> None:
    """See `int8_kernels.finish`."""
    mean = np.empty(sums.size, dtype=np.float32)
    # Divided in float64, rounded once into float32.
    np.divide(sums, weight, out=mean, casting="same_kind")
    blocks = mean.reshape(-1, means.size)
    scratch = _scratch(len(blocks), means.size)
    for rows in row_slices(len(blocks), means.size):
        ratio = scratch[: rows.stop - rows.start]
        bits[rows] = np.minimum(scale_bits(absmax_of(blocks[rows], ratio), lowest), highest)
        flat = slice(rows.start * means.size, rows.stop * means.size)
        _quantize(blocks[rows], bits[rows], ratio, out[flat], _nearest, rows.start, clamps=True)


def decode(scales: Floats, values: Bytes, out: Floats) -> None:
    """See `int8_kernels.decode`. Two passes over a piece in the cache beat one of mixed types."""
    block = values.size // scales.size
    factors = scales.reshape(-1, 1)
    rows_of_values, rows_of_out = values.reshape(-1, block), out.reshape(-1, block)
    for rows in row_slices(scales.size, block):
        np.copyto(rows_of_out[rows], rows_of_values[rows])
        np.multiply(rows_of_out[rows], factors[rows], out=rows_of_out[rows])


NUMPY_LOOPS = Loops(encode, add, finish, decode)

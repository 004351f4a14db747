"""The int8 codec in plain Python, one number at a time, with exact fractions between roundings."""

import math
import struct
from fractions import Fraction

from window import PlanWindow


def float32(value: float) -> float:
    """Round to float32, half to even, exactly as the hardware does."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def scale_bits(absmax: float, window: PlanWindow) -> int:
    """absmax / 127 in float32, up to the next bfloat16, 0 below the window."""
    # Both operands are float32, and float64 has more than twice the bits: rounding twice is
    # rounding once (Figueroa, When is double rounding innocuous?).
    bits = struct.unpack("<I", struct.pack("<f", float32(absmax / 127)))[0]
    rounded = (bits + 0xFFFF) >> 16
    return 0 if (rounded >> 7) - 127 < window.e_min else rounded


def scale_of(bits: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def encode(values: list[float], window: PlanWindow) -> tuple[list[int], list[int]]:
    scales, quantized = [], []
    for start in range(0, len(values), window.block):
        block = values[start : start + window.block]
        bits = scale_bits(max(abs(value) for value in block), window)
        scales.append(bits)
        for value in block:
            if bits == 0:
                quantized.append(0)
                continue
            ratio = float32(value / float(scale_of(bits)))
            quantized.append(max(-127, min(127, round(ratio))))
    return scales, quantized


def exact_sum(parts: list[tuple[list[int], list[int], int]], block: int) -> list[Fraction]:
    """Sum of weight * scale * value over (scale bits, values, weight)."""
    sums = [Fraction(0)] * len(parts[0][1])
    for scales, values, weight in parts:
        for index, value in enumerate(values):
            sums[index] += weight * scale_of(scales[index // block]) * value
    return sums


def exponent(value: float) -> int:
    return math.frexp(value)[1] - 1

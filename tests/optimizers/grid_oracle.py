"""The codecs of one to four bits in plain Python: one number at a time, levels found by search.

Nothing here is shared with the codecs: scales come from `int8_oracle`'s own rounding, a level is
the one with the smallest distance, and bits are put together as text.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from int8_oracle import float32, scale_of
from window import PlanWindow

INT4 = {level: level % 16 for level in range(-7, 8)}
E3M0 = {0: 0} | {s * 2**k: 1 + k + (8 if s < 0 else 0) for k in range(7) for s in (1, -1)}
TWO_BIT = {1: 0, 4: 1, -1: 2, -4: 3}
SIGN = {1: 0, -1: 1}
CODES = {"int4": INT4, "e3m0": E3M0, "two_bit": TWO_BIT, "sign": SIGN}
BITS = {"int4": 4, "e3m0": 4, "two_bit": 2, "sign": 1}


def mean_of(block: list[float]) -> float:
    """The mean magnitude, halves added to halves, as `sign` promises it."""
    column = [abs(value) for value in block]
    while len(column) > 1:
        if len(column) % 2:
            column[0] += column.pop()
        half = len(column) // 2
        column = [column[i] + column[half + i] for i in range(half)]
    return float32(column[0] / len(block))


WANTED: dict[str, Callable[[list[float]], float]] = {
    "int4": lambda block: float32(max(map(abs, block)) / 7),
    "e3m0": lambda block: float32(max(map(abs, block)) / 64),
    "two_bit": lambda block: float32(mean_of(block) * float32(0.55)),
    "sign": mean_of,
}


def raised(wanted: float, window: PlanWindow) -> int:
    """Bits of the smallest bfloat16 that is not below `wanted`, 0 below the window."""
    if wanted < 2.0**window.e_min:
        # What is rounded up to the lowest scale is inside.
        below = Fraction(2) ** window.e_min * (1 - Fraction(1, 256))
        return (window.e_min + 127) << 7 if wanted and Fraction(wanted) > below else 0
    exponent = math.frexp(wanted)[1] - 1
    return (exponent + 127 << 7) + math.ceil((Fraction(wanted) / Fraction(2) ** exponent - 1) * 128)


def level_of(ratio: float, name: str) -> int:
    """The nearest level; of two the even one for int4, else the larger in magnitude."""
    if name == "sign":
        return -1 if ratio < 0 else 1
    if name == "two_bit" and ratio == 0:
        return 1
    levels = [level for level in CODES[name] if ratio * level > 0 or level == 0]
    exact = Fraction(ratio)
    if name == "int4":
        return max(-7, min(7, round(exact)))
    return min(levels or [0], key=lambda level: (abs(level - exact), -abs(level)))


def encode(values: list[float], name: str, window: PlanWindow) -> bytes:
    scales, text = b"", ""
    for start in range(0, len(values), window.block):
        block = values[start : start + window.block]
        bits = raised(WANTED[name](block), window)
        scales += bits.to_bytes(2, "little")
        for value in block:
            ratio = float32(value / float(scale_of(bits))) if bits else 0.0
            code = CODES[name][level_of(ratio, name)] if bits else 0
            text = format(code, f"0{BITS[name]}b") + text
    # The last value stands first in the text, so the whole is one little-endian number.
    return scales + int(text, 2).to_bytes(len(text) // 8, "little")


def decode(payload: bytes, num_values: int, name: str, window: PlanWindow) -> list[Fraction]:
    num_blocks = num_values // window.block
    number = int.from_bytes(payload[2 * num_blocks :], "little")
    levels = {code: level for level, code in CODES[name].items()}
    values = []
    for index in range(num_values):
        row = index // window.block
        scale = scale_of(int.from_bytes(payload[2 * row : 2 * row + 2], "little"))
        code = number >> (BITS[name] * index) & (1 << BITS[name]) - 1
        values.append(scale * levels[code])
    return values

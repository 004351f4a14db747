"""A measured slope as one byte, and the directions that slopes are measured in.

A byte is a sign and one of 127 magnitudes in equal ratios, eight to a doubling, so that a decoded
slope is within 4.5 % of the measured one; 0 says nothing. Smaller slopes are noise of float32, and
larger ones are held at the top: so no single answer, a liar's neither, moves weights by more than
54 times the rate. All powers here are exact, and the eight numbers in between are written out: no
logarithm is taken, whose last bit another library would have otherwise.

A direction has a sign for each value: sign i is bit i % 64 of output i // 64 of SplitMix64
(`codecs.dither`), from a start that follows from run, op, peer and the number of the step. These
are integers, the same on every machine, and any part is made without what lies before it.
"""

import hashlib
import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.dither import outputs

CODE_MAX = 127
"""The highest byte; its sign is the slope's."""

_PER_DOUBLING = (
    1.0, 1.0905077326652577, 1.189207115002721, 1.2968395546510096,
    1.4142135623730951, 1.5422108254079407, 1.681792830507429, 1.8340080864093424,
)  # fmt: skip
"""2^(j/8)."""

_HALF_RATIO = 1.0442737824274138
"""2^(1/16): from a magnitude to the middle between it and the next."""

_LOWEST_EXPONENT = -10

_WORD_BITS = 64


def value_of(code: int) -> float:
    """The slope that a byte stands for.

    Args:
        code: -127 to 127.

    >>> [value_of(code) for code in (-81, 0, 1, 127)]
    [-1.0, 0.0, 0.0009765625, 53.81737057623773]
    """
    if code == 0:
        return 0.0
    doublings, rest = divmod(abs(code) - 1, len(_PER_DOUBLING))
    return math.copysign(math.ldexp(_PER_DOUBLING[rest], doublings + _LOWEST_EXPONENT), code)


_ENDS = tuple(value_of(code) * _HALF_RATIO for code in range(1, CODE_MAX))
"""Ends of the magnitudes: the next one begins there."""


def code_of(slope: float) -> int:
    """The byte of a slope: the nearest magnitude, in ratio. What is no number says nothing.

    >>> [code_of(slope) for slope in (1.0, -0.98, 1e-9, -1e9, math.nan, math.inf)]
    [81, -81, 0, -127, 0, 0]
    """
    size = abs(slope)
    if not math.isfinite(size) or size * _HALF_RATIO < value_of(1):
        return 0
    return int(math.copysign(bisect_left(_ENDS, size) + 1, slope))


def start_of(seed: int, op: int, peer: bytes, number: int) -> int:
    """Start of the generator of one direction, 64 bits.

    Args:
        seed: seed of the run, 0 to 2^63 - 1.
        op: op that the slope goes to.
        peer: key of who measures it.
        number: number of the step in its round, from 0.
    """
    numbers = b"".join(one.to_bytes(8, "big") for one in (seed, op, number))
    digest = hashlib.sha256(b"swarmtrain direction 1" + numbers + peer)
    return int.from_bytes(digest.digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Signs:
    """One direction.

    Attributes:
        start: start of its generator.
        step: length of the move in each value.
    """

    start: int
    step: float

    def signs(self, start: int, stop: int) -> Tensor:
        """(stop - start,) float32, each 1 or -1; a new tensor."""
        first = start // _WORD_BITS
        words = outputs(self.start, first, -(-stop // _WORD_BITS) - first)
        bits = np.unpackbits(words.astype("<u8", copy=False).view(np.uint8), bitorder="little")
        begin = start - first * _WORD_BITS
        signs = bits[begin : begin + stop - start].astype(np.float32)
        signs *= -2
        signs += 1
        return torch.from_numpy(signs)

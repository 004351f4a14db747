"""bfloat16 scales inside a plan's window of exponents, as every codec with scales has them.

A legal scale is +0 or a normal bfloat16 with an exponent in [e_min, e_max] (protocol.md rules 1
and 3). Raw bits are tested before anything is computed with them: a subnormal scale would depend
on the CPU's flush mode, a NaN rounded up as an integer could wrap to -0.0. Not here: which scale
a block gets; that is each codec's own rule.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from swarmtrain_optimizers.codecs.base import IllegalPayload, ScaleWindow

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.int8]
Codes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

_BIAS = 127
_ROUND_UP = 0xFFFF


class Chunk:
    """A chunk in the making: all scales, then all codes.

    Attributes:
        bits: (num_blocks,) uint32, the scales' bits, to be filled.
        codes: (code_bytes,) packed codes, to be filled.
    """

    def __init__(self, num_blocks: int, code_bytes: int) -> None:
        self.bits: Words = np.empty(num_blocks, dtype=np.uint32)
        self._payload = np.empty(2 * num_blocks + code_bytes, dtype=np.uint8)
        self.codes: Codes = self._payload[2 * num_blocks :]

    def payload(self) -> bytes:
        """Return the chunk's bytes, once all is filled."""
        self._payload[: 2 * self.bits.size].view("<u2")[:] = self.bits
        return self._payload.tobytes()


def lowest_bits(window: ScaleWindow) -> int:
    """Bits of the smallest legal scale, 2^e_min."""
    return (window.e_min + _BIAS) << 7


def highest_bits(window: ScaleWindow) -> int:
    """Bits of the largest legal scale, just below 2^(e_max + 1)."""
    return ((window.e_max + _BIAS) << 7) | 0x7F


def raised_bits(wanted: Floats, lowest: int) -> Words:
    """Bits of the next bfloat16 at or above each value, 0 below `lowest`.

    Args:
        wanted: (num_blocks,) float32, not negative, not NaN.
        lowest: bits of the smallest legal scale.
    """
    bits: Words = (wanted.view(np.uint32) + np.uint32(_ROUND_UP)) >> np.uint32(16)
    bits[bits < lowest] = 0
    return bits


def nearest_bits(wanted: Floats, lowest: int) -> Words:
    """Bits of the nearest bfloat16 to each value, halves to even, 0 below `lowest`.

    Args:
        wanted: any shape, float32, not negative, not NaN.
        lowest: bits of the smallest legal scale.
    """
    bits = wanted.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: Words = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    rounded[rounded < lowest] = 0
    return rounded


def scales_of(bits: "npt.NDArray[np.unsignedinteger[Any]]") -> Floats:
    """The scales that these bits stand for."""
    scales: Floats = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return scales


def absmax_of(blocks: Floats, scratch: Floats) -> Floats:
    """Largest magnitude of each row, never -0.0; NaN if a row has one. `scratch` is overwritten."""
    largest: Floats = np.abs(blocks, out=scratch).max(axis=1)
    return largest


def check_scales(bits: npt.NDArray[np.uint16], window: ScaleWindow) -> None:
    """Every scale's raw bits: 0x0000, or sign 0 and inside the window.

    Raises:
        IllegalPayload: reason ``scale``.
    """
    legal = (bits >= lowest_bits(window)) & (bits <= highest_bits(window)) | (bits == 0)
    if not legal.all():
        index = int(np.argmin(legal))
        raise IllegalPayload(
            "scale",
            f"block {index} has scale bits 0x{int(bits[index]):04x}, "
            f"legal exponents are {window.e_min}..{window.e_max}",
        )

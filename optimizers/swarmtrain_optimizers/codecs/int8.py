"""Eight bits per value and a bfloat16 scale per block, summed exactly (protocol.md part 1).

A legal scale is +0 or a normal bfloat16 inside the plan's window of exponents, so every product
of scale, value and weight is an integer multiple of 2^(e_min - 7), and a float64 holds any sum of
them without rounding: order, subsets and subtraction never change a bit (rule 1). Only operations
of rule 4 are used; the few numbers per block go through numpy, whose calls cost less than
torch's and round alike. Not here: error feedback, which keeps what the rounding loses.

A chunk is all scales (raw bfloat16 bits, little-endian uint16), then all values (int8).
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import (
    IllegalPayload,
    Payload,
    ScaleWindow,
    UnencodableValues,
    check_length,
    check_weight,
    piece_slices,
    piece_values,
    view_payload,
)

VALUE_MAX = 127
"""Largest magnitude of an encoded value; -128 is not used, so that signs are symmetric."""

_BIAS = 127
_ROUND_UP = 0xFFFF

Bits = npt.NDArray[np.uint32]
"""Scales as the sixteen bits of a bfloat16, one per block."""


def _lowest_bits(window: ScaleWindow) -> int:
    """Bits of the smallest legal scale, 2^e_min."""
    return (window.e_min + _BIAS) << 7


def _highest_bits(window: ScaleWindow) -> int:
    """Bits of the largest legal scale, just below 2^(e_max + 1)."""
    return ((window.e_max + _BIAS) << 7) | 0x7F


def _scale_bits(absmax: npt.NDArray[np.float32], window: ScaleWindow) -> Bits:
    """absmax / 127 in float32, rounded up to bfloat16, 0 below the window; not NaN."""
    quotient_bits = (absmax / np.float32(VALUE_MAX)).view(np.uint32)
    bits: Bits = (quotient_bits + np.uint32(_ROUND_UP)) >> np.uint32(16)
    bits[bits < _lowest_bits(window)] = 0
    return bits


def _scales(bits: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.float32]:
    """The scales that these bits stand for."""
    scales: npt.NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return scales


class _ChunkWriter:
    """A chunk that is being encoded, and memory for one piece of it.

    Args:
        num_values: values of the chunk.
        block: values that share a scale.
    """

    def __init__(self, num_values: int, block: int) -> None:
        num_blocks = num_values // block
        self._block = block
        self._payload = np.empty(2 * num_blocks + num_values, dtype=np.uint8)
        self._bits = self._payload[: 2 * num_blocks].view("<u2")
        self._values = torch.from_numpy(self._payload[2 * num_blocks :].view(np.int8))
        self._ratio = torch.empty(min(piece_values(block), num_values), dtype=torch.float32)

    def absmax(self, values: Tensor) -> npt.NDArray[np.float32]:
        """Largest magnitude of each block of a piece; NaN if a block has one."""
        magnitudes = torch.abs(values, out=self._ratio[: values.numel()])
        absmax: npt.NDArray[np.float32] = magnitudes.view(-1, self._block).amax(1).numpy()
        return absmax

    def put(self, piece: slice, values: Tensor, bits: Bits) -> None:
        """q = clamp(round(x / s), -127, 127) and s, at their places."""
        first_block = piece.start // self._block
        self._bits[first_block : first_block + bits.size] = bits
        # A zero scale stands for a block of zeros: dividing by infinity makes them, without NaN.
        divisors = np.where(bits == 0, np.float32(math.inf), _scales(bits))
        ratio = self._ratio[: values.numel()]
        blocks = ratio.view(-1, self._block)
        torch.div(values.view_as(blocks), torch.from_numpy(divisors).view(-1, 1), out=blocks)
        # Clamp before converting: out of range, float to int8 differs between CPUs (rule 3).
        self._values[piece].copy_(ratio.round_().clamp_(-VALUE_MAX, VALUE_MAX))

    def to_bytes(self) -> bytes:
        """The chunk."""
        return self._payload.tobytes()


class Int8:
    """The int8 codec: bfloat16 scales inside a window, exact sums in float64."""

    name = "int8"
    exact = True

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Two bytes per block, then one per value."""
        return 2 * (num_values // block) + num_values

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """s = bfloat16 above absmax / 127; q = clamp(round(x / s), -127, 127).

        Raises:
            UnencodableValues: reason ``nonfinite`` or ``above-window``.
        """
        writer = _ChunkWriter(values.numel(), window.block)
        for piece in piece_slices(values.numel(), window.block):
            absmax = writer.absmax(values[piece])
            largest = float(absmax.max())
            # First of all: rounding a NaN up as an integer could wrap to -0.0 (rule 3).
            if not math.isfinite(largest):
                raise UnencodableValues("nonfinite", "a value is NaN or infinite")
            bits = _scale_bits(absmax, window)
            if bits.max() > _highest_bits(window):
                raise UnencodableValues(
                    "above-window",
                    f"the largest value, {largest:.3g}, needs a scale above exponent "
                    f"{window.e_max}",
                )
            writer.put(piece, values[piece], bits)
        return writer.to_bytes()

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Length first, then every scale's raw bits: 0x0000, or sign 0 and inside the window.

        Raises:
            IllegalPayload: reason ``length`` or ``scale``.
        """
        check_length(payload, self.payload_bytes(num_values, window.block))
        bits = np.frombuffer(payload, dtype="<u2", count=num_values // window.block)
        legal = (bits >= _lowest_bits(window)) & (bits <= _highest_bits(window)) | (bits == 0)
        if not legal.all():
            index = int(np.argmin(legal))
            raise IllegalPayload(
                "scale",
                f"block {index} has scale bits 0x{int(bits[index]):04x}, "
                f"legal exponents are {window.e_min}..{window.e_max}",
            )

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * s * q, exact under a legal plan (rule 1)."""
        check_weight(weight)
        self._accumulate(acc, payload, weight, window.block)

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc -= weight * s * q: the bits of a sum that never held the part."""
        check_weight(weight)
        self._accumulate(acc, payload, -weight, window.block)

    def _accumulate(self, acc: Tensor, payload: Payload, factor: int, block: int) -> None:
        num_blocks = acc.numel() // block
        values = view_payload(payload, "i1", acc.numel(), 2 * num_blocks)
        bits = np.frombuffer(payload, dtype="<u2", count=num_blocks)
        factors = torch.from_numpy(_scales(bits).astype(np.float64) * factor).view(-1, 1)
        scratch = torch.empty(min(piece_values(block), acc.numel()), dtype=torch.float64)
        for piece in piece_slices(acc.numel(), block):
            total = acc[piece]
            part = scratch[: total.numel()].copy_(values[piece])
            part.view(-1, block).mul_(factors[piece.start // block : piece.stop // block])
            total.add_(part)

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """mean32 = float32(acc / W), then as `encode` (rule 6); `acc` is spent.

        The scale is also held at the window's top. Parts with |q| <= 127 never need that; a
        hostile part with q = -128 could otherwise make a result that everybody refuses.
        """
        writer = _ChunkWriter(acc.numel(), window.block)
        for piece in piece_slices(acc.numel(), window.block):
            mean = acc[piece].div_(total_weight).to(torch.float32)
            bits = _scale_bits(writer.absmax(mean), window)
            writer.put(piece, mean, np.minimum(bits, np.uint32(_highest_bits(window))))
        return writer.to_bytes()

    def decode(self, payload: Payload, num_values: int, window: ScaleWindow) -> Tensor:
        """s * q, exact in float32. A legal scale is at least 2^-90, so nothing is left to flush."""
        num_blocks = num_values // window.block
        values = torch.empty(num_values, dtype=torch.float32)
        values.copy_(view_payload(payload, "i1", num_values, 2 * num_blocks))
        scales = _scales(np.frombuffer(payload, dtype="<u2", count=num_blocks))
        values.view(-1, window.block).mul_(torch.from_numpy(scales).view(-1, 1))
        return values

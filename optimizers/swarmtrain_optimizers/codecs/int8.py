"""Eight bits per value and a bfloat16 scale per block, summed exactly (protocol.md part 1).

A legal scale is +0 or a normal bfloat16 inside the plan's window of exponents, so every product
of scale, value and weight is an integer multiple of 2^(e_min - 7), and a float64 holds any sum of
them without rounding: order, subsets and subtraction never change a bit (rule 1). Only operations
of rule 4 are used, through numpy: they round as torch's do, and a call costs a fraction, so that
pieces can be small enough for the cache. Not here: error feedback, which keeps what the rounding
loses.

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
    row_slices,
    rows_at_once,
)

VALUE_MAX = 127
"""Largest magnitude of an encoded value; -128 is not used, so that signs are symmetric."""

_BIAS = 127
_ROUND_UP = 0xFFFF

Bits = npt.NDArray[np.uint32]
"""Scales as the sixteen bits of a bfloat16, one per block."""

Blocks = npt.NDArray[np.float32]
"""Values with a row per block."""


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


def _absmax(blocks: Blocks) -> npt.NDArray[np.float32]:
    """Largest magnitude of each block, never -0.0; NaN if a block has one."""
    absmax: npt.NDArray[np.float32] = np.abs(np.maximum(blocks.max(axis=1), -blocks.min(axis=1)))
    return absmax


def _quantized(blocks: Blocks, bits: Bits, *, clamps: bool) -> bytes:
    """The chunk of these scales and q = round(x / s).

    Args:
        blocks: values, a row per block.
        bits: scales, one per block.
        clamps: whether a quotient may round to more than `VALUE_MAX`.
    """
    num_blocks, block = blocks.shape
    payload = np.empty(2 * num_blocks + blocks.size, dtype=np.uint8)
    payload[: 2 * num_blocks].view("<u2")[:] = bits
    values = payload[2 * num_blocks :].view(np.int8).reshape(num_blocks, block)
    # A zero scale stands for a block of zeros: dividing by infinity makes them, without NaN.
    divisors = np.where(bits == 0, np.float32(math.inf), _scales(bits)).reshape(-1, 1)
    scratch = _scratch(num_blocks, block)
    for rows in row_slices(num_blocks, block):
        ratio = scratch[: rows.stop - rows.start]
        np.divide(blocks[rows], divisors[rows], out=ratio)
        np.rint(ratio, out=ratio)
        # Clamp before converting: out of range, float to int8 differs between CPUs (rule 3).
        if clamps:
            np.clip(ratio, -VALUE_MAX, VALUE_MAX, out=ratio)
        np.copyto(values[rows], ratio, casting="unsafe")
    return payload.tobytes()


def _scratch(num_blocks: int, block: int) -> Blocks:
    """Memory for the rows of one of `row_slices`."""
    return np.empty((min(rows_at_once(block), num_blocks), block), dtype=np.float32)


def _parts(
    payload: Payload, num_values: int, block: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """Scales as a column and values with a row per block, of a payload that `check` passed."""
    num_blocks = num_values // block
    bits = np.frombuffer(payload, dtype="<u2", count=num_blocks)
    values = np.frombuffer(payload, dtype=np.int8, count=num_values, offset=2 * num_blocks)
    return _scales(bits).reshape(-1, 1), values.reshape(num_blocks, block)


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
        blocks = values.numpy().reshape(-1, window.block)
        absmax = _absmax(blocks)
        largest = float(absmax.max())
        # First of all: rounding a NaN up as an integer could wrap to -0.0 (rule 3).
        if not math.isfinite(largest):
            raise UnencodableValues("nonfinite", "a value is NaN or infinite")
        bits = _scale_bits(absmax, window)
        if bits.max() > _highest_bits(window):
            raise UnencodableValues(
                "above-window",
                f"the largest value, {largest:.3g}, needs a scale above exponent {window.e_max}",
            )
        # s >= absmax / 127 but for one rounding, so no quotient reaches 127.5.
        return _quantized(blocks, bits, clamps=False)

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
        scales, values = _parts(payload, acc.numel(), block)
        # 8 bits of a scale, 8 of a weight and 7 of a value: float32 holds the product exactly,
        # at half the cost; only the sum needs float64.
        factors = scales * np.float32(factor)
        sums = acc.numpy().reshape(values.shape)
        scratch = _scratch(*values.shape)
        for rows in row_slices(len(values), block):
            part = scratch[: rows.stop - rows.start]
            np.copyto(part, values[rows])
            np.multiply(part, factors[rows], out=part)
            np.add(sums[rows], part, out=sums[rows])

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """mean32 = float32(acc / W), then as `encode` (rule 6); `acc` is spent.

        The scale is also held at the window's top. Parts with |q| <= 127 never need that; a
        hostile part with q = -128 could otherwise make a result that everybody refuses.
        """
        mean = np.empty(acc.numel(), dtype=np.float32)
        # Divided in float64, rounded once into float32.
        np.divide(acc.numpy(), total_weight, out=mean, casting="same_kind")
        blocks = mean.reshape(-1, window.block)
        bits = np.minimum(_scale_bits(_absmax(blocks), window), np.uint32(_highest_bits(window)))
        return _quantized(blocks, bits, clamps=True)

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """s * q, exact in float32. A legal scale is at least 2^-90, so nothing is left to flush."""
        decoded = torch.empty(num_values, dtype=torch.float32) if out is None else out
        scales, values = _parts(payload, num_values, window.block)
        np.multiply(values, scales, out=decoded.numpy().reshape(values.shape))
        return decoded

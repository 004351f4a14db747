"""Eight bits per value and a bfloat16 scale per block, summed exactly (protocol.md part 1).

A legal scale is +0 or a normal bfloat16 inside the plan's window of exponents, so every product
of scale, value and weight is an integer multiple of 2^(e_min - 7), and a float64 holds any sum of
them without rounding: order, subsets and subtraction never change a bit (rule 1). Only operations
of rule 4 are used. The loops are numpy's; where `prepare` found numba the same operations run
compiled, in one pass over memory. Not here: error feedback, which keeps what the rounding loses.

A chunk is all scales (raw bfloat16 bits, little-endian uint16), then all values (int8).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor

from swarmtrain_optimizers.codecs.base import (
    Payload,
    ScaleWindow,
    UnencodableValues,
    check_length,
    check_weight,
    on_host,
    row_slices,
    rows_at_once,
)
from swarmtrain_optimizers.codecs.int8_kernels import compiled
from swarmtrain_optimizers.codecs.int8_loops import NUMPY_LOOPS, VALUE_MAX, encode_stochastic
from swarmtrain_optimizers.codecs.scales import (
    Bytes,
    Chunk,
    Floats,
    check_scales,
    highest_bits,
    lowest_bits,
    scales_of,
)

__all__ = ["VALUE_MAX", "Int8"]


class _Chunk(Chunk):
    """A chunk in the making; `values` are its codes as they are here, (num_values,) int8."""

    def __init__(self, num_values: int, block: int) -> None:
        super().__init__(num_values // block, num_values)
        self.values: Bytes = self.codes.view(np.int8)


def _opened(payload: Payload, num_values: int, block: int) -> tuple[Floats, Bytes]:
    """Scales and values of a payload that `check` passed."""
    num_blocks = num_values // block
    bits: npt.NDArray[np.uint16] = np.frombuffer(payload, dtype="<u2", count=num_blocks)
    values = np.frombuffer(payload, dtype=np.int8, count=num_values, offset=2 * num_blocks)
    return scales_of(bits), values


class Int8:
    """The int8 codec: bfloat16 scales inside a window, exact sums in float64."""

    name = "int8"
    exact = True

    def __init__(self) -> None:
        self._loops = NUMPY_LOOPS

    def prepare(self) -> bool:
        """Compile the loops for this CPU, if numba is here; the bits are the same without.

        Takes seconds where no cache has them yet: for vectors of many millions of values.

        Returns:
            True if they are compiled.
        """
        if self._loops is NUMPY_LOOPS:
            try:
                self._loops = compiled()
            except ImportError:
                return False
        return True

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Two bytes per block, then one per value."""
        return 2 * (num_values // block) + num_values

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """s = bfloat16 above absmax / 127; q = clamp(round(x / s), -127, 127).

        Raises:
            UnencodableValues: reason ``nonfinite`` or ``above-window``.
        """
        return self._encode(values, window, self._loops.encode)

    def encode_stochastic(
        self, values: Tensor, window: ScaleWindow, *, seed: int, first_index: int
    ) -> bytes:
        """Round each value to one of the two around it; see `base.StochasticCodec`.

        Raises:
            UnencodableValues: as `encode`.
        """

        loop = partial(encode_stochastic, seed=seed, first_index=first_index)
        return self._encode(values, window, loop)

    def _encode(self, values: Tensor, window: ScaleWindow, loop: Callable[..., bool]) -> bytes:
        chunk = _Chunk(values.numel(), window.block)
        lowest, highest = lowest_bits(window), highest_bits(window)
        if not loop(values.numpy(), window.block, lowest, highest, chunk.bits, chunk.values):
            largest = float(values.abs().amax())
            if not math.isfinite(largest):
                raise UnencodableValues("nonfinite", "a value is NaN or infinite")
            raise UnencodableValues(
                "above-window",
                f"the largest value, {largest:.3g}, needs a scale above exponent {window.e_max}",
            )
        return chunk.payload()

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Length first, then every scale's raw bits: 0x0000, or sign 0 and inside the window.

        Raises:
            IllegalPayload: reason ``length`` or ``scale``.
        """
        check_length(payload, self.payload_bytes(num_values, window.block))
        bits = np.frombuffer(payload, dtype="<u2", count=num_values // window.block)
        check_scales(bits, window)

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * s * q, exact under a legal plan (rule 1)."""
        check_weight(weight)
        opened = _opened(payload, acc.numel(), window.block)
        self._loops.add(*opened, np.float32(weight), acc.numpy())

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc -= weight * s * q: the bits of a sum that never held the part."""
        check_weight(weight)
        opened = _opened(payload, acc.numel(), window.block)
        self._loops.add(*opened, np.float32(-weight), acc.numpy())

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """mean32 = float32(acc / W), then as `encode` (rule 6).

        The scale is also held at the window's top. Parts with |q| <= 127 never need that; a
        hostile part with q = -128 could otherwise make a result that everybody refuses.
        """
        chunk = _Chunk(acc.numel(), window.block)
        self._loops.finish(
            acc.numpy(), float(total_weight), np.empty(window.block, dtype=np.float32),
            lowest_bits(window), highest_bits(window), chunk.bits, chunk.values,
        )  # fmt: skip
        return chunk.payload()

    def mean(
        self, parts: Sequence[tuple[Payload, int]], num_values: int, window: ScaleWindow
    ) -> bytes:
        """The bytes of `add_` for each part and then `finish`, made piece by piece in the cache:
        no sum goes through memory."""
        block = window.block
        lowest, highest = lowest_bits(window), highest_bits(window)
        total = float(sum(weight for _, weight in parts))
        opened = [(*_opened(part, num_values, block), np.float32(w)) for part, w in parts]
        chunk = _Chunk(num_values, block)
        scratch = np.empty(block, dtype=np.float32)
        sums = np.empty(min(rows_at_once(block) * block, num_values), dtype=np.float64)
        for rows in row_slices(num_values // block, block):
            flat = slice(rows.start * block, rows.stop * block)
            piece = sums[: flat.stop - flat.start]
            piece.fill(0)
            for scales, values, weight in opened:
                self._loops.add(scales[rows], values[flat], weight, piece)
            bits, out = chunk.bits[rows], chunk.values[flat]
            self._loops.finish(piece, total, scratch, lowest, highest, bits, out)
        return chunk.payload()

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """s * q, exact in float32. A legal scale is at least 2^-90, so nothing is left to flush."""
        decoded = out if out is not None else on_host(num_values)
        self._loops.decode(*_opened(payload, num_values, window.block), decoded.numpy())
        return decoded

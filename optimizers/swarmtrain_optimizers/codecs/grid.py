"""Codecs of one to four bits: a bfloat16 scale per block, and codes for small integer levels.

Every level is an integer of at most 7 bits, times a scale of 8 significant bits that is an integer
multiple of 2^(e_min - 7). So what protocol.md rule 1 says of int8 holds here word for word:
a product of level, scale and weight needs at most 7 + 8 + 8 = 23 bits, which float32 holds, and 64
parts of weight up to 255 sum to below 2^(e_max + 8 + 14) in multiples of 2^(e_min - 7): that is
(e_max - e_min) + 29 bits, at most 53 while the window spans 24 binades, which is what makes a
plan legal. Order, subsets and subtraction never change a bit. Narrower levels need less: int4
(7 = 3 bits) 4 bits less, sign 7 less; the window is the same for all, for it is the plan's.

Only operations of rule 4 are used, on pieces that stay in the cache. A chunk is all scales (raw
bfloat16 bits, little-endian uint16), then all codes, packed as in `packing`. There is one way to
write a chunk: codes that stand for nothing are refused, and under a zero scale all codes are 0.
Not here: error feedback, without which fewer than four bits lose too much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from swarmtrain_optimizers.codecs.base import (
    IllegalPayload,
    Payload,
    ScaleWindow,
    UnencodableValues,
    check_length,
    check_weight,
    on_host,
    row_slices,
    rows_at_once,
)
from swarmtrain_optimizers.codecs.dither import random_words
from swarmtrain_optimizers.codecs.packing import level_table, looked_up, pack
from swarmtrain_optimizers.codecs.scales import (
    Chunk,
    Codes,
    Doubles,
    Floats,
    Words,
    check_scales,
    highest_bits,
    lowest_bits,
    raised_bits,
    scales_of,
)

_CodesOfRows = Callable[[Floats, int], Codes]
"""Codes of the ratios of some rows, and which row is the first of them."""

_Float = TypeVar("_Float", np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class Grid:
    """Facts that distinguish one codec from another."""

    name: str
    bits: int
    levels: tuple[int, ...]
    illegal: int | None
    scales_wanted: Callable[[Floats], Floats]
    codes_of: Callable[[Floats], Codes]
    codes_dithered: Callable[[Floats, Words], Codes] | None = None


class GridCodec:
    """A codec on a grid of levels; see `base.Codec` for what each function promises.

    Args:
        grid: the levels, and how values find theirs.
    """

    exact = True

    def __init__(self, grid: Grid) -> None:
        self.name = grid.name
        self._grid = grid
        self._per_byte = 8 // grid.bits
        self._table = level_table(grid.levels, grid.bits)

    def prepare(self) -> bool:
        """There is nothing to get ready."""
        return False

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Two bytes per block, then `bits` bits per value.

        Raises:
            ValueError: a block's codes do not fill whole bytes.
        """
        if block % self._per_byte:
            raise ValueError(
                f"codec {self.name!r} puts {self._per_byte} values into a byte: "
                f"a block of {block} is not a multiple of that"
            )
        return 2 * (num_values // block) + num_values // self._per_byte

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """A scale per block, rounded up to bfloat16, and the code of the level nearest to x / s.

        Raises:
            UnencodableValues: reason ``nonfinite`` or ``above-window``.
        """
        return self._encode(values, window, lambda ratio, _: self._grid.codes_of(ratio))

    def encode_stochastic(
        self, values: Tensor, window: ScaleWindow, *, seed: int, first_index: int
    ) -> bytes:
        """Round each value to one of the two levels around it; see `base.StochasticCodec`.

        Raises:
            TypeError: the codec's levels are too few.
            UnencodableValues: as `encode`.
        """
        dithered = self._grid.codes_dithered
        if dithered is None:
            raise TypeError(f"codec {self.name!r} has no stochastic rounding: its levels are few")

        def codes_of(ratio: Floats, row: int) -> Codes:
            words = random_words(seed, first_index + row * window.block, ratio.size)
            return dithered(ratio, words)

        return self._encode(values, window, codes_of)

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Length, then every scale's raw bits, then codes that no encoder makes.

        Raises:
            IllegalPayload: reason ``length``, ``scale`` or ``code``.
        """
        check_length(payload, self.payload_bytes(num_values, window.block))
        num_blocks = num_values // window.block
        bits = np.frombuffer(payload, dtype="<u2", count=num_blocks)
        check_scales(bits, window)
        codes = np.frombuffer(payload, dtype=np.uint8, offset=2 * num_blocks)
        codes = codes.reshape(num_blocks, -1)
        if codes[bits == 0].any():
            raise IllegalPayload("code", "a block with scale 0 has a code other than 0")
        if self._grid.illegal is not None:
            _refuse_nibble(codes, self._grid.illegal, window.block)

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * s * level, exact under a legal plan (rule 1)."""
        check_weight(weight)
        self._add(acc.numpy(), payload, weight, window.block)

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc -= weight * s * level: the bits of a sum that never held the part."""
        check_weight(weight)
        self._add(acc.numpy(), payload, -weight, window.block)

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """mean32 = float32(acc / W), then as `encode` (rule 6), scales held at the window's top:
        a mean of legal parts lies below it but for the rounding of its own scale."""
        chunk = self._chunk(acc.numel(), window.block)
        sums, scratch = acc.numpy(), self._scratch(chunk, window.block)
        for rows in row_slices(chunk.bits.size, window.block):
            self._finish(chunk, rows, _rows_of(sums, rows, window.block), total_weight, window,
                         scratch)  # fmt: skip
        return chunk.payload()

    def mean(
        self, parts: Sequence[tuple[Payload, int]], num_values: int, window: ScaleWindow
    ) -> bytes:
        """The bytes of `add_` for each part and then `finish`, made piece by piece in the cache:
        no sum goes through memory."""
        block = window.block
        total_weight = sum(weight for _, weight in parts)
        opened = [(*self._opened(part, num_values, block), weight) for part, weight in parts]
        chunk = self._chunk(num_values, block)
        scratch = self._scratch(chunk, block)
        sums = np.empty(scratch.shape, dtype=np.float64)
        for rows in row_slices(chunk.bits.size, block):
            piece = sums[: rows.stop - rows.start]
            piece.fill(0)
            for scales, codes, weight in opened:
                self._add_rows(piece, scales[rows], codes[rows], weight, scratch)
            self._finish(chunk, rows, piece, total_weight, window, scratch)
        return chunk.payload()

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """s * level, exact in float32. A legal scale is at least 2^-90, so nothing is flushed."""
        decoded = out if out is not None else on_host(num_values)
        flat = decoded.numpy()
        scales, codes = self._opened(payload, num_values, window.block)
        for rows in row_slices(scales.size, window.block):
            piece = _rows_of(flat, rows, window.block)
            looked_up(codes[rows].reshape(-1), self._table, piece.reshape(-1))
            np.multiply(piece, scales[rows].reshape(-1, 1), out=piece)
        return decoded

    def _encode(self, values: Tensor, window: ScaleWindow, codes_of: _CodesOfRows) -> bytes:
        chunk = self._chunk(values.numel(), window.block)
        flat = values.numpy()
        scratch = self._scratch(chunk, window.block)
        for rows in row_slices(chunk.bits.size, window.block):
            blocks = _rows_of(flat, rows, window.block)
            magnitudes = np.abs(blocks, out=scratch[: len(blocks)])
            # First of all: rounding a NaN up as an integer could wrap to -0.0 (rule 3).
            largest = magnitudes.max()
            if not math.isfinite(largest):
                raise UnencodableValues("nonfinite", "a value is NaN or infinite")
            bits = raised_bits(self._grid.scales_wanted(magnitudes), lowest_bits(window))
            if bits.max() > highest_bits(window):
                raise UnencodableValues(
                    "above-window",
                    f"values up to {largest:.3g} need a scale above exponent {window.e_max}",
                )
            self._fill(chunk, rows, blocks, bits, scratch, codes_of)
        return chunk.payload()

    def _chunk(self, num_values: int, block: int) -> Chunk:
        num_blocks = num_values // block
        return Chunk(num_blocks, self.payload_bytes(num_values, block) - 2 * num_blocks)

    def _scratch(self, chunk: Chunk, block: int) -> Floats:
        """Memory for the rows of one of `row_slices`."""
        return np.empty((min(rows_at_once(block), chunk.bits.size), block), dtype=np.float32)

    def _opened(self, payload: Payload, num_values: int, block: int) -> tuple[Floats, Codes]:
        """Scales and rows of packed codes of a payload that `check` passed."""
        num_blocks = num_values // block
        scales = scales_of(np.frombuffer(payload, dtype="<u2", count=num_blocks))
        codes = np.frombuffer(payload, dtype=np.uint8, offset=2 * num_blocks)
        return scales, codes.reshape(num_blocks, -1)

    def _fill(
        self, chunk: Chunk, rows: slice, blocks: Floats, bits: Words, ratio: Floats,
        codes_of: _CodesOfRows,
    ) -> None:  # fmt: skip
        """Scales and codes of these rows; `ratio` is overwritten, and may be `blocks`."""
        chunk.bits[rows] = bits
        # A zero scale stands for a block of zeros: dividing by infinity makes them, without NaN.
        divisors = np.where(bits == 0, np.float32(math.inf), scales_of(bits)).reshape(-1, 1)
        ratio = np.divide(blocks, divisors, out=ratio[: len(blocks)])
        width = blocks.shape[1] // self._per_byte
        packed = chunk.codes[rows.start * width : rows.stop * width]
        pack(codes_of(ratio.reshape(-1), rows.start), self._grid.bits, packed)

    def _finish(
        self, chunk: Chunk, rows: slice, sums: Doubles, total_weight: int, window: ScaleWindow,
        scratch: Floats,
    ) -> None:  # fmt: skip
        """Encode the mean of these rows."""
        # Divided in float64, rounded once into float32.
        means = np.empty(sums.shape, dtype=np.float32)
        np.divide(sums, float(total_weight), out=means, casting="same_kind")
        magnitudes = np.abs(means, out=scratch[: len(means)])
        bits = raised_bits(self._grid.scales_wanted(magnitudes), lowest_bits(window))
        bits = np.minimum(bits, highest_bits(window))
        self._fill(chunk, rows, means, bits, scratch, lambda ratio, _: self._grid.codes_of(ratio))

    def _add(self, sums: Doubles, payload: Payload, factor: int, block: int) -> None:
        scales, codes = self._opened(payload, sums.size, block)
        scratch = np.empty((min(rows_at_once(block), scales.size), block), dtype=np.float32)
        for rows in row_slices(scales.size, block):
            self._add_rows(_rows_of(sums, rows, block), scales[rows], codes[rows], factor, scratch)

    def _add_rows(
        self, sums: Doubles, scales: Floats, codes: Codes, factor: int, scratch: Floats
    ) -> None:
        """sums += factor * scale * level; the product is exact in float32, the sum in float64."""
        part = scratch[: len(sums)]
        looked_up(codes.reshape(-1), self._table, part.reshape(-1))
        np.multiply(part, (scales * np.float32(factor)).reshape(-1, 1), out=part)
        np.add(sums, part, out=sums)


def _rows_of(flat: npt.NDArray[_Float], rows: slice, block: int) -> npt.NDArray[_Float]:
    """These rows of a vector, as a view."""
    return flat[rows.start * block : rows.stop * block].reshape(-1, block)


def _refuse_nibble(codes: Codes, illegal: int, block: int) -> None:
    """Refuse 4-bit codes that stand for nothing.

    Args:
        codes: (num_blocks, block / 2) uint8, two codes a byte.
        illegal: the code.
        block: values per row.

    Raises:
        IllegalPayload: reason ``code``.
    """
    for rows in row_slices(len(codes), block):
        low = (codes[rows] & np.uint8(0x0F)) == np.uint8(illegal)
        high = (codes[rows] >> np.uint8(4)) == np.uint8(illegal)
        low |= high
        if low.any():
            index = rows.start + int(np.argmax(low.any(axis=1)))
            raise IllegalPayload("code", f"block {index} has a code {illegal}, which is no level")

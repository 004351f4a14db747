"""The k largest values of each block, two bits each, and where they stand.

SparseLoCo (arXiv 2508.15706) sends of every 4096 values the 64 largest in magnitude, with 12 bits
for the place and 2 bits for the value: 116 bytes with the scales, .028 bytes per value. The rest
stays with the sender, so this is for error feedback only, and for gather ops: every receiver
decodes all parts and adds them up. A mean of many parts has more than k values and no such form,
so `finish` and `mean` refuse.

A block keeps its k largest magnitudes, of equal ones those with the lowest index. The two bits are
a sign and one of two magnitudes, the means of the smaller and the larger kept values, split where
that loses least (two clusters on a line), rounded to bfloat16. Both lie inside the plan's window or
are 0, and level times weight needs 16 bits, so sums in float64 are exact as in `grid`: `subtract_`
undoes `add_`.

A chunk of n blocks is n smaller magnitudes, n larger ones (raw bfloat16 bits, little-endian
uint16), then a record per block: k indices, ascending, each with as many bits as the block's
last index needs; k codes of 2 bits, larger + 2 * (x < 0), in the same order; zeros to the next
byte. Bits fill a byte from the lowest. A code that stands for zero is written as 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

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
)
from swarmtrain_optimizers.codecs.scales import (
    Codes,
    Floats,
    Words,
    check_scales,
    highest_bits,
    lowest_bits,
    nearest_bits,
    scales_of,
)

KEPT = 64
"""Values kept of each block, SparseLoCo's choice for blocks of 4096."""

BLOCK_MAX = 65_536
_CODE_BITS = 2
_KEPT_BYTES = 16
"""A kept value's share of the cache beside a value's, for its bits each take a byte while packed:
so many blocks are worked on at once that what is kept of them fits."""

_MAGNITUDE = 0x7FFF_FFFF
_INFINITE = 0x7F80_0000

Indices = npt.NDArray[np.int64]


class TopK:
    """The topk codec; a block of the window is a chunk of the paper.

    Args:
        kept: values kept of each block, k; None for 64.

    Raises:
        ValueError: `kept` is out of range.
    """

    exact = True

    def __init__(self, kept: int | None = None) -> None:
        if kept is not None and not 1 <= kept <= BLOCK_MAX:
            raise ValueError(f"topk keeps 1 to {BLOCK_MAX} values of a block, not {kept}")
        self.name = "topk" if kept is None else f"topk-{kept}"
        self.kept = KEPT if kept is None else kept
        self._piece = self.kept * _KEPT_BYTES

    def prepare(self) -> bool:
        """There is nothing to get ready."""
        return False

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Four bytes per block, and its record.

        Raises:
            ValueError: a block has fewer values than are kept, or more than 65536.
        """
        if not self.kept <= block <= BLOCK_MAX:
            raise ValueError(
                f"codec {self.name!r} keeps {self.kept} values of a block of at most {BLOCK_MAX}: "
                f"a block of {block} does not fit"
            )
        return (num_values // block) * (4 + self._record_bytes(block))

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """Indices, codes and two magnitudes of each block.

        Raises:
            UnencodableValues: reason ``nonfinite`` or ``above-window``.
        """
        self.payload_bytes(values.numel(), window.block)
        blocks: Floats = values.numpy().reshape(-1, window.block)
        levels = np.empty((2, len(blocks)), dtype="<u2")
        records = np.empty((len(blocks), self._record_bytes(window.block)), dtype=np.uint8)
        for rows in row_slices(len(blocks), self._piece):
            indices = _largest(blocks[rows], self.kept)
            kept = np.take_along_axis(blocks[rows], indices, axis=1)
            bits = _levels(np.abs(kept), window)
            if bits.max() > highest_bits(window):
                raise UnencodableValues(
                    "above-window",
                    f"values up to {np.abs(kept).max():.3g} need a scale above exponent "
                    f"{window.e_max}",
                )
            levels[:, rows] = bits
            records[rows] = _packed(indices, _codes(kept, bits), _index_bits(window.block))
        return levels.tobytes() + records.tobytes()

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Length, both magnitudes' raw bits and their order, indices, codes, padding.

        Raises:
            IllegalPayload: reason ``length``, ``scale``, ``index`` or ``code``.
        """
        check_length(payload, self.payload_bytes(num_values, window.block))
        levels, records = self._opened(payload, num_values, window.block)
        for bits in levels:
            check_scales(bits, window)
        _refuse(levels[0] > levels[1], "scale", "has a smaller magnitude above the larger one")
        for rows in row_slices(len(records), self._piece):
            indices, codes, padding = self._unpacked(records[rows], window.block)
            first = rows.start
            _refuse(padding, "code", "has bits behind its last code", first)
            _refuse(indices[:, -1] >= window.block, "index", "has an index outside it", first)
            ascends = np.diff(indices, axis=1, prepend=-1).min(axis=1) > 0
            _refuse(~ascends, "index", "has indices that do not ascend", first)
            level = np.where(codes & 1, levels[1, rows, None], levels[0, rows, None])
            not_zero = np.where(level == 0, codes, 0).max(axis=1) > 0
            _refuse(not_zero, "code", "has a zero that is not coded as 0", first)

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * decoded where values were kept; exact under a legal plan."""
        check_weight(weight)
        self._add(acc, payload, weight, window)

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc -= weight * decoded: the bits of a sum that never held the part."""
        check_weight(weight)
        self._add(acc, payload, -weight, window)

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """Refused: a mean has no form in this codec.

        Raises:
            TypeError: always.
        """
        self._refuse_mean()

    def mean(
        self, parts: Sequence[tuple[Payload, int]], num_values: int, window: ScaleWindow
    ) -> bytes:
        """Refused as `finish` is.

        Raises:
            TypeError: always.
        """
        self._refuse_mean()

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """The kept values' levels, and zeros elsewhere."""
        decoded = out if out is not None else on_host(num_values)
        decoded.zero_()
        flat = decoded.numpy()
        for part, places, values in self._pieces(payload, num_values, window.block):
            flat[part][places] = values
        return decoded

    def _refuse_mean(self) -> NoReturn:
        raise TypeError(
            f"codec {self.name!r} is for gather ops: a mean of parts has more values than it keeps"
        )

    def _record_bytes(self, block: int) -> int:
        return -(-self.kept * (_index_bits(block) + _CODE_BITS) // 8)

    def _add(self, acc: Tensor, payload: Payload, factor: int, window: ScaleWindow) -> None:
        sums = acc.numpy()
        for part, places, values in self._pieces(payload, acc.numel(), window.block):
            # No place comes twice, as `check` made sure: else one of the two would be lost.
            sums[part][places] += values * np.float32(factor)

    def _opened(
        self, payload: Payload, num_values: int, block: int
    ) -> tuple[npt.NDArray[np.uint16], Codes]:
        """(2, num_blocks) bits of the magnitudes, and the records, one per row."""
        num_blocks = num_values // block
        levels = np.frombuffer(payload, dtype="<u2", count=2 * num_blocks).reshape(2, -1)
        records = np.frombuffer(payload, dtype=np.uint8, offset=4 * num_blocks)
        return levels, records.reshape(num_blocks, -1)

    def _unpacked(self, records: Codes, block: int) -> tuple[Indices, Codes, npt.NDArray[np.bool_]]:
        """(rows, k) indices and codes, and whether a row's padding has a bit set."""
        width = _index_bits(block)
        bits = np.unpackbits(records, axis=1, bitorder="little")
        end = self.kept * width
        stop = end + self.kept * _CODE_BITS
        indices = bits[:, :end].reshape(len(records), self.kept, width) @ _powers(width, np.int64)
        codes = bits[:, end:stop].reshape(len(records), self.kept, _CODE_BITS)
        padding: npt.NDArray[np.bool_] = bits[:, stop:].max(axis=1, initial=0).astype(np.bool_)
        return indices, codes @ _powers(_CODE_BITS, np.uint8), padding

    def _pieces(
        self, payload: Payload, num_values: int, block: int
    ) -> Iterator[tuple[slice, Indices, Floats]]:
        """For some blocks at a time: their part of the chunk, where in that part values stand, and
        which, of a payload that `check` passed."""
        levels, records = self._opened(payload, num_values, block)
        for rows in row_slices(len(records), self._piece):
            indices, codes, _ = self._unpacked(records[rows], block)
            smaller, larger = scales_of(levels[:, rows])
            values = np.where(codes & 1, larger[:, None], smaller[:, None])
            np.negative(values, out=values, where=codes > 1)
            indices += np.arange(len(indices), dtype=np.int64)[:, None] * block
            part = slice(rows.start * block, rows.stop * block)
            yield part, indices.reshape(-1), values.reshape(-1)


def _index_bits(block: int) -> int:
    """Bits of a block's last index, at least one: 12 for 4096."""
    return max(1, (block - 1).bit_length())


def _powers(width: int, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    return np.left_shift(1, np.arange(width)).astype(dtype)


def _largest(blocks: Floats, kept: int) -> Indices:
    """Ascending indices of each row's `kept` largest magnitudes, lowest index first among equals.

    Raises:
        UnencodableValues: reason ``nonfinite``.
    """
    place = blocks.shape[1] - kept
    indices = np.empty((len(blocks), kept), dtype=np.int64)
    for rows in row_slices(*blocks.shape):
        # Magnitudes compare like integers, and no NaN can disturb the order.
        magnitudes = blocks[rows].view(np.int32) & np.int32(_MAGNITUDE)
        if magnitudes.max() >= _INFINITE:
            raise UnencodableValues("nonfinite", "a value is NaN or infinite")
        least = np.partition(magnitudes, place, axis=1)[:, place : place + 1]
        chosen = magnitudes > least
        ties = magnitudes == least
        missing = kept - np.count_nonzero(chosen, axis=1)
        crowded = np.flatnonzero(np.count_nonzero(ties, axis=1) > missing)
        ties[crowded] &= np.cumsum(ties[crowded], axis=1) <= missing[crowded, None]
        chosen |= ties
        indices[rows] = np.flatnonzero(chosen).reshape(-1, kept)
        indices[rows] -= np.arange(len(chosen))[:, None] * blocks.shape[1]
    return indices


def _levels(magnitudes: Floats, window: ScaleWindow) -> Words:
    """(2, rows) bits of the two magnitudes that lose least: the split of the sorted row where
    sum_small^2 / n_small + sum_large^2 / n_large is largest, the first of several.

    Args:
        magnitudes: (rows, kept) float32.
        window: below it a level is zero.
    """
    kept = magnitudes.shape[1]
    # Prefix sums are made one after the other, so they have the same bits everywhere.
    sums = np.cumsum(np.sort(magnitudes, axis=1), axis=1, dtype=np.float64)
    total = sums[:, -1:]
    if kept == 1:
        means = np.concatenate((total, total), axis=1)
    else:
        counts = np.arange(1, kept, dtype=np.float64)
        small = sums[:, :-1]
        large = total - small
        score = small * small / counts + large * large / (kept - counts)
        best = np.argmax(score, axis=1)[:, None]
        count = best + 1.0
        mean_small = np.take_along_axis(small, best, axis=1) / count
        mean_large = np.take_along_axis(large, best, axis=1) / (kept - count)
        means = np.concatenate((mean_small, mean_large), axis=1)
    return nearest_bits(np.ascontiguousarray(means.T, dtype=np.float32), lowest_bits(window))


def _codes(kept: Floats, bits: Words) -> Codes:
    """larger + 2 * (x < 0): the nearer magnitude, halfway the larger one; 0 for zero."""
    smaller, larger = scales_of(bits)
    middle = (smaller.astype(np.float64) + larger) / 2
    is_larger = np.abs(kept) >= middle[:, None]
    level = np.where(is_larger, larger[:, None], smaller[:, None])
    codes: Codes = is_larger.view(np.uint8) | ((kept < 0).view(np.uint8) << np.uint8(1))
    codes[level == 0] = 0
    return codes


def _packed(indices: Indices, codes: Codes, width: int) -> Codes:
    """(rows, record_bytes) uint8 of indices and codes, lowest bits first."""
    rows = len(indices)
    index_bits = (indices[:, :, None] >> np.arange(width)) & 1
    code_bits = (codes[:, :, None] >> np.arange(_CODE_BITS, dtype=np.uint8)) & np.uint8(1)
    parts = (index_bits.astype(np.uint8).reshape(rows, -1), code_bits.reshape(rows, -1))
    return np.packbits(np.concatenate(parts, axis=1), axis=1, bitorder="little")


def _refuse(found: npt.NDArray[np.bool_], reason: str, what: str, first: int = 0) -> None:
    """Refuse a chunk with the number of the first block that is so.

    Raises:
        IllegalPayload: with this reason.
    """
    if found.any():
        raise IllegalPayload(reason, f"block {first + int(np.argmax(found))} {what}")

"""The seam between the exchange, which moves opaque chunks, and the codecs, which know numbers.

Transport describes in `swarmtrain_transport.arithmetic` what it needs; here that is met with a
codec looked up by PLAN's name for it, and a codec's errors become those of the exchange: the
other side's bytes were wrong (RemoteFault), or our own values cannot be sent
(ContributionRefused). Not here: any arithmetic, and any decision.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import (
    Codec,
    IllegalPayload,
    StochasticCodec,
    UnencodableValues,
)
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.rows import products_with
from swarmtrain_optimizers.strategies.base import Given, Values
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_optimizers.vectors import fresh
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer, ContributionRefused, Window
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.result import OpResult


def codec_of(window: Window) -> Codec:
    """The codec that a plan names for parts.

    Raises:
        RemoteFault: reason ``codec``, this version does not know it.
    """
    return _named(window.codec)


def result_codec_of(window: Window) -> Codec:
    """The codec that a plan names for the result.

    Raises:
        RemoteFault: reason ``codec``, this version does not know it.
    """
    return _named(window.result_codec or window.codec)


def rule_of(window: Window) -> RobustRule | None:
    """Return the rule that a plan names in the place of the mean, None for the mean.

    Raises:
        RemoteFault: reason ``rule``, this version does not know it.
    """
    if not window.rule:
        return None
    try:
        return rule_named(window.rule)
    except ValueError as exc:
        raise RemoteFault("rule", str(exc)) from exc


def _named(name: str) -> Codec:
    try:
        return codec_named(name)
    except ValueError as exc:
        raise RemoteFault("codec", str(exc)) from exc


class ChunkSum:
    """The sum of one chunk's parts; an `Accumulator` of the exchange.

    Parts are kept, which their owner does anyway, and summed in `finish`, a piece at a time: sums
    are exact, so when they are made changes no bit, and no float64 vector goes through memory.

    Args:
        codec: codec of parts.
        result_codec: codec of their mean.
        rule: takes the place of the mean, None for the mean.
        num_values: values in the chunk, a multiple of the block.
        window: scale window of the plan.
        scalars: numbers of the whole vectors that the rule needs.
        centre: start of the rule, float32; b"" for zero.
    """

    def __init__(
        self,
        codec: Codec,
        result_codec: Codec,
        num_values: int,
        window: Window,
        rule: RobustRule | None = None,
        scalars: tuple[float, ...] = (),
        centre: Buffer = b"",
    ) -> None:
        self._codec = codec
        self._result_codec = result_codec
        self._rule, self._scalars, self._centre = rule, scalars, centre
        self._num_values = num_values
        self._window = window
        self._parts: list[tuple[Buffer, int]] = []

    @property
    def total(self) -> Tensor:
        """(num_values,) float64, the sum so far: made when asked for, to be looked at."""
        acc = torch.zeros(self._num_values, dtype=torch.float64)
        for part, weight in self._parts:
            self._codec.add_(acc, part, weight, self._window)
        return acc

    def add(self, part: Buffer, weight: int) -> None:
        """Add a part that `CodecArithmetic.check` passed, times its weight; it must not change."""
        self._parts.append((part, weight))

    def unrounded(self) -> bytes:
        """The sum itself, unrounded: float64, little-endian."""
        data: bytes = self.total.numpy().astype("<f8", copy=False).tobytes()
        return data

    def finish(self, total_weight: int) -> bytes:
        """The encoded mean.

        Raises:
            LocalFault: `total_weight` is not the sum of the parts' weights.
        """
        if total_weight != sum(weight for _, weight in self._parts):
            raise LocalFault("the weights of a mean are not those of its parts")
        if self._rule is not None:
            return self._ruled(self._rule)
        if self._result_codec.name == self._codec.name:
            return self._codec.mean(self._parts, self._num_values, self._window)
        return self._result_codec.finish(self.total, total_weight, self._window)

    def _ruled(self, rule: RobustRule) -> bytes:
        """Apply the rule to the parts, which come in the order of keys; rule 7."""
        rows = [self._codec.decode(part, self._num_values, self._window) for part, _ in self._parts]
        weights = [weight for _, weight in self._parts]
        try:
            centre = _floats(self._centre) if self._centre else None
            scalars = _table(rule, self._scalars, len(rows) + (centre is not None))
            found = rule.aggregate(rows, weights, scalars=scalars, previous=centre)
        except ValueError as error:
            raise LocalFault(f"the rule {rule.name} cannot be followed: {error}") from error
        return self._result_codec.finish(found.double(), 1, self._window)


def _table(rule: RobustRule, numbers: tuple[float, ...], num_rows: int) -> Tensor | None:
    """Unpack FREEZE's scalars as the rule wants them: (n,) norms or (n, n) products, float64.

    Raises:
        ValueError: these are not the numbers that the rule needs.
    """
    wanted = {
        Needs.COORDINATES: 0,
        Needs.NORMS: num_rows,
        Needs.PRODUCTS: num_rows * (num_rows + 1) // 2,
    }[rule.needs]
    if len(numbers) != wanted:
        raise ValueError(f"{len(numbers)} scalars of whole vectors, it needs {wanted}")
    known = torch.tensor(numbers, dtype=torch.float64)
    if rule.needs is Needs.COORDINATES:
        return None
    if rule.needs is Needs.NORMS:
        return known
    table = torch.zeros((num_rows, num_rows), dtype=torch.float64)
    rows, columns = torch.triu_indices(num_rows, num_rows)
    table[rows, columns] = known
    table[columns, rows] = known
    return table


def _floats(values: Buffer) -> Tensor:
    """Read the float32 values that `CodecArithmetic.values` has packed."""
    return torch.from_numpy(np.frombuffer(bytes(values), dtype="<f4").astype(np.float32))


class CodecArithmetic:
    """Chunk arithmetic on this version's codecs; an `Arithmetic` of the exchange."""

    def is_exact(self, codec: str) -> bool:
        """Return True if sums in this codec are exact.

        Raises:
            RemoteFault: reason ``codec``, this version does not know it.
        """
        return codec_of(Window(codec, 1, 0, 0)).exact

    def chunk_bytes(self, num_values: int, window: Window) -> int:
        """Exact length of a part's encoded chunk of `num_values` values."""
        return codec_of(window).payload_bytes(num_values, window.block)

    def check(self, part: Buffer, num_values: int, window: Window) -> None:
        """Refuse a part's illegal chunk before anything is done with it.

        Raises:
            RemoteFault: reason ``length``, ``scale``, ``code`` or ``index``.
        """
        _check(codec_of(window), part, num_values, window)

    def check_result(self, chunk: Buffer, num_values: int, window: Window) -> None:
        """Check a result's chunk, which may be in another codec; raises as `check` does."""
        _check(result_codec_of(window), chunk, num_values, window)

    def accumulator(
        self,
        num_values: int,
        window: Window,
        scalars: tuple[float, ...] = (),
        centre: Buffer = b"",
    ) -> ChunkSum:
        """A zero sum for a chunk of `num_values` values, or what the plan's rule makes of it."""
        codecs = codec_of(window), result_codec_of(window)
        return ChunkSum(*codecs, num_values, window, rule_of(window), scalars, centre)

    def check_sum(self, data: Buffer, num_values: int, window: Window, weight: int) -> None:
        """Refuse what cannot be the sum of legal parts whose weights add up to `weight`.

        Raises:
            RemoteFault: reason ``length``, or ``sum``: it is no multiple of 2^(e_min - 7), not
                finite, or larger than parts of that weight can make it.
        """
        if len(data) != 8 * num_values:
            raise RemoteFault("length", f"a sum of {len(data)} bytes for {num_values} values")
        values = np.frombuffer(data, dtype="<f8")
        # A scale is below 2^(e_max + 1), a part's value at most 128 of it; and a sum has 53 bits.
        by_parts = math.ldexp(weight, window.e_max + 8)
        most = min(by_parts, math.ldexp(1.0, limits.EXACT_BITS + window.e_min - 7))
        if not (np.abs(values) <= most).all():
            raise RemoteFault(
                "sum", "a cell's sum that its parts cannot have, or that is no number"
            )
        units = np.ldexp(values, 7 - window.e_min)
        if (np.trunc(units) != units).any():
            raise RemoteFault("sum", "a cell's sum that is no sum of whole units")

    def finish_sums(
        self, sums: Sequence[Buffer], num_values: int, window: Window, weight: int
    ) -> bytes:
        """The encoded mean of which these are the sums of parts, (num_values,) float64 each."""
        total = np.zeros(num_values, dtype=np.float64)
        for one in sums:
            total += np.frombuffer(one, dtype="<f8")
        return result_codec_of(window).finish(torch.from_numpy(total), weight, window)

    def products(
        self, part: Buffer, others: Sequence[Buffer], num_values: int, window: Window,
        centre: Buffer = b"",
    ) -> tuple[float, ...]:  # fmt: skip
        """Inner products of a checked chunk with the same chunk of others, in float64, and last
        with the centre if there is one."""
        codec = codec_of(window)
        row = codec.decode(part, num_values, window)
        rows = [row if one is part else codec.decode(one, num_values, window) for one in others]
        rows += [_floats(centre)] if centre else []
        return tuple(products_with(row, rows).tolist())

    def gauges(
        self, parts: Sequence[Buffer], result: Buffer, num_values: int, window: Window
    ) -> tuple[tuple[float, float], ...]:
        """Squared norm and product with the result, of each checked chunk and of the result. In
        whatever order this machine adds fastest: nothing is decided by it."""
        mean = result_codec_of(window).decode(result, num_values, window)
        codec = codec_of(window)
        rows = (codec.decode(part, num_values, window) for part in parts)
        seen = [(float(row.dot(row)), float(row.dot(mean))) for row in rows]
        return (*seen, (float(mean.dot(mean)),) * 2)

    def values(self, chunk: Buffer, num_values: int, window: Window) -> bytes:
        """A checked result chunk as float32, little-endian."""
        decoded = result_codec_of(window).decode(chunk, num_values, window)
        data: bytes = decoded.numpy().astype("<f4", copy=False).tobytes()
        return data

    def square(self, centre: Buffer) -> float:
        """Squared norm of such values, in float64."""
        row = _floats(centre)
        return float(products_with(row, [row])[0])


def _check(codec: Codec, chunk: Buffer, num_values: int, window: Window) -> None:
    try:
        codec.check(chunk, num_values, window)
    except IllegalPayload as exc:
        raise RemoteFault(exc.reason, exc.detail) from exc


class TensorContribution:
    """One peer's difference for one op; a `Contribution` of the exchange.

    Args:
        values: (num_values,) contiguous float32 on the CPU, or what makes parts of it when they are
            asked for; nobody may change it until the op has ended.
        padded: length with the zeros that fill the last block; `num_values` if None.
        seed: seed of stochastic rounding, other for each op and peer; None rounds to nearest.
    """

    def __init__(
        self, values: Values, padded: int | None = None, *, seed: int | None = None
    ) -> None:
        self._values = values
        self._seed = seed
        self._padded = values.numel() if padded is None else padded

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """Encode values [start, stop); the same range gives the same bytes.

        Raises:
            ContributionRefused: reason ``nonfinite`` or ``above-window``.
            LocalFault: the range is outside the vector or cuts a block.
        """
        inside = 0 <= start < stop <= self._padded
        if not inside or start % window.block or stop % window.block:
            raise LocalFault(
                f"range [{start}, {stop}) of {self._padded} values is not made of whole "
                f"blocks of {window.block}"
            )
        try:
            piece = self._piece(start, stop)
            if self._seed is not None:
                return _stochastic(codec_of(window)).encode_stochastic(
                    piece, window, seed=self._seed, first_index=start
                )
            return codec_of(window).encode(piece, window)
        except UnencodableValues as exc:
            raise ContributionRefused(exc.reason) from exc

    def _piece(self, start: int, stop: int) -> Tensor:
        missing = stop - max(start, self._values.numel())
        piece = self._values[start:stop]
        return piece if missing <= 0 else torch.cat((piece, torch.zeros(missing)))

    def decoded(self, start: int, stop: int, window: Window) -> Tensor:
        """Decode our own part as the others do, (stop - start,) float32: for error feedback.

        Encodes again instead of keeping every part: the bytes are the same.

        Raises:
            ContributionRefused: as `encode`.
            LocalFault: as `encode`.
        """
        payload = self.encode(start, stop, window)
        return codec_of(window).decode(payload, stop - start, window)


def _stochastic(codec: Codec) -> StochasticCodec:
    """Return the codec, of which a checked run file says that it can round stochastically.

    Raises:
        LocalFault: it cannot.
    """
    if not facts_of(codec.name).dithers:
        raise LocalFault(f"codec {codec.name} cannot round stochastically")
    return cast(StochasticCodec, codec)


MakeChunk = Callable[[int, int, Tensor | None], Tensor]
"""(start, stop, out) -> (stop - start,) float32, the values of a chunk; `out` if that is given."""


class Chunked:
    """A vector whose chunks are made when they are asked for, so that it is never there as a whole.
    The newest chunk is remembered: who asks in order has each made once.

    Args:
        cuts: places where chunks begin, in order, and at last the vector's length.
        make: makes one of them.
        zeros: (start, stop) places that are 0 whatever is made.
    """

    def __init__(
        self, cuts: Sequence[int], make: MakeChunk, zeros: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._cuts = cuts
        self._make = make
        self._zeros = zeros
        self._newest = (-1, torch.empty(0))

    def numel(self) -> int:
        """Length of the vector."""
        return self._cuts[-1]

    def __getitem__(self, places: slice) -> Tensor:
        """(stop - start,) float32; only read."""
        start, stop, _ = places.indices(self.numel())
        pieces = []
        while start < stop:
            index = bisect_right(self._cuts, start) - 1
            low, high = self._cuts[index], min(stop, self._cuts[index + 1])
            pieces.append(self._chunk(index)[start - low : high - low])
            start = high
        return pieces[0] if len(pieces) == 1 else torch.cat([torch.empty(0), *pieces])

    def _chunk(self, index: int) -> Tensor:
        if self._newest[0] != index:
            start, stop = self._cuts[index], self._cuts[index + 1]
            made = self._make(start, stop, None)
            for low, high in self._zeros:
                made[max(0, low - start) : max(0, high - start)] = 0
            self._newest = index, made
        return self._newest[1]

    def write_to(self, out: Tensor) -> None:
        """Make all of it there; `out` may be shorter than the vector."""
        for start, stop in pairwise(self._cuts):
            if stop <= out.numel():
                self._make(start, stop, out[start:stop])
            else:
                out[start:] = self._make(start, stop, None)[: max(0, out.numel() - start)]


def result_cuts(result: OpResult) -> tuple[int, ...]:
    """Places at which the chunks of a result begin, and its length."""
    ends = [(start, stop) for start, stop, _ in result.ranges]
    begins = [low for start, stop in ends for low in range(start, stop, result.chunk_values)]
    return (*begins, ends[-1][1]) if ends else (0,)


def mean_of(result: OpResult, zeros: Sequence[tuple[int, int]] = ()) -> Chunked:
    """The mean difference of an op, from its committed chunks, each decoded when it is asked for.

    Of a gather op it is the weighted mean sum_c w_c dec(c) / sum_c w_c of the contributions that
    COMMIT names, summed in float64 in PLAN's order, rounded once to float32; |x| < 2^-100 is 0.

    Args:
        result: result of the op.
        zeros: (start, stop) places that are 0 whatever was sent.

    Raises:
        RemoteFault: reason ``length``, ``scale`` or ``code``, a chunk is illegal (its owner erred,
            and its hash was agreed on all the same); or ``result``, slices do not cover the vector.
    """
    window, arithmetic = result.window, CodecArithmetic()
    if result.weights is not None:
        return _gathered(result, result.weights, zeros)
    codec = result_codec_of(window)
    chunks: dict[int, Buffer] = {}
    position = 0
    for piece in result.slices:
        num_chunks = -(-(piece.stop - piece.start) // result.chunk_values)
        if piece.start != position or piece.stop < position or num_chunks != len(piece.chunks):
            raise RemoteFault(
                "result",
                f"slice [{piece.start}, {piece.stop}) with {len(piece.chunks)} chunks does not "
                f"follow value {position}",
            )
        for chunk in piece.chunks:
            stop = min(position + result.chunk_values, piece.stop)
            arithmetic.check_result(chunk, stop - position, window)
            chunks[position] = chunk
            position = stop
    if position != result.num_values:
        raise RemoteFault("result", f"slices cover {position} of {result.num_values} values")

    def make(start: int, stop: int, out: Tensor | None) -> Tensor:
        return codec.decode(chunks[start], stop - start, window, out)

    return Chunked((*chunks, position), make, zeros)


def contributions_of(result: OpResult) -> list[Given]:
    """Each contribution to a gather op, in PLAN's order.

    Raises:
        RemoteFault: as `mean_of`.
    """
    weights = result.weights or ()
    cuts, codec = _checked_cuts(result, weights), codec_of(result.window)
    return [
        Given(
            piece.contributors[0], weight,
            torch.cat([
                codec.decode(chunk, stop - start, result.window)
                for chunk, (start, stop) in zip(piece.chunks, pairwise(cuts), strict=True)
            ]),
        )
        for piece, weight in zip(result.slices, weights, strict=True)
    ]  # fmt: skip


def _checked_cuts(result: OpResult, weights: tuple[int, ...]) -> tuple[int, ...]:
    """The places at which chunks of whole contributions begin, and their length, once all that was
    given is known to be legal."""
    arithmetic = CodecArithmetic()
    begins = range(0, result.num_values, result.chunk_values)
    cuts = (*begins, result.num_values)
    for piece in result.slices:
        if (piece.start, piece.stop, len(piece.chunks)) != (0, result.num_values, len(begins)):
            raise RemoteFault("result", f"{len(piece.chunks)} chunks are no whole contribution")
    if not weights or len(weights) != len(result.slices):
        raise RemoteFault("result", f"{len(result.slices)} contributions, {len(weights)} weights")
    for index, start in enumerate(begins):
        for piece in result.slices:
            arithmetic.check(piece.chunks[index], cuts[index + 1] - start, result.window)
    return cuts


def _gathered(
    result: OpResult, weights: tuple[int, ...], zeros: Sequence[tuple[int, int]]
) -> Chunked:
    """The weighted mean of whole contributions."""
    cuts, codec = _checked_cuts(result, weights), codec_of(result.window)

    def make(start: int, stop: int, out: Tensor | None) -> Tensor:
        index = start // result.chunk_values
        total = torch.zeros(stop - start, dtype=torch.float64)
        for piece, weight in zip(result.slices, weights, strict=True):
            codec.add_(total, piece.chunks[index], weight, result.window)
        found = flush_tiny_(total.div_(sum(weights)).float())
        return found if out is None else out.copy_(found)

    return Chunked(cuts, make, zeros)


def decode_result(result: OpResult, out: Tensor | None = None) -> Tensor:
    """The mean difference of an op as a whole vector, see `mean_of`.

    Args:
        result: result of the op.
        out: contiguous float32 to write to and return, new memory if None: touching that for the
            first time costs more than decoding. It may be shorter than the padded vector.

    Returns:
        (num_values,) float32, or `out`.

    Raises:
        RemoteFault: as `mean_of`.
    """
    mean = fresh(result.num_values) if out is None else out
    mean_of(result).write_to(mean)
    return mean

"""A strategy driven by all ranks of a job in step, each on its own vector.

A strategy works value by value, so on the values of one rank it does what it does on the whole.
`RankDriver` is a `Driver` on a rank's own vector: it turns places of the whole vector into its own.
`LeadDriver` is rank 0's: each of its calls is told to the others and then made by all of them.
`serve` is what the others do meanwhile. Not here: when an op is due, which is the machine's at
rank 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from enum import IntEnum
from typing import Any

import msgspec
import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import CodecArithmetic, TensorContribution, decode_result
from swarmtrain.peer.ranks.contribution import Encoder, SpreadContribution
from swarmtrain.peer.ranks.layout import RankLayout
from swarmtrain.peer.ranks.places import windows
from swarmtrain.peer.ranks.ranks import Ranks
from swarmtrain.peer.training.driver import Driver, Weights
from swarmtrain.peer.training.own_work import OwnPart, is_lost
from swarmtrain.peer.training.state_image import Put, StateImage
from swarmtrain_optimizers.strategies.base import Strategy, Values
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_transport import limits
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest
from swarmtrain_transport.blocks.retention import Piece, bytes_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult

CHUNK_VALUES = limits.STATE_CHUNK_BYTES // 4
"""Values of a state chunk."""


class Word(IntEnum):
    """Commands of rank 0."""

    GO = 0
    OVER = 1
    CONFIG = 2
    FAILED = 3
    OFFER = 4
    CONTRIBUTE = 5
    END_OP = 6
    SKIP = 7
    SETTLE = 8
    FRESH = 9
    PUT = 10
    LOADED = 11
    RESTORED = 12
    PIECE = 13
    HASHES = 14
    BEGIN = 15


class RankDriver(Driver):
    """One rank's part of the job's place in the run.

    Args:
        me: the job's id as a peer.
        strategy: strategy on the own vector.
        weights: weights of this rank, on the own vector.
        layout: layout of the own vector.
        ranks: ranks of the job.
        digest: digest of the whole model's layout.
        snapshot_rounds: see `Driver`.
        put: see `Driver`; at rank 0.

    Attributes:
        is_broken: a call failed that the other ranks have begun; only rank 0 knows it.
    """

    def __init__(
        self,
        me: PeerId,
        strategy: Strategy,
        weights: Weights,
        layout: RankLayout,
        ranks: Ranks,
        *,
        digest: bytes,
        snapshot_rounds: int,
        put: Put | None = None,
    ) -> None:
        super().__init__(
            me, strategy, weights,
            layout=digest, num_values=layout.num_values, snapshot_rounds=snapshot_rounds,
            decode=self._decoded, put=put,
        )  # fmt: skip
        self.is_broken = False
        self._ranks, self._places = ranks, layout.places
        self._whole: OpResult | None = None
        self._incoming: dict[str, Tensor] = {}
        self._numbered = 0
        self._encoder: Encoder | None = None

    def listen(self) -> None:
        """Answer rank 0's requests to encode, on another thread."""
        self._encoder = Encoder(self._ranks)

    def contribute(self) -> OwnPart:
        """Give this rank's values; see `Driver.contribute`."""
        part = super().contribute()
        self._numbered += 1
        if self._encoder is not None and isinstance(part.contribution, TensorContribution):
            self._encoder.give(self._numbered, part.contribution)
        return part

    def end_op(self, result: OpResult) -> StateImage:
        """See `Driver.end_op`; `result` has its chunks at rank 0 alone."""
        self._whole = result
        image = super().end_op(self._own(result))
        self._whole = None
        return image

    def fresh(self) -> None:
        """Room for a state that comes piece by piece."""
        names = [name for name, _ in self._strategy.state_arrays()]
        self._incoming = {name: torch.zeros(self._strategy.num_values) for name in names}

    def put(self, index: int, start: int, stop: int, values: Tensor) -> None:
        """Take this rank's part of values [start, stop) of an array, which rank 0 has."""
        array = list(self._incoming.values())[index]
        self._ranks.move(self._places.spread(start, stop, 0), values, array)

    def begin(self) -> None:
        """Let the weights be the anchor that came: as `Driver.begin_with`."""
        came = self._came()
        super().begin_with(came.pop("anchor"), came)

    def restore(self, op: int) -> StateImage:
        """Go on from the state that came: as `Driver.restored`."""
        return self.restored(op, self._came())

    def piece(self, index: int, start: int, stop: int) -> Tensor:
        """Values [start, stop) of an array of the state, (stop - start,); (0,) but at rank 0."""
        return self._piece(index, start, stop, 0)

    def _piece(self, index: int, start: int, stop: int, target: int) -> Tensor:
        _, array = self._strategy.state_arrays()[index]
        values = torch.empty(stop - start if self._ranks.rank == target else 0)
        self._ranks.move(self._places.collected(start, stop, target), array, values)
        return values

    def hashes(self) -> list[bytes]:
        """Content hashes of the state's chunks, all of them at rank 0. A chunk is hashed by the
        rank that owns its first value."""
        mine, owners = [], []
        for pieces in self._chunks():
            owner = self._places.owners(pieces[0][1], pieces[0][1] + 1)[0]
            values = [self._piece(*piece, owner) for piece in pieces]
            owners.append(owner)
            if owner == self._ranks.rank:
                mine.append(content_hash(_bytes_of(torch.cat(values))))
        if not self._ranks.leads:
            if mine:
                self._ranks.send_bytes([0], [b"".join(mine)])
            return []
        found = {0: iter(mine)}
        for rank in sorted(set(owners) - {0}):
            (data,) = self._ranks.take_bytes([limits.HASH_BYTES * owners.count(rank)], rank)
            found[rank] = (
                data[at : at + limits.HASH_BYTES] for at in range(0, len(data), limits.HASH_BYTES)
            )
        return [next(found[owner]) for owner in owners]

    def dropped(self) -> None:
        """Let contributions go whose outcome is known."""
        if self._encoder is not None:
            self._encoder.drop(self._numbered - len(self._given) + 1)

    def end(self) -> None:
        """Rank 0 asks for nothing more."""
        if self._encoder is not None:
            self._encoder.join()

    def _chunks(self) -> Iterator[list[tuple[int, int, int]]]:
        """(array, start, stop) of the pieces of each chunk of the state."""
        size = self._places.num_values
        total = len(self._strategy.state_arrays()) * size
        for low in range(0, total, CHUNK_VALUES):
            high, pieces = min(low + CHUNK_VALUES, total), []
            while low < high:
                index, start = divmod(low, size)
                stop = min(size, start + high - low)
                pieces.append((index, start, stop))
                low += stop - start
            yield pieces

    def _own(self, result: OpResult) -> OpResult:
        """Return the result on this rank's own vector, without its chunks."""
        me, places = self._ranks.rank, self._places
        slices = tuple(
            SliceResult(*places.own_range(me, piece.start, piece.stop), piece.contributors, ())
            for piece in result.slices
        )
        return replace(result, num_values=self._strategy.num_values, slices=slices)

    def _decoded(self, own: OpResult) -> Tensor:
        """(padded,) the mean of this rank's values: each chunk goes to those who have any."""
        result, ranks, places = self._whole, self._ranks, self._places
        assert result is not None
        mean = torch.zeros(self._strategy.num_values)
        arithmetic, window = CodecArithmetic(), _result_window(result)
        for start, stop, slices, chunk in chunks_of(result):
            owners = places.owners(start, stop)
            parts = [piece.chunks[chunk] for piece in slices] if ranks.leads else []
            if ranks.leads:
                ranks.send_bytes([rank for rank in owners if rank], parts)
            elif ranks.rank in owners:
                length = arithmetic.chunk_bytes(stop - start, window)
                parts = list(ranks.take_bytes([length] * len(slices)))
            if ranks.rank not in owners:
                continue
            whole = tuple(
                SliceResult(0, stop - start, piece.contributors, (part,))
                for piece, part in zip(slices, parts, strict=True)
            )
            values = decode_result(replace(result, num_values=stop - start, slices=whole))
            moves = places.spread(start, stop, ranks.rank)
            for taken, put, length in moves.of(ranks.rank, ranks.rank):
                mean[put : put + length] = values[taken : taken + length]
        return mean

    def _came(self) -> dict[str, Tensor]:
        """The state that came since `fresh`, which is given out once."""
        arrays, self._incoming = self._incoming, {}
        return arrays

    def _arrays(self, action: LoadState) -> dict[str, Tensor]:
        return self._came()

    def _is_lost(self, values: Values, included: Sequence[tuple[int, int, bool]] = ()) -> bool:
        """Broken work of one rank is broken work of all."""
        flag = torch.tensor([is_lost(values, included)])
        return bool(self._ranks.any(flag))

    def _without_broken(self, weights: Tensor) -> Tensor:
        """All go back to the anchor where one rank's weights are no numbers any more."""
        flag = torch.tensor([not is_finite(weights)])
        if self._ranks.any(flag):
            weights = torch.full_like(weights, torch.nan)
        return super()._without_broken(weights)

    def _image(self, op: int, *, copy: bool, before: StateManifest | None = None) -> StateImage:
        """Rank 0 alone describes the state."""
        return StateImage(op, StateManifest(self._layout, (), ()), None)


class LeadDriver(RankDriver):
    """Rank 0's driver, which the machine and the session see as any other."""

    @property
    def state_names(self) -> list[str]:
        """Names of the shared state's arrays, in order."""
        return [name for name, _ in self._strategy.state_arrays()]

    def offer(self) -> StateImage:
        """See `Driver.offer`."""
        with self._in_step(Word.OFFER):
            super().offer()
        return self._described(0, copy=True)

    def contribute(self) -> OwnPart:
        """See `Driver.contribute`; the values stay where they are."""
        with self._in_step(Word.CONTRIBUTE):
            part = super().contribute()
        own = part.contribution
        assert isinstance(own, TensorContribution)
        spread = SpreadContribution(self._numbered, own, self._places, self._ranks)
        return OwnPart(part.op, spread, part.samples, part.since)

    def end_op(self, result: OpResult) -> StateImage:
        """See `Driver.end_op`.

        Raises:
            RemoteFault: a chunk is illegal; nothing changed.
        """
        _check(result)
        with self._in_step(Word.END_OP, _light(result)):
            super().end_op(result)
        return self._described(result.op, copy=result.is_kept or self._is_copied(result.op))

    def skip(self, op: int) -> None:
        """See `Driver.skip`."""
        with self._in_step(Word.SKIP, msgspec.msgpack.encode(op)):
            super().skip(op)

    def settle(self) -> None:
        """See `Driver.settle`."""
        with self._in_step(Word.SETTLE):
            super().settle()

    def load(self, action: LoadState) -> StateImage:
        """See `Driver.load`.

        Raises:
            RemoteFault: reason ``manifest``: the state's arrays are not this strategy's.
        """
        wanted = tuple(ArraySpec(name, self._places.num_values) for name in self.state_names)
        if action.manifest.arrays != wanted:
            raise RemoteFault("manifest", f"the state holds {action.manifest.arrays}, not {wanted}")
        self.fresh()
        for pieces, chunk in zip(self._chunks(), action.chunks, strict=True):
            values = torch.frombuffer(bytearray(bytes_of(chunk)), dtype=torch.float32)
            for index, start, stop in pieces:
                self.put(index, start, stop, values[: stop - start])
                values = values[stop - start :]
        with self._in_step(Word.LOADED, msgspec.msgpack.encode((action.op, action.samples))):
            super().load(action)
        return self._described(action.op, copy=True)

    def fresh(self) -> None:
        """See `RankDriver.fresh`."""
        with self._in_step(Word.FRESH):
            super().fresh()

    def put(self, index: int, start: int, stop: int, values: Tensor) -> None:
        """Give values [start, stop) of an array of a state that comes."""
        for low, high in windows(start, stop):
            with self._in_step(Word.PUT, msgspec.msgpack.encode((index, low, high))):
                super().put(index, low, high, values[low - start : high - start])

    def begin_with(self, vector: Tensor, moments: Mapping[str, Tensor] | None = None) -> None:
        """See `Driver.begin_with`; rank 0 alone has the vectors, of the whole model."""
        self.fresh()
        for name, one in {"anchor": vector, **(moments or {})}.items():
            self.put(self.state_names.index(name), 0, self._places.num_values, one)
        with self._in_step(Word.BEGIN):
            super().begin()

    def restore(self, op: int) -> StateImage:
        """See `RankDriver.restore`; the state is the one that `put` brought."""
        with self._in_step(Word.RESTORED, msgspec.msgpack.encode(op)):
            super().restore(op)
        return self._described(op, copy=True)

    def piece(self, index: int, start: int, stop: int) -> Tensor:
        """Values [start, stop) of an array of the state, (stop - start,) float32."""
        with self._in_step(Word.PIECE, msgspec.msgpack.encode((index, start, stop))):
            return super().piece(index, start, stop)

    def _described(self, op: int, *, copy: bool) -> StateImage:
        arrays = tuple(ArraySpec(name, self._places.num_values) for name in self.state_names)
        chunks: tuple[Piece, ...] | None = None
        if copy:
            digests: list[bytes] = []
            if self._put is not None:
                chunks = self._put(self._copied(digests), limits.STATE_CHUNK_BYTES)
            if chunks is None:
                digests.clear()
                chunks = tuple(self._copied(digests))
        else:
            with self._in_step(Word.HASHES):
                digests = RankDriver.hashes(self)
        manifest = StateManifest(self._layout, arrays, tuple(digests))
        self.root = manifest.root
        return StateImage(op, manifest, chunks)

    def _copied(self, digests: list[bytes]) -> Iterator[memoryview]:
        """The chunks of the state, one at a time; their hashes are added to `digests`."""
        for pieces in self._chunks():
            chunk = _bytes_of(torch.cat([self.piece(*piece) for piece in pieces]))
            digests.append(content_hash(chunk))
            yield chunk

    @contextmanager
    def _in_step(self, word: Word, data: bytes = b"") -> Iterator[None]:
        """Tell the others, and do it with them."""
        try:
            self._ranks.tell(word, data, self.steps)
            yield
        except BaseException:  # Ctrl+C too: the others are in a call that has no end
            self.is_broken = True
            raise


def serve(driver: RankDriver, word: int, data: bytes, steps: int) -> None:
    """Do what rank 0 has told, after so many inner steps: another rank's part of it."""
    driver.steps = steps
    said: Any = msgspec.msgpack.decode(data) if data and word != Word.END_OP else None
    calls: dict[int, Callable[[], object]] = {
        Word.OFFER: driver.offer,
        Word.CONTRIBUTE: driver.contribute,
        Word.END_OP: lambda: driver.end_op(_from_light(data)),
        Word.SKIP: lambda: driver.skip(said),
        Word.SETTLE: driver.settle,
        Word.FRESH: driver.fresh,
        Word.PUT: lambda: driver.put(said[0], said[1], said[2], torch.empty(0)),
        Word.LOADED: lambda: driver.load(
            LoadState(said[0], StateManifest(b"", (), ()), (), said[1])
        ),
        Word.RESTORED: lambda: driver.restore(said),
        Word.PIECE: lambda: driver.piece(*said),
        Word.HASHES: driver.hashes,
        Word.BEGIN: driver.begin,
    }
    calls[word]()
    driver.dropped()


def chunks_of(result: OpResult) -> Iterator[tuple[int, int, tuple[SliceResult, ...], int]]:
    """(start, stop, slices, number of the chunk in them) of all chunks of a result; several slices
    where each is a whole contribution."""
    together = [(piece,) for piece in result.slices] if result.weights is None else [result.slices]
    for slices in together:
        first, last = slices[0].start, slices[0].stop
        for chunk, start in enumerate(range(first, last, result.chunk_values)):
            yield start, min(start + result.chunk_values, last), slices, chunk


def _check(result: OpResult) -> None:
    """Refuse a result before anybody uses it.

    Raises:
        RemoteFault: as `decode_result`.
    """
    arithmetic, position = CodecArithmetic(), 0
    for start, stop, slices, chunk in chunks_of(result):
        if start != position or any(chunk >= len(piece.chunks) for piece in slices):
            raise RemoteFault("result", f"nothing follows value {position}")
        for piece in slices:
            if result.weights is None:
                arithmetic.check_result(piece.chunks[chunk], stop - start, result.window)
            else:
                arithmetic.check(piece.chunks[chunk], stop - start, result.window)
        position = stop
    if position != result.num_values:
        raise RemoteFault("result", f"slices cover {position} of {result.num_values} values")


def _result_window(result: OpResult) -> Window:
    """The window in whose codec the chunks of a result are."""
    window = result.window
    if result.weights is not None or not window.result_codec:
        return window
    return replace(window, codec=window.result_codec)


_SAID = (
    "op", "chunk_values", "num_values", "replayed", "samples_before", "samples", "shares",
    "weights", "kind",
)  # fmt: skip
"""Fields of a result that the other ranks are told as they are."""


def _light(result: OpResult) -> bytes:
    """A result without its chunks."""
    slices = [(one.start, one.stop, one.contributors) for one in result.slices]
    said = [getattr(result, name) for name in _SAID]
    return msgspec.msgpack.encode((astuple(result.window), slices, said))


def _from_light(data: bytes) -> OpResult:
    window, slices, said = msgspec.msgpack.decode(data)
    # Lists have come of tuples.
    told: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one
        for name, one in zip(_SAID, said, strict=True)
    }
    return OpResult(
        window=Window(*window), checkpoint_by=b"", evaluate_by=b"",
        slices=tuple(SliceResult(low, high, tuple(named), ()) for low, high, named in slices),
        **told,
    )  # fmt: skip


def _bytes_of(values: Tensor) -> memoryview:
    data: memoryview = values.numpy().astype("<f4", copy=False).data.cast("B")
    return data

"""Shared state as a manifest of hashes: what a joiner downloads and everybody's root.

The state root is the SHA-256 of the manifest's canonical bytes, so a root that the ledger attests
is all that a joiner must trust: it fetches the manifest by that hash, then each chunk by its own.
"""

import hashlib
from collections.abc import Sequence

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.link import PeerId


class ArraySpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One flat float32 array of the shared state, little-endian on the wire."""

    name: str
    num_values: int


class StateManifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state's arrays, concatenated in this order and cut into chunks of STATE_CHUNK_BYTES.

    Attributes:
        layout: SHA-256 of the model's parameter names and shapes, so that two models that
            differ are told apart before a byte is loaded.
        arrays: names and lengths.
        chunk_hashes: SHA-256 of each chunk.
    """

    layout: bytes
    arrays: tuple[ArraySpec, ...]
    chunk_hashes: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        data: bytes = msgpack.packb(msgspec.to_builtins(self, builtin_types=(bytes,)))
        return data

    @property
    def root(self) -> bytes:
        """The state root, 32 bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays together."""
        return 4 * sum(array.num_values for array in self.arrays)


def manifest_from_bytes(data: Buffer) -> StateManifest:
    """The manifest, checked for sense (the caller has checked its hash).

    Raises:
        RemoteFault: reason ``manifest``.
    """
    try:
        raw = msgpack.unpackb(bytes(data), max_ext_len=0)
        manifest = msgspec.convert(raw, type=StateManifest, builtin_types=(bytes,))
    except (ValueError, TypeError, msgspec.ValidationError, msgpack.UnpackException) as exc:
        raise RemoteFault("manifest", "state manifest does not decode") from exc
    num_chunks = -(-manifest.total_bytes // limits.STATE_CHUNK_BYTES)
    lengths = {len(chunk_hash) for chunk_hash in manifest.chunk_hashes} or {limits.HASH_BYTES}
    if len(manifest.chunk_hashes) != num_chunks or lengths != {limits.HASH_BYTES}:
        raise RemoteFault("manifest", "state manifest does not fit its own arrays")
    if any(array.num_values < 0 for array in manifest.arrays):
        raise RemoteFault("manifest", "negative array length")
    return manifest


def describe_state(
    layout: bytes, arrays: tuple[ArraySpec, ...], data: Buffer
) -> tuple[StateManifest, tuple[Buffer, ...]]:
    """The manifest of a state and its chunks as views into `data` (no copy)."""
    view = memoryview(data)
    step = limits.STATE_CHUNK_BYTES
    chunks = tuple(view[start : start + step] for start in range(0, len(view), step))
    hashes = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
    return StateManifest(layout, arrays, hashes), chunks


_ROUNDS_BEFORE_NEXT = 2
"""Times that every donor may lack a piece before another snapshot is tried."""


class StateSync:
    """Downloads one attested snapshot from whoever pins it (T13).

    Snapshots are tried in the order given; one that nobody holds any more is given up for the
    next, so a joiner never waits for a donor that has moved on. Chunks that two snapshots share
    are fetched once. One whose bytes are no state is not asked for again.

    Args:
        fetcher: asks the donors.
        donors: peers that may hold a snapshot.
        candidates: (op, state root) of attested states, the preferred one first.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        donors: Sequence[PeerId],
        candidates: Sequence[tuple[int, bytes]],
    ) -> None:
        self._fetcher = fetcher
        self._donors = tuple(donors)
        self._candidates = list(candidates)
        self._manifest: StateManifest | None = None
        self._pieces: dict[bytes, bytes] = {}
        self._wanted: set[bytes] = set()
        self._spoilt: set[bytes] = set()
        self._num_given_up = 0

    def set_donors(self, donors: Sequence[PeerId]) -> None:
        """The roster has changed."""
        self._donors = tuple(donors)
        for digest in self._wanted:
            if self._fetcher.is_wanted(digest):
                self._fetcher.want(digest, self._donors, spread=True)

    def add_candidates(self, candidates: Sequence[tuple[int, bytes]]) -> None:
        """The run went on: newer snapshots come next, should this one be given up."""
        self._candidates[1:1] = [
            item
            for item in candidates
            if item not in self._candidates and item[1] not in self._spoilt
        ]

    def accept(self, digest: bytes, data: Buffer) -> bool:
        """Take a verified blob; whether it was one of ours.

        Raises:
            RemoteFault: reason ``manifest``: the attested bytes are not a manifest.
        """
        if digest not in self._wanted:
            return False
        self._wanted.discard(digest)
        if digest == self._candidates[0][1]:
            try:
                self._manifest = manifest_from_bytes(data)
            except RemoteFault:
                self._drop_spoilt()
                raise
        else:
            self._pieces[digest] = bytes(data)
        return True

    def step(self) -> tuple[int, StateManifest, tuple[bytes, ...]] | None:
        """Ask for what is missing; the whole state once it is here.

        Raises:
            RemoteFault: reason ``manifest``: the attested chunks are not the manifest's arrays.
        """
        self._give_up_if_gone()
        if not self._candidates:
            return None
        op, root = self._candidates[0]
        if self._manifest is None:
            self._ask(root)
            return None
        missing = [d for d in self._manifest.chunk_hashes if d not in self._pieces]
        for digest in missing:
            self._ask(digest)
        if missing:
            return None
        chunks = tuple(self._pieces[digest] for digest in self._manifest.chunk_hashes)
        if sum(len(chunk) for chunk in chunks) != self._manifest.total_bytes:
            self._drop_spoilt()
            raise RemoteFault("manifest", "state chunks do not add up to the manifest's arrays")
        return op, self._manifest, chunks

    @property
    def progress(self) -> tuple[int, int]:
        """Chunks here and chunks in all (0 while the manifest is not known)."""
        if self._manifest is None:
            return 0, 0
        hashes = self._manifest.chunk_hashes
        return sum(digest in self._pieces for digest in hashes), len(hashes)

    @property
    def is_lost(self) -> bool:
        """Whether every snapshot was asked for of everybody, twice, or there is nobody to ask."""
        return not self._donors or self._num_given_up >= 2 * max(1, len(self._candidates))

    def close(self) -> None:
        """Want nothing more."""
        self._fetcher.cancel(self._wanted)
        self._wanted.clear()

    def _ask(self, digest: bytes) -> None:
        if digest not in self._wanted:
            self._wanted.add(digest)
            self._fetcher.want(digest, self._donors, spread=True)

    def _give_up_if_gone(self) -> None:
        if any(self._fetcher.rounds(digest) >= _ROUNDS_BEFORE_NEXT for digest in self._wanted):
            self.close()
            self._manifest = None
            self._num_given_up += 1
            self._candidates.append(self._candidates.pop(0))

    def _drop_spoilt(self) -> None:
        """Whoever attested this snapshot, nobody can load it."""
        self.close()
        self._manifest = None
        self._spoilt.add(self._candidates.pop(0)[1])

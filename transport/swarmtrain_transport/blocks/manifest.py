"""Shared state as a manifest of hashes: what a joiner downloads and everybody's root.

The state root is the content hash of the manifest's canonical bytes, so a root that the ledger
attests is all that a joiner must trust: it fetches the manifest by that hash, then each chunk by
its own.
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.state_download import Download
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import chunk_hashes, content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.unpacking import unpack_limited


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
        chunk_hashes: content hash of each chunk.
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
        return content_hash(self.to_bytes())

    def chunk_bytes(self, index: int) -> int:
        """Length of one chunk; the last may be short."""
        start = index * limits.STATE_CHUNK_BYTES
        return min(limits.STATE_CHUNK_BYTES, self.total_bytes - start)

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
        raw = unpack_limited(data, bytes_max=limits.FRAME_BYTES_MAX)
        manifest = msgspec.convert(raw, type=StateManifest, builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError, RemoteFault) as exc:
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
    return manifest_of(layout, arrays, [view]), chunks


def manifest_of(
    layout: bytes,
    arrays: tuple[ArraySpec, ...],
    parts: Iterable[Buffer],
    before: StateManifest | None = None,
    changed: Sequence[tuple[int, int]] = (),
) -> StateManifest:
    """The manifest of a state that lies in several parts, as where nobody needs its chunks.

    Args:
        layout: digest of the model's parameter names and shapes, 32 bytes.
        arrays: names and lengths.
        parts: the arrays' bytes in a row.
        before: manifest of the state before, None to hash all of it.
        changed: (start, stop) values of each array that may be others now.
    """
    known = {} if before is None else _unchanged(before, changed)
    return StateManifest(layout, arrays, chunk_hashes(parts, limits.STATE_CHUNK_BYTES, known))


def _unchanged(before: StateManifest, changed: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """Return the hashes of chunks in which no array has changed, by the chunks' number."""
    known, begin = dict(enumerate(before.chunk_hashes)), 0
    for array in before.arrays:
        for start, stop in changed:
            low, high = 4 * (begin + start), 4 * (begin + min(stop, array.num_values))
            for index in range(
                low // limits.STATE_CHUNK_BYTES, -(-high // limits.STATE_CHUNK_BYTES)
            ):
                known.pop(index, None)
        begin += array.num_values
    return known


_ROUNDS_BEFORE_NEXT = 2
"""Times that every donor may lack a piece before another snapshot is tried."""

News = StateManifest | tuple[bytes, bytes]
"""To be kept for another life: a state whose download began, or a verified chunk and its hash."""


class StateSync:
    """Downloads one attested snapshot from whoever pins it (T13).

    Snapshots are tried in the order given; one that nobody holds any more is given up for the
    next, so a joiner never waits for a donor that has moved on. Chunks that two snapshots share,
    and those that an earlier life has kept, are not fetched again. A snapshot whose bytes are no
    state, or not one of our arrays, is not asked for again.

    Args:
        fetcher: asks the donors for the manifest.
        download: asks them for the chunks.
        donors: peers that may hold a snapshot.
        candidates: (op, state root) of attested states, the preferred one first.
        fits: says if a manifest is of a state that is wanted.
        pieces: verified chunks and manifests that are here already, by hash; what comes goes there
            too, and what is of another state goes.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        download: Download,
        donors: Sequence[PeerId],
        candidates: Sequence[tuple[int, bytes]],
        fits: Callable[[StateManifest], bool],
        pieces: MutableMapping[bytes, Buffer],
    ) -> None:
        self._fetcher = fetcher
        self._download = download
        self._donors = tuple(donors)
        self._candidates = list(candidates)
        self._fits = fits
        self._manifest: StateManifest | None = None
        self._pieces = pieces
        self._wanted_root = b""
        self._spoilt: set[bytes] = set()
        self._num_given_up = 0
        self._news: list[News] = []
        download.set_donors(self._donors)

    def set_donors(self, donors: Sequence[PeerId]) -> None:
        """The roster has changed."""
        self._donors = tuple(donors)
        self._download.set_donors(self._donors)
        if self._fetcher.is_wanted(self._wanted_root):
            self._fetcher.want(self._wanted_root, self._donors, spread=True)

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
            RemoteFault: reason ``manifest``: the attested bytes are not the manifest of a state
                of this run.
        """
        if not digest or digest != self._wanted_root:
            return False
        self._wanted_root = b""
        self._begin(data)
        return True

    def piece(self, peer: PeerId, tag: int, start: int, data: Buffer, now_s: float) -> None:
        """A piece of a chunk came.

        Raises:
            RemoteFault: reason ``length`` or ``hash``, see Download.
        """
        whole = self._download.piece(peer, tag, start, data, now_s)
        if whole is not None:
            self._pieces[whole[0]] = whole[1]
            self._news.append(whole)

    def news(self) -> list[News]:
        """Return the chunks to keep on the disk since the last call."""
        news, self._news = self._news, []
        return news

    def step(self) -> tuple[int, StateManifest] | None:
        """Ask for what is missing; the state once all its chunks are here.

        Raises:
            RemoteFault: reason ``manifest``: the kept bytes are not a manifest of this run.
        """
        self._give_up_if_gone()
        if not self._candidates:
            return None
        op, root = self._candidates[0]
        if self._manifest is None:
            if root in self._pieces:
                self._begin(self._pieces[root])
            else:
                self._ask_manifest(root)
        manifest = self._manifest
        if manifest is None or any(digest not in self._pieces for digest in manifest.chunk_hashes):
            return None
        return op, manifest

    def chunks(self, manifest: StateManifest) -> tuple[bytes, ...]:
        """Return the chunks of a state that is here.

        Raises:
            RemoteFault: reason ``manifest``: they are not those of its arrays.
        """
        chunks = tuple(bytes(self._pieces[digest]) for digest in manifest.chunk_hashes)
        if sum(len(chunk) for chunk in chunks) != manifest.total_bytes:
            raise self._spoil("the chunks do not add up to the arrays")
        return chunks

    @property
    def progress(self) -> tuple[int, int]:
        """Chunks here and chunks in all (0 while the manifest is not known)."""
        if self._manifest is None:
            return 0, 0
        hashes = self._manifest.chunk_hashes
        return sum(digest in self._pieces for digest in hashes), len(hashes)

    @property
    def is_lost(self) -> bool:
        """True if every snapshot was asked for of everybody, twice, or there is nobody to ask."""
        return not self._donors or self._num_given_up >= 2 * max(1, len(self._candidates))

    def close(self) -> None:
        """Want nothing more."""
        self._fetcher.cancel([self._wanted_root])
        self._wanted_root = b""
        self._download.cancel()
        self._manifest = None

    def _ask_manifest(self, root: bytes) -> None:
        if self._wanted_root != root:
            self._wanted_root = root
            self._fetcher.want(root, self._donors, spread=True)

    def _begin(self, data: Buffer) -> None:
        """The manifest is here. Nothing of a state that is not our model's is fetched at all."""
        try:
            manifest = manifest_from_bytes(data)
            if not self._fits(manifest):
                raise RemoteFault("manifest", "it is not of this model")
        except RemoteFault as fault:
            raise self._spoil(fault.detail) from fault
        self._manifest = manifest
        self._news.append(manifest)
        needed = set(manifest.chunk_hashes)
        for digest in [known for known in self._pieces if known not in needed]:
            del self._pieces[digest]
        for index, digest in enumerate(manifest.chunk_hashes):
            if digest not in self._pieces:
                self._download.want(digest, manifest.chunk_bytes(index))

    def _give_up_if_gone(self) -> None:
        rounds = max(self._fetcher.rounds(self._wanted_root), self._download.rounds)
        if rounds >= _ROUNDS_BEFORE_NEXT:
            self.close()
            self._num_given_up += 1
            self._candidates.append(self._candidates.pop(0))

    def _spoil(self, detail: str) -> RemoteFault:
        """Give up this snapshot: nobody can load it, however many attested it."""
        self.close()
        self._spoilt.add(self._candidates.pop(0)[1])
        return RemoteFault("manifest", f"an attested state cannot be used: {detail}")

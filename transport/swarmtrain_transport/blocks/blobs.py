"""Bytes that a peer serves by hash: results of recent ops and pinned snapshots.

Bounded: results of RESULT_KEEP_OPS ops, two snapshots, and one more while joiners ask for it.
Results of past ops may lie in a file (`retention`). Snapshots are pinned at the same ops by every
peer, so that a joiner can take their chunks from many donors at once, and each is hashed once, when
its state root is made.
"""

import math
from collections.abc import Iterable, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.manifest import StateManifest, manifest_from_bytes
from swarmtrain_transport.blocks.retention import Kept, Piece, Retention
from swarmtrain_transport.hashing import content_hash

_SNAPSHOTS_KEPT = 2


class Blobs:
    """Content-addressed bytes.

    Args:
        retention: keeps results; None keeps them in memory.

    Attributes:
        retention: memory and file of the blobs.
        changes: grows whenever something comes or goes.
    """

    def __init__(self, retention: Retention | None = None) -> None:
        self.retention = retention or Retention()
        self._results: dict[int, dict[bytes, Kept]] = {}
        self._snapshots: dict[int, dict[bytes, Kept]] = {}
        self._asked_s: dict[int, float] = {}
        self._index: dict[bytes, Kept] = {}
        self.changes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._index

    def get(self, digest: bytes) -> Buffer | None:
        """The blob with this content hash, None if it is not here."""
        kept = self._index.get(digest)
        return kept.read() if kept is not None else None

    def size(self, digest: bytes) -> int | None:
        """Length of a blob, None if it is not here."""
        kept = self._index.get(digest)
        return kept.num_bytes if kept is not None else None

    def piece(self, digest: bytes, start: int, num_bytes: int) -> Buffer | None:
        """Bytes of a blob, which has so many; None if it is not here."""
        kept = self._index.get(digest)
        return kept.read(start, num_bytes) if kept is not None else None

    def is_result(self, digest: bytes) -> bool:
        """Return True if this blob is here and no chunk of a snapshot."""
        return any(digest in blobs for blobs in self._results.values())

    def _reindex(self) -> None:
        """Find anew where blobs are, after some were dropped; one may have been in several
        places."""
        self.changes += 1
        self._index = {}
        for blobs in (*self._snapshots.values(), *self._results.values()):
            self._index.update(blobs)

    def asked_for(self, digest: bytes, now_s: float) -> None:
        """A joiner asked for this blob: if it is a snapshot's, that one stays for a while."""
        for op, blobs in self._snapshots.items():
            if digest in blobs:
                self._asked_s[op] = now_s

    def snapshot_bytes(self, digest: bytes) -> int:
        """Size of a snapshot that this blob is of, 0 if it is of none."""
        snapshots = (blobs for blobs in self._snapshots.values() if digest in blobs)
        return sum(kept.num_bytes for kept in next(snapshots, {}).values())

    def keep_result(self, op: int, data: Buffer, digest: bytes | None = None) -> bytes:
        """Keep one blob of op `op` and return its hash; ops long past are forgotten.

        Args:
            op: number of the op.
            data: must not change.
            digest: content hash of the bytes, if it has been taken already.
        """
        if digest is None:
            digest = content_hash(data)
        if digest in self._results.get(op, ()):
            return digest
        self.changes += 1
        if op not in self._results:
            self._begin(op)
        self._results[op][digest] = self._index[digest] = self.retention.keep(data)
        if len(self._results) > limits.RESULT_KEEP_OPS:
            for old in sorted(self._results)[: -limits.RESULT_KEEP_OPS]:
                self._drop(old)
            self._reindex()
        return digest

    def keep_for(self, op: int, digests: Iterable[bytes]) -> None:
        """Keep these blobs, which are here, for op `op`, too: another op with the same bytes may be
        forgotten before it."""
        for digest in digests:
            kept = self._index.get(digest)
            if kept is not None and digest not in self._results.get(op, ()):
                self.keep_result(op, kept.read(), digest)

    def _begin(self, op: int) -> None:
        """Drop what was before: nobody but peers that fell behind asks for it."""
        for kept in next(reversed(self._results.values()), {}).values():
            kept.cool()  # those before it are cold already
        self._results[op] = {}

    def _drop(self, op: int) -> None:
        for kept in self._results.pop(op).values():
            kept.release()

    def forget(self, op: int) -> None:
        """The op was skipped: what was published of it is nobody's, and takes no result's place."""
        if op in self._results:
            self._drop(op)
            self._reindex()

    def clear(self) -> None:
        """Keep nothing any more."""
        for op in list(self._results):
            self._drop(op)
        self._snapshots.clear()
        self._asked_s.clear()
        self._reindex()

    def rewound(self, op: int) -> None:
        """Drop whatever came after `op`, which was cancelled. The newest snapshots stay; what comes
        now is newer than those."""
        for later in [key for key in self._results if key > op]:
            self._drop(later)
        for later in [key for key in self._snapshots if key > op]:
            del self._snapshots[later]
            self._asked_s.pop(later, None)
        self._reindex()

    def pin_snapshot(
        self, op: int, manifest: StateManifest, chunks: Sequence[Piece], now_s: float
    ) -> None:
        """Pin the state after `op`. The buffers must not change as long as they are pinned."""
        blobs = {
            digest: chunk if isinstance(chunk, Kept) else Kept(chunk)
            for digest, chunk in zip(manifest.chunk_hashes, chunks, strict=True)
        }
        blobs[manifest.root] = Kept(manifest.to_bytes())
        self._snapshots[op] = blobs
        older = sorted(self._snapshots)[:-_SNAPSHOTS_KEPT]
        # A joiner replays from its snapshot on: one whose results are forgotten is of no use.
        leased = [
            old
            for old in older
            if now_s < self._asked_s.get(old, -math.inf) + limits.SNAPSHOT_LEASE_S
            and old + limits.RESULT_KEEP_OPS > op
        ]
        for old in set(older) - set(leased[-limits.SNAPSHOTS_LEASED :]):
            del self._snapshots[old]
            self._asked_s.pop(old, None)
        self._reindex()

    def snapshot(self, op: int, root: bytes) -> tuple[StateManifest, tuple[Piece, ...]] | None:
        """The state after `op` with this root and its chunks, None if it is not pinned here."""
        blobs = self._snapshots.get(op, {})
        if root not in blobs:
            return None
        manifest = manifest_from_bytes(blobs[root].read())
        return manifest, tuple(blobs[digest] for digest in manifest.chunk_hashes)

    @property
    def pinned(self) -> frozenset[bytes]:
        """Hashes of all that snapshots consist of."""
        return frozenset(digest for blobs in self._snapshots.values() for digest in blobs)

    @property
    def snapshot_ops(self) -> tuple[int, ...]:
        """Ops whose state is pinned here."""
        return tuple(sorted(self._snapshots))

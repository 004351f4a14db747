"""What a peer can serve by hash: results of recent ops and pinned snapshots.

Bounded: results of RESULT_KEEP_OPS ops and two snapshots. Snapshots are pinned at the same ops by
every peer, so that a joiner can take their chunks from many donors at once.
"""

import hashlib

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.frames import Frame, FrameKind
from swarmtrain_transport.sync import StateManifest

_SNAPSHOTS_KEPT = 2


class Blobs:
    """Content-addressed bytes in memory."""

    def __init__(self) -> None:
        self._results: dict[int, dict[bytes, Buffer]] = {}
        self._snapshots: dict[int, dict[bytes, Buffer]] = {}

    def get(self, digest: bytes) -> Buffer | None:
        """The blob with this SHA-256, None if it is not here."""
        for blobs in (*self._results.values(), *self._snapshots.values()):
            if digest in blobs:
                return blobs[digest]
        return None

    def answer(self, request: Frame, run_tag: int) -> Frame:
        """The answer to a GET: the blob, or that it is not here.

        Raises:
            RemoteFault: reason ``length``: it does not name a hash.
        """
        if len(request.body) != limits.HASH_BYTES:
            raise RemoteFault("length", f"GET of {len(request.body)} bytes")
        digest = bytes(request.body)
        found = self.get(digest)
        if found is None:
            return Frame(FrameKind.MISSING, run_tag, body=digest)
        return Frame(FrameKind.BLOB, run_tag, body=found)

    def keep_result(self, op: int, data: Buffer) -> bytes:
        """Keep one blob of op `op` and return its hash; ops long past are forgotten."""
        digest = hashlib.sha256(data).digest()
        self._results.setdefault(op, {})[digest] = data
        for old in [key for key in self._results if key <= op - limits.RESULT_KEEP_OPS]:
            del self._results[old]
        return digest

    def pin_snapshot(self, op: int, manifest: StateManifest, chunks: tuple[Buffer, ...]) -> None:
        """Pin the state after `op`. The buffers must not change as long as they are pinned."""
        blobs: dict[bytes, Buffer] = dict(zip(manifest.chunk_hashes, chunks, strict=True))
        blobs[manifest.root] = manifest.to_bytes()
        self._snapshots[op] = blobs
        for old in sorted(self._snapshots)[:-_SNAPSHOTS_KEPT]:
            del self._snapshots[old]

    @property
    def snapshot_ops(self) -> tuple[int, ...]:
        """Ops whose state is pinned here."""
        return tuple(sorted(self._snapshots))

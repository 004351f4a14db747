"""Names of bulk bytes: chunks, results, manifests of state.

BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020): as hard to collide as SHA-256, and on a CPU
without SHA instructions more than ten times as fast, which matters where every exchanged byte is
hashed (`benchmarks/hashing.py`). Small signed things (records, certificates, invites) stay with
SHA-256, so that any standard tool can check them.
"""

from collections.abc import Iterable

from blake3 import blake3

from swarmtrain_transport.arithmetic import Buffer


def content_hash(data: Buffer) -> bytes:
    """32 bytes that stand for `data` in the ledger and in GET."""
    return blake3(data).digest()


def chunk_hashes(parts: Iterable[Buffer], step: int) -> tuple[bytes, ...]:
    """Content hashes of every `step` bytes of these parts in a row, which need not be joined."""
    hashes = []
    hasher, room = blake3(), step
    for part in parts:
        view = memoryview(part)
        while view:
            piece = view[:room]
            hasher.update(piece)
            view, room = view[len(piece) :], room - len(piece)
            if not room:
                hashes.append(hasher.digest())
                hasher, room = blake3(), step
    return (*hashes, hasher.digest()) if room < step else tuple(hashes)

"""Names of bulk bytes: chunks, results, manifests of state.

BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020): as hard to collide as SHA-256, and on a CPU
without SHA instructions more than ten times as fast, which matters where every exchanged byte is
hashed (`benchmarks/hashing.py`). Small signed things (records, certificates, invites) stay with
SHA-256, so that any standard tool can check them.
"""

from collections.abc import Iterable, Mapping

from blake3 import blake3

from swarmtrain_transport.arithmetic import Buffer

_NONE: Mapping[int, bytes] = {}


def content_hash(data: Buffer) -> bytes:
    """32 bytes that stand for `data` in the ledger and in GET."""
    return blake3(data).digest()


def chunk_hashes(
    parts: Iterable[Buffer], step: int, known: Mapping[int, bytes] = _NONE
) -> tuple[bytes, ...]:
    """Content hashes of every `step` bytes of these parts in a row, which need not be joined.

    Args:
        parts: bytes.
        step: bytes of a chunk; the last may be short.
        known: hashes of chunks that need not be looked at, by their number.
    """
    hashes = list[bytes]()
    hasher, room = blake3(), step
    for part in parts:
        view = memoryview(part)
        while view:
            piece = view[:room]
            if len(hashes) not in known:
                hasher.update(piece)
            view, room = view[len(piece) :], room - len(piece)
            if not room:
                hashes.append(known.get(len(hashes)) or hasher.digest())
                hasher, room = blake3(), step
    if room < step:
        hashes.append(known.get(len(hashes)) or hasher.digest())
    return tuple(hashes)

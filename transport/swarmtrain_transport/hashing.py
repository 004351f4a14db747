"""Names of bulk bytes: chunks, results, manifests of state.

BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020): as hard to collide as SHA-256, and on a CPU
without SHA instructions more than ten times as fast, which matters where every exchanged byte is
hashed (`benchmarks/hashing.py`). Small signed things (records, certificates, invites) stay with
SHA-256, so that any standard tool can check them.
"""

from blake3 import blake3

from swarmtrain_transport.arithmetic import Buffer


def content_hash(data: Buffer) -> bytes:
    """32 bytes that stand for `data` in the ledger and in GET."""
    return blake3(data).digest()

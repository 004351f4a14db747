"""Seeds that a peer has in a run: the same after a restart, others for every peer."""

import hashlib


def rounding_seed(run: bytes, op: int, peer: bytes) -> int:
    """Seed of a peer's stochastic rounding in one op of one run: a restarted peer that encodes
    its part again makes the same bytes, and anybody could.

    Args:
        run: hash of the run's settings, which names it.
        op: number of the op.
        peer: the peer's key.
    """
    digest = hashlib.sha256(b"swarmtrain rounding 1" + run + op.to_bytes(8, "big") + peer)
    return int.from_bytes(digest.digest()[:8], "big")

"""What a simulated peer holds, asked of its memory and not of its word."""

from typing import TYPE_CHECKING

from swarmtrain_transport import limits

if TYPE_CHECKING:
    from swarmtrain.simulate.sim_peer import SimPeer


def holds(peer: "SimPeer", slice_root: bytes) -> bool:
    """Whether a peer has a slice's hash list and every chunk that it names."""
    joined = peer.machine.blobs.get(slice_root)
    if joined is None:
        return False
    data = bytes(joined)
    size = limits.HASH_BYTES
    digests = [data[start : start + size] for start in range(0, len(data), size)]
    return all(peer.machine.blobs.get(digest) is not None for digest in digests)

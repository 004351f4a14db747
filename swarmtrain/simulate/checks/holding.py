"""The holdings of a simulated peer, asked of its memory and not of its word."""

from torch import Tensor

from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.watched_driver import Learner
from swarmtrain_transport import limits


def holds(peer: SimPeer, slice_root: bytes, group: int = 0) -> bool:
    """Return True if a peer has a slice's hash list and every chunk that it names."""
    here = chunks_held(peer, slice_root, group)
    return here is not None and all(here)


def chunks_held(peer: SimPeer, slice_root: bytes, group: int = 0) -> list[bool] | None:
    """Return which chunks of a slice a peer has; None if it lacks the list of their hashes."""
    machine = peer.machine
    part = machine.groups.get(group) or machine.keepers.get(group)
    joined = part.blobs.get(slice_root) if part is not None else None
    if part is None or joined is None:
        return None
    data = bytes(joined)
    size = limits.HASH_BYTES
    digests = [data[start : start + size] for start in range(0, len(data), size)]
    return [part.blobs.get(digest) is not None for digest in digests]


def holders_of_rarest(peers: list[SimPeer], slice_root: bytes, group: int = 0) -> list[SimPeer]:
    """Return those who have the chunk of a slice that fewest of these have."""
    having = [(peer, chunks_held(peer, slice_root, group)) for peer in peers]
    listed = [(peer, here) for peer, here in having if here is not None]
    num_chunks = len(listed[0][1]) if listed else 0
    by_chunk = [[peer for peer, here in listed if here[chunk]] for chunk in range(num_chunks)]
    return min(by_chunk, key=len, default=[])


def state_of(learner: Learner) -> list[Tensor]:
    """A copy of what no SKIP may change."""
    arrays = [*learner.strategy.state_arrays(), *learner.strategy.local_arrays()]
    return [*(array.clone() for _, array in arrays), learner.trainer.read_weights()]

"""The holdings of a simulated peer, asked of its memory and not of its word."""

from torch import Tensor

from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.watched_driver import Learner
from swarmtrain_transport import limits


def holds(peer: SimPeer, slice_root: bytes, group: int = 0) -> bool:
    """Return True if a peer has a slice's hash list and every chunk that it names."""
    machine = peer.machine
    part = machine.groups.get(group) or machine.keepers.get(group)
    joined = part.blobs.get(slice_root) if part is not None else None
    if part is None or joined is None:
        return False
    data = bytes(joined)
    size = limits.HASH_BYTES
    digests = [data[start : start + size] for start in range(0, len(data), size)]
    return all(part.blobs.get(digest) is not None for digest in digests)


def state_of(learner: Learner) -> list[Tensor]:
    """A copy of what no SKIP may change."""
    arrays = [*learner.strategy.state_arrays(), *learner.strategy.local_arrays()]
    return [*(array.clone() for _, array in arrays), learner.trainer.read_weights()]

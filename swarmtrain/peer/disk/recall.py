"""Recalling an earlier life: what the disk holds of each group, for a new process's machine."""

from swarmtrain import checkpoint
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport.peer.participant import Participant


def recall(storage: PeerStorage, participant: Participant) -> None:
    """Give the machine results and downloads of its groups. States are only named, for HELLO must
    not wait until they are loaded, which takes long."""
    for number, group in participant.groups.items():
        kept = storage.of(number)
        for op, slices in kept.results().items():
            participant.keep_result(op, slices, number)
        download = kept.download()
        if download is not None:
            participant.keep_state(*download, number)
        facts, view = checkpoint.claimed(kept.checkpoints), group.view
        expected = view.config_hash, number
        if facts is not None and view.last_op < facts.op <= view.cancelled_op:
            # It died after a REWIND, before an earlier state was in place: an older one counts.
            checkpoint.forget_after(kept.checkpoints, view.last_op)
            facts = checkpoint.claimed(kept.checkpoints)
        if facts is not None and (facts.config_hash, facts.group) == expected:
            participant.saved(facts.op, facts.state_root, number)

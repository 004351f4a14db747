"""Proofs of others' wrong sums that lie in a peer's directory: checked once more, from the ledger.

A copy of the ledger is enough for it: the proof brings the parts, the ledger the roots and
signatures of all who are named in it.
"""

from pathlib import Path

from swarmtrain.foundation import regular_file
from swarmtrain.foundation.regular_file import UnfitFile
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.disk.group_storage import PROOFS
from swarmtrain.verify.proof import WrongSum
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.audit import convicted, proof_from_bytes
from swarmtrain_transport.ledger.fold import GroupView


def wrong_sums(directory: Path, view: GroupView) -> tuple[WrongSum, ...]:
    """Check the proofs of wrong sums in one group of a peer.

    Args:
        directory: directory of the group within the peer's.
        view: the group's fold; it remembers the last few hundred rounds.

    Raises:
        OSError: a file cannot be read.
    """
    return tuple(_judged(path, view) for path in sorted((directory / PROOFS).glob("*.proof")))


def _judged(path: Path, view: GroupView) -> WrongSum:
    try:
        proof = proof_from_bytes(regular_file.read(path, limits.PROOF_BYTES_MAX))
        if proof.group != view.group:
            return WrongSum(path.name, proof.op, "", f"it is about a round of group {proof.group}")
        op = view.commits.get(proof.op)
        if op is None:
            return WrongSum(path.name, proof.op, "", "the ledger's view of the round is forgotten")
        owner = convicted(proof, op, CodecArithmetic(), verify)
    except RemoteFault as fault:
        return WrongSum(path.name, problem=fault.detail)
    except UnfitFile as fault:
        return WrongSum(path.name, problem=str(fault.strerror))
    return WrongSum(path.name, proof.op, owner.hex())

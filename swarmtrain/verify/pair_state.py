"""The proof that a peer's directory holds in a run of pair ops: its exchanges, and no more.

There each peer's state is its own: it comes of exchanges, of steps alone and of nobody's replay.
The proof covers only that this peer and its partners have exchanged what the ledger says. The
coordinator's COMMIT names both halves by their roots, both partners tell the same link after it,
and the links are chained: the newest one vouches for all that a peer has ever exchanged.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from swarmtrain.peer.disk.group_storage import links, read_result, result_paths
from swarmtrain.verify.proof import Proof, Unproved
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import GroupView, num_chunks, slice_root
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.catchup import partner_of
from swarmtrain_transport.wire.records import Commit

PROVES = (
    "Every record is signed by the run's key and follows from the one before; each link of this"
    " peer's chain that lies here is the one that follows from what the ledger says of its pairs;"
    " partners' halves that lie here are those that they have signed; each checkpoint holds the"
    " state that it says. It proves no more: where rounds go by pairs a state is its peer's own,"
    " made of steps that nobody else can make again."
)


def prove_pairs(
    directory: Path, view: GroupView, me: PeerId, roots: Mapping[int, bytes], proof: Proof
) -> Proof:
    """The proof, filled in.

    Args:
        view: the fold of its ledger; it remembers the last few hundred rounds.
        me: owner of the directory.
        roots: roots of the checkpoints, by op; each was found to be that of its state.
        proof: proof of the chain of records.

    Raises:
        Unproved: something that lies here is not what the ledger says.
    """
    for op, root in roots.items():
        _check_root(view, op, root, me)
    told = {op: link for op, link in links(directory).items() if op in view.links}
    for op, link in sorted(told.items()):
        _check_link(view, op, link, me)
    for path in result_paths(directory):
        op = int(path.stem)
        if op in view.links and not _is_of_a_cancelled_past(view, op, told):
            _check_half(path, view, op, me)
    newest = max(roots)
    return msgspec.structs.replace(
        proof,
        proves=PROVES,
        from_op=min(told, default=newest),
        to_op=max(told, default=newest),
        ops=len(told),
        state_root=roots[newest].hex(),
        chain=told[max(told)].hex() if told else "",
        ok=True,
    )


def _check_root(view: GroupView, op: int, root: bytes, me: PeerId) -> None:
    """ATTEST names the roots of those who had reported by then. A state that was downloaded is
    another peer's, so any of them will do for a peer that is not among them, or was replaced."""
    named = view.roots.get(view.commit_at(op), {})
    if me in named and root not in named.values():
        raise Unproved(
            f"The checkpoint of round {op} holds a state that the ledger attests of nobody."
        )


def _check_link(view: GroupView, op: int, link: bytes, me: PeerId) -> None:
    named = view.links[op].get(me)
    if named is None:
        raise Unproved(f"A link of round {op} lies here, in which the ledger has us in no pair.")
    if named[1] != link:
        raise Unproved(f"The link of round {op} is not the one that follows from the ledger.")


def _is_of_a_cancelled_past(view: GroupView, op: int, told: Collection[int]) -> bool:
    """A half that a REWIND has made void may lie here until the round has come again."""
    return op <= view.cancelled_op and op not in told


def _check_half(path: Path, view: GroupView, op: int, me: PeerId) -> None:
    """The half that lies here is the one that the partner has signed."""
    commit = view.commits.get(op)
    if commit is None or not isinstance(commit.outcome, Commit):
        return  # the view has forgotten it
    partner = partner_of(commit, me)
    if partner is None:
        raise Unproved(f"{path} is of round {op}, in which the ledger has us in no pair.")
    halves = read_result(path, num_chunks(commit.plan, commit.owners.index(partner)))
    if halves is None or len(halves) != 1:
        raise Unproved(f"{path} is not a partner's half.")
    root = slice_root(tuple(content_hash(chunk) for chunk in halves[0]))
    if root != commit.outcome.slices[commit.owners.index(partner)].root:
        raise Unproved(f"{path} is not the half that the ledger names.")

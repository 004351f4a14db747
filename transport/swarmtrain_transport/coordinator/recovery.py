"""When the run cannot simply go on: peers disagree, or what was committed is with nobody.

Two verdicts, both pure. *Dispute*: the peers that hold the newest state hold different ones and no
majority says which is right, so nothing is planned until it does (protocol.md T15). *Rewind*: a
committed result can be had from nobody and nobody holds the state that it led to, so the run goes
back to the newest state that somebody has (T12).
"""

from collections.abc import Mapping

from swarmtrain_transport.coordinator.group_peers import Follower
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Rewind

Peers = Mapping[PeerId, Follower]


def trusted_root(view: GroupView, peers: Peers, op: int) -> bytes | None:
    """The state after `op` that the next op starts from: attested, or held by most who hold one.

    Args:
        view: the ledger's fold.
        peers: peers that are here.
        op: newest op with an outcome.

    Returns:
        None while nobody holds a state, or under dispute.
    """
    attested = view.root_after(op)
    if attested is not None:
        return attested
    held = [one.state_root for one in peers.values() if one.applied_op == op]
    return next((root for root in held if 2 * held.count(root) > len(held)), None)


def disputed(view: GroupView, peers: Peers) -> dict[bytes, list[PeerId]]:
    """Return the holders of each state after the newest op, if no majority agrees; else empty."""
    op = view.last_op
    if view.goes_by_pairs and view.commit_at(op) > 0:
        return {}  # states are each peer's own
    roots: dict[bytes, list[PeerId]] = {}
    for peer, one in peers.items():
        if one.applied_op == op:
            roots.setdefault(one.state_root, []).append(peer)
    return roots if len(roots) > 1 and trusted_root(view, peers, op) is None else {}


def rewind_due(view: GroupView, peers: Peers, *, all_heard: bool) -> Rewind | None:
    """T12: the REWIND that falls due now, if any.

    Everybody who is here and has a state must have said that the next result cannot be had;
    whoever has blinked or is still to come back may hold it, so they are waited for until they
    are evicted.

    Args:
        view: the ledger's fold.
        peers: everybody heard of in this term who has not left.
        all_heard: whether nobody of the roster is still to come back after a restart.
    """
    if view.ops or not all_heard or not peers:
        return None
    if any(not one.line.connected for one in peers.values()):
        return None
    if all(one.stranded_op < 0 for one in peers.values()):
        return None
    here = [one for one in peers.values() if one.applied_op >= 0]
    if not here:
        # Nothing was trained yet, so nothing is lost if the run begins with another first state.
        is_empty = view.last_op == 0 and all(one.stranded_op >= 0 for one in peers.values())
        why = "nobody who is here holds the first state"
        return Rewind(-1, why, view.group) if is_empty else None
    if any(one.stranded_op <= one.applied_op for one in here):
        return None
    newest = max((one.applied_op for one in here if _is_ours(view, one)), default=-1)
    lost = view.next_commit(newest)
    if newest < 0 or lost is None:
        return None
    what = "a state after" if view.goes_by_pairs else "the result of"
    return Rewind(newest, f"nobody who is here holds {what} op {lost}", view.group)


def _is_ours(view: GroupView, one: Follower) -> bool:
    return view.may_hold(one.applied_op, one.state_root)

"""When the run cannot simply go on: peers disagree, or what was committed is with nobody.

Two verdicts, both pure. *Dispute*: the peers that hold the newest state hold different ones and no
majority says which is right, so nothing is planned until it does (protocol.md T15). *Rewind*: a
committed result can be had from nobody and nobody holds the state that it led to, so the run goes
back to the newest state that somebody has (T12).
"""

from collections.abc import Mapping

from swarmtrain_transport.coordinator.membership import PeerLine
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Rewind

Lines = Mapping[PeerId, PeerLine]


def trusted_root(view: GroupView, lines: Lines, op: int) -> bytes | None:
    """The state after `op` that the next op starts from: attested, or held by most who hold one.

    Args:
        view: the ledger's fold.
        lines: peers that are here.
        op: newest op with an outcome.

    Returns:
        None while nobody holds a state, or under dispute.
    """
    attested = view.root_after(op)
    if attested is not None:
        return attested
    held = [line.state_root for line in lines.values() if line.applied_op == op]
    return next((root for root in held if 2 * held.count(root) > len(held)), None)


def disputed(view: GroupView, lines: Lines) -> dict[bytes, list[PeerId]]:
    """Who holds which state after the newest op, if no majority of them agrees; else empty."""
    op = view.last_op
    if view.goes_by_pairs and view.commit_at(op) > 0:
        return {}  # states are each peer's own
    roots: dict[bytes, list[PeerId]] = {}
    for peer, line in lines.items():
        if line.applied_op == op:
            roots.setdefault(line.state_root, []).append(peer)
    return roots if len(roots) > 1 and trusted_root(view, lines, op) is None else {}


def rewind_due(view: GroupView, lines: Lines, *, all_heard: bool) -> Rewind | None:
    """T12: the REWIND that falls due now, if any.

    Everybody who is here and has a state must have said that the next result cannot be had;
    whoever has blinked or is still to come back may hold it, so they are waited for until they
    are evicted.

    Args:
        view: the ledger's fold.
        lines: everybody heard of in this term who has not left.
        all_heard: whether nobody of the roster is still to come back after a restart.
    """
    if view.in_progress is not None or not all_heard or not lines:
        return None
    if any(not line.connected for line in lines.values()):
        return None
    if all(line.stranded_op < 0 for line in lines.values()):
        return None
    here = [line for line in lines.values() if line.applied_op >= 0]
    if not here:
        # Nothing was trained yet, so nothing is lost if the run begins with another first state.
        is_empty = view.last_op == 0 and all(line.stranded_op >= 0 for line in lines.values())
        return Rewind(-1, "nobody who is here holds the first state") if is_empty else None
    if any(line.stranded_op <= line.applied_op for line in here):
        return None
    newest = max((line.applied_op for line in here if _is_ours(view, line)), default=-1)
    lost = view.next_commit(newest)
    if newest < 0 or lost is None:
        return None
    what = "a state after" if view.goes_by_pairs else "the result of"
    return Rewind(newest, f"nobody who is here holds {what} op {lost}")


def _is_ours(view: GroupView, line: PeerLine) -> bool:
    return view.may_hold(line.applied_op, line.state_root)

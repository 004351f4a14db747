"""One round whose exchanges go by pairs, told from the ledger's records.

Pure: records in, sentences out. `why` tells the rest of a round.
"""

from collections.abc import Collection, Iterator

from swarmtrain.why.words import Names, name_of, some
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.ledger.pairing import contributors_of, pairs_in, whole_pairs
from swarmtrain_transport.wire.records import Attest, Commit, Plan


def planned(plan: Plan, names: Names) -> str:
    """Tell the pairs that were drawn."""
    order = contributors_of(plan)
    told = _pairs(pairs_in(order), names)
    odd = f"; {name_of(order[-1], names)} had no partner" if len(order) % 2 else ""
    return f"Each exchanges with one other: {told}{odd}."


def committed(op: OpView, commit: Commit, names: Names) -> Iterator[str]:
    """Tell which pairs have exchanged, and who stepped alone and why; `op` is as FREEZE left it."""
    plan, whole = op.plan, whole_pairs(op.plan, commit)
    told = _pairs(whole, names)
    exchanged = f" Exchanged: {told}." if told else ""
    yield f"Committed: result {commit.result_root.hex()[:16]}.{exchanged}"
    for pair in pairs_in(contributors_of(plan)):
        if pair not in whole:
            one, two = (name_of(peer, names) for peer in pair)
            cause = _cause(pair, op.excluded, names)
            yield f"{one} and {two}, as far as they were still there, stepped alone: {cause}."
    order = contributors_of(plan)
    if len(order) % 2:
        yield f"{name_of(order[-1], names)} stepped alone: it had no partner."


def _cause(pair: tuple[bytes, bytes], excluded: Collection[bytes], names: Names) -> str:
    """Say why a pair has not exchanged."""
    left_out = [peer for peer in pair if peer in excluded]
    if not left_out:
        return "not both held in time what the other had given"
    silent = " and ".join(name_of(peer, names) for peer in left_out)
    return f"{silent} had published nothing"


def attested(body: Attest, names: Names) -> str:
    """Tell whose states are known, and to which peer newcomers are sent."""
    roots = dict(body.roots)
    holder = next(peer for peer, root in roots.items() if root == body.state_root)
    return (
        f"{len(roots)} of them reported states, each its own; newcomers are sent first to that of "
        f"{name_of(holder, names)}, {body.state_root.hex()[:16]}."
    )


def _pairs(pairs: Collection[tuple[bytes, bytes]], names: Names) -> str:
    told = [f"{name_of(one, names)} with {name_of(two, names)}" for one, two in pairs]
    return "; ".join(some(told))

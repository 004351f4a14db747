"""Pairing: the partners of a pair op, drawn by the ledger, so that everybody knows them.

The contributors of a pair op stand two by two: slices 2i and 2i + 1 are partners, and if their
number is odd the last one has none. The draw is made twice. The contributors of an op are paired
for the next one as soon as its PLAN is known; pairs of which both are ready then stand, and one
partner's contribution may be on its way before. Peers that are left, because their partner is
absent or because they have just come, are paired by the same draw: so one absent peer spoils one
pair.

Where the run goes by a graph, partners follow from the op's number instead: neighbours on a ring,
in turn to one side and the other, or at distances 1, 2, 4 and so on in turn (the one-peer
exponential graph). Places on it are those of one draw for the whole run, so nobody chooses its
neighbours. Who is left over meets whoever is left over too.

Where peers meet by clocks an op is of two that are ready then, drawn among all who are.

Pure. The draw is a hash of run, op and key: no generator whose bits might change has a part in it.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import CLOCKS, PAIR, RING
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Commit, Plan

_DRAW = b"swarmtrain pair 1\0"
_LINK = b"swarmtrain chain 1\0"
_NO_CHAIN = bytes(32)

NOBODY: Mapping[PeerId, AbstractSet[PeerId]] = {}


def drawn(run_tag: int, op: int, peers: Iterable[PeerId]) -> list[PeerId]:
    """The peers in the order of the op's draw, each once."""
    draw = _DRAW + run_tag.to_bytes(8, "little") + op.to_bytes(8, "little")
    return sorted(set(peers), key=lambda peer: (hashlib.sha256(draw + peer).digest(), peer))


def arranged(graph: str, run_tag: int, op: int, peers: Iterable[PeerId]) -> list[PeerId]:
    """The peers as they would stand in an op if nobody else were there, partners two by two."""
    if graph in ("", CLOCKS):
        return drawn(run_tag, op, peers)
    placed = drawn(run_tag, 0, peers)
    if graph == RING:
        turn = op % max(1, len(placed))
        return placed[turn:] + placed[:turn]
    distance = 1 << op % max(1, (len(placed) - 1).bit_length())
    pairs = [
        (placed[place], placed[place + distance])
        for place in range(len(placed) - distance)
        if not place & distance
    ]
    standing = [peer for pair in pairs for peer in pair]
    return standing + [peer for peer in placed if peer not in set(standing)]


def pairs_in(order: Sequence[PeerId]) -> list[tuple[PeerId, PeerId]]:
    """Partners among contributors that stand in this order; an odd last one has none."""
    return list(zip(order[::2], order[1::2], strict=False))


def contributors_of(plan: Plan | None) -> tuple[PeerId, ...]:
    """The contributors of an op, in PLAN's order; nobody without a plan."""
    return tuple(member.peer for member in plan.members if member.weight) if plan else ()


def least_in(plan: Plan) -> int:
    """Return how many contributors COMMIT must name: nobody where one stands alone for a pair op,
    whose half nobody takes."""
    is_lone = plan.kind == PAIR and len(contributors_of(plan)) == 1
    return 0 if is_lone else plan.min_contributors


def order_of(
    run_tag: int,
    op: int,
    before: Collection[PeerId],
    ready: Collection[PeerId],
    apart: Mapping[PeerId, AbstractSet[PeerId]] = NOBODY,
    graph: str = "",
) -> list[PeerId]:
    """Return the contributors of an op in the order in which they stand.

    Args:
        run_tag: fence of the run.
        op: number of the op.
        before: contributors of the PLAN before it.
        ready: contributors of this one.
        apart: peers that each should not be paired with while others can be.
        graph: see `kinds.GRAPHS`.
    """
    expected = pairs_in(arranged(graph, run_tag, op, () if graph == CLOCKS else before))
    standing = [
        peer
        for first, second in expected
        if {first, second} <= set(ready) and second not in apart.get(first, ())
        for peer in (first, second)
    ]
    rest = arranged(graph, run_tag, op, set(ready) - set(standing))
    return _parted(standing + rest, apart)


def _parted(order: list[PeerId], apart: Mapping[PeerId, AbstractSet[PeerId]]) -> list[PeerId]:
    """Partners that should be none change places with somebody, if that parts them all."""

    def is_fit(*places: int) -> bool:
        return all(
            place ^ 1 >= len(order) or order[place ^ 1] not in apart.get(order[place], ())
            for place in places
        )

    for place in range(len(order)):
        for other in range(len(order)):
            if is_fit(place):
                break
            order[place], order[other] = order[other], order[place]
            if not is_fit(place, other):
                order[place], order[other] = order[other], order[place]
    return order


def partner_in(order: Sequence[PeerId], peer: PeerId) -> PeerId | None:
    """The partner of a contributor, None for one that has none or is not there."""
    for first, second in pairs_in(order):
        if peer in (first, second):
            return second if peer == first else first
    return None


def expected_partner(run_tag: int, op: int, before: Plan | None, peer: PeerId) -> PeerId | None:
    """Return with whom a peer exchanges in an op, if both are ready for it; None if nobody is drawn
    yet.

    Args:
        run_tag: fence of the run.
        op: number of the op.
        before: the PLAN before it.
        peer: peer whose partner is asked for.
    """
    if before is None or before.kind != PAIR or before.graph == CLOCKS:
        return None
    return partner_in(arranged(before.graph, run_tag, op, contributors_of(before)), peer)


def check_drawn(
    run_tag: int,
    before: Plan | None,
    plan: Plan,
    apart: Mapping[PeerId, AbstractSet[PeerId]] = NOBODY,
) -> None:
    """Check that the contributors of a pair op stand as they are drawn: the coordinator chooses
    nobody's partner.

    Args:
        run_tag: fence of the run.
        before: the PLAN before it, of whatever outcome.
        plan: plan to check.
        apart: see `order_of`.

    Raises:
        RemoteFault: reason ``plan``; also if a run's ops begin or cease to go by pairs.
    """
    if before is not None and (before.kind == PAIR) != (plan.kind == PAIR):
        raise RemoteFault("plan", f"op {plan.op}: a run goes by pairs from its first op, or never")
    if before is not None and before.vectors != plan.vectors:
        raise RemoteFault("plan", f"op {plan.op}: halves have as many vectors as ever")
    if before is not None and before.graph != plan.graph:
        raise RemoteFault("plan", f"op {plan.op}: partners are those of another graph")
    if plan.kind != PAIR:
        return
    order = contributors_of(plan)
    if list(order) != order_of(
        run_tag, plan.op, contributors_of(before), order, apart, plan.graph
    ):  # fmt: skip
        raise RemoteFault("plan", f"op {plan.op}: the partners are not those that were drawn")


def whole_pairs(plan: Plan, commit: Commit) -> list[tuple[PeerId, PeerId]]:
    """The pairs of a pair op that have exchanged, in slice order."""
    kept = set(commit.contributors)
    return [pair for pair in pairs_in(contributors_of(plan)) if set(pair) <= kept]


def link_of(op: int, chains: tuple[bytes, bytes], roots: tuple[bytes, bytes]) -> bytes:
    """The next link of both partners' chains: what they were, and what both have given.

    Args:
        op: number of the op.
        chains: chains of the two before it, in slice order; b"" for one that has none yet.
        roots: roots of the two contributions, likewise.

    Returns:
        32 bytes, SHA-256.
    """
    digest = hashlib.sha256(_LINK + op.to_bytes(8, "little"))
    for chain in chains:
        digest.update(chain or _NO_CHAIN)
    for root in roots:
        digest.update(root)
    return digest.digest()

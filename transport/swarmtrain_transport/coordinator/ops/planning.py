"""Planning: when an op may begin, and its PLAN (protocol.md T1, part 1 rules 1 and 2). Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.ops.agreement import trusted_root
from swarmtrain_transport.coordinator.ops.guard import NO_GUARD, GuardTerms
from swarmtrain_transport.coordinator.ops.slicing import DIRECT, Detours, Slicing, cut
from swarmtrain_transport.kinds import CLOCKS, MEAN, PAIR, PAIR_VECTORS, WHOLE, constant_of
from swarmtrain_transport.ledger.cells import Cells, dealt, seed_of
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.ledger.inner_products import CENTRED
from swarmtrain_transport.ledger.pairing import contributors_of, drawn, order_of, pairs_in
from swarmtrain_transport.ledger.plan_rules import (
    centre_of,
    least_stale,
    values_of,
    window_floor,
)
from swarmtrain_transport.ledger.sample_weights import believed, weights_of
from swarmtrain_transport.ledger.transfers import gathered_slices
from swarmtrain_transport.ledger.waits import most_s
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP, Ready
from swarmtrain_transport.wire.records import Member, Plan, SliceSpec


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The part of the run file that the exchange must know. Times in seconds."""

    run_id: str
    config: bytes
    config_hash: bytes
    rounds: int
    codec: str
    exact: bool
    block: int
    chunk_values: int
    e_max: int
    min_contributors: int
    start_peers: int
    wait_ready_s: float
    deadline_floor_s: float
    deadline_cap_s: float
    checkpoint_rounds: int
    snapshot_rounds: int
    equal_slices: bool = False
    counts_samples: bool = False
    result_codec: str = ""
    value_bytes: float = 4.0
    rule: str = ""
    kind: str = MEAN
    scalars: str = ""
    layout: bytes = b""
    first_root: bytes = b""
    """Root of the state after op 0, where the run begins with given weights; b"" for any."""
    ops_at_once: int = 1
    unit: str = "tokens"
    """Unit of the speed that peers tell, for people."""
    group: int = FIRST_GROUP
    holders: int = 0
    """Members and keepers that the group is to have; 0 for no keepers."""
    hurries: bool = False
    """Slow peers keep pace with the fastest one, not with most."""
    vectors: int = PAIR_VECTORS
    """Vectors of each contribution, where ops go by pairs."""
    graph: str = ""
    """Graph along whose edges pairs meet; "" where they are drawn."""
    buffer: int = 0
    """Number of peers that are READY with which an op begins, whoever else is at work; 0: all are
    waited for."""
    staleness: str = ""
    """Rule by which work counts less that began from an older anchor."""
    max_stale: int = 0
    """Results since then that there may be at most, where there is a buffer."""
    steps_alone: bool = False
    """A pair op may have one contributor, without a partner."""
    cell_peers: int = 0
    """Members of a cell of a mean at most, if enough of them give; 0: CELL_PEERS_MAX."""
    guard: GuardTerms = NO_GUARD
    """Says when the group goes back because its loss has leapt."""


Peers = Mapping[PeerId, GroupPeer]

CELL_LEAST = 4
"""Contributors for which there is a cell, at least: the word of one owner against one contributor
would be all that is known of either in a smaller one."""

NOBODY: Mapping[PeerId, PeerLine] = {}


def may_plan(terms: RunTerms, view: GroupView, peers: Peers) -> bool:
    """Return True if enough peers say that they are ready: else `next_plan` need not be asked."""
    op = view.next_op
    given = sum(one.ready is not None and one.ready.op == op for one in peers.values())
    return given >= needed_peers(terms, view)


def needed_peers(terms: RunTerms, view: GroupView) -> int:
    """Return how many must be ready for the next op; nobody is a pair alone. A run that went back
    to its beginning has begun all the same: it does not wait for as many as at its start."""
    if terms.steps_alone:
        return 1
    least = 2 if terms.kind == PAIR else 1
    is_start = view.op is None and view.next_op <= 1
    if terms.graph == CLOCKS and not is_start:
        return least
    return max(least, terms.start_peers if is_start else terms.min_contributors)


def next_plan(
    terms: RunTerms,
    view: GroupView,
    peers: Peers,
    expected: AbstractSet[PeerId],
    op_deadline_s: float,
    now_s: float,
    slicing: Slicing,
    join_index: Mapping[PeerId, int],
    keepers: Mapping[PeerId, PeerLine] = NOBODY,
    detours: Detours = DIRECT,
    planned_s: float = -math.inf,
) -> Plan | None:
    """T1: the PLAN that falls due now, if any.

    It is due when all expected peers are ready, or the first has waited for `wait_ready_s`. Live
    peers that hold the state but are not ready are receivers; a newcomer is expected, and so waited
    for, only after its first READY. A sidelined peer (`standing`) is a receiver even if it is
    ready, unless the others are too few, also with those who may be ready soon. If the newest PLAN,
    at `planned_s`, and others before it were in vain, it is put off. Where more are present than a
    PLAN may name, those who are ready take turns, and receivers come after them; who has no place
    fetches the result.
    Keepers that are waited for are members, too, where results are shared.
    """
    op = view.next_op
    if view.genesis is None:
        return None
    connected = {peer: one for peer, one in peers.items() if one.line.connected}
    root = trusted_root(view, connected, view.last_op)
    busy = view.busy if view.by_clocks else frozenset[PeerId]()
    present = _known_to_all(
        join_index,
        {
            peer: one
            for peer, one in connected.items()
            if one.line.life.is_alive(now_s) and is_synced(view, root, one) and peer not in busy
        },
    )
    ready = {
        peer: one
        for peer, one in present.items()
        if one.ready
        and one.ready.op == op
        and (not terms.max_stale or stale_of(terms, view, peer, one) >= 0)
    }
    if len(ready) < needed_peers(terms, view):
        return None
    barred = view.standing.barred(op, present.keys())
    out = view.standing.sidelined(op, present.keys())
    able = ready.keys() | (expected - view.standing.barred(op, expected))
    fit_s = min(ready[peer].ready_s for peer in ready.keys() - out or ready)
    if now_s >= fit_s + limits.AGAIN_WAITS * terms.wait_ready_s:
        able = set(ready)  # who is expected and does not come keeps nobody out for ever
    sidelined, spare = out, max(0, len(able) - needed_peers(terms, view))
    if len(able & out) > spare:  # the op needs some of these: of the barred the worst stay out
        worst = sorted(able & barred, key=lambda one: (-view.standing.barred_until(one, op), one))
        sidelined = (barred - able) | {*worst[:spare]}
    ready = {peer: one for peer, one in ready.items() if peer not in sidelined}
    if len(ready) < needed_peers(terms, view):
        return None
    first_s = min(one.ready_s for one in ready.values())
    # Nor for a barred peer that lacks the state: it may fall behind on purpose, round after round.
    sidelined |= view.standing.barred(op, expected - present.keys())
    unawaited = view.standing.lateness.unawaited((expected | ready.keys()) - sidelined)
    if len(ready.keys() - unawaited) < needed_peers(terms, view):
        unawaited = set()  # without them there might be no op
    if not view.by_clocks and now_s < planned_s + view.standing.pause_s(ready.keys()):
        return None
    awaited = expected - sidelined - unawaited - set(ready)
    if 0 < terms.buffer <= len(ready):
        awaited &= set[PeerId]() if terms.graph == CLOCKS else left_behind(view, peers)
    if awaited and now_s < first_s + terms.wait_ready_s:
        return None
    if terms.graph == CLOCKS:
        ready = present = {peer: ready[peer] for peer in _two_of(view, op, ready.keys())}
    moved = values_of(view.genesis, op, terms.block, terms.vectors if terms.kind == PAIR else 1)
    cells = _num_cells(terms, len(ready), len(present), moved)
    places = cells * limits.CELL_PEERS_MAX
    in_turn = _in_turn(op, sorted(ready, key=join_index.__getitem__), places)
    named = in_turn + sorted(present.keys() - ready.keys(), key=join_index.__getitem__)
    present = {peer: present[peer] for peer in named[:places]}
    ready = {peer: one for peer, one in ready.items() if peer in present}
    receivers = {peer: one for peer, one in present.items() if peer not in ready}
    order = sorted(ready)
    if terms.kind == PAIR:
        before = contributors_of(view.op.plan if view.op is not None else None)
        order = order_of(view.tag, op, before, ready.keys(), view.standing.apart(op), terms.graph)
    standing = {peer: ready[peer] for peer in order}
    told = [one.ready is not None and one.ready.has_centre for one in ready.values()]
    centre = centre_of(view, op) if terms.scalars == CENTRED and all(told) else 0
    unfit = without(view.standing.unfit(op, order), len(order))
    aged = standing if terms.max_stale else {}
    stale = tuple(stale_of(terms, view, *one) for one in aged.items())
    plan = make_plan(
        terms, op, view.last_outcome, moved, standing, receivers, op_deadline_s, slicing, centre,
        unfit, detours, stale, cells,
    )  # fmt: skip
    plan = msgspec.structs.replace(plan, unawaited=tuple(sorted(unawaited & present.keys())))
    if terms.graph == CLOCKS and op % max(1, len(view.members) // 2) and op < terms.rounds:
        plan = msgspec.structs.replace(plan, evaluate_by=b"")  # once while all meet is enough
    return plan if terms.kind == PAIR else with_keepers(plan, keepers, join_index)


def _cell_peers(terms: RunTerms) -> int:
    """Members for which there is one more cell."""
    return terms.cell_peers or limits.CELL_PEERS_MAX


def _num_cells(terms: RunTerms, contributors: int, members: int, num_values: int) -> int:
    """Return how many cells an op has: as few as all members fit into, where its sums are exact, as
    long as each has enough who give, and a block of each range."""
    if not terms.exact or terms.kind in WHOLE or terms.rule:
        return 1
    wanted = -(-members // _cell_peers(terms))
    able = min(contributors // CELL_LEAST, num_values // terms.block, limits.CELLS_PLANNED)
    return max(1, min(wanted, able))


def _two_of(view: GroupView, op: int, ready: AbstractSet[PeerId]) -> list[PeerId]:
    """Draw two of those who are ready, in the order in which they stand: not two that should be no
    pair, where others can be."""
    apart = view.standing.apart(op)
    pairs = pairs_in(order_of(view.tag, op, (), ready, apart, CLOCKS))
    pair = next((one for one in pairs if one[1] not in apart.get(one[0], ())), pairs[0])
    return drawn(view.tag, op, pair)


def left_behind(view: GroupView, peers: Peers) -> set[PeerId]:
    """Peers whose work an op began without, and that have not said READY for the next one yet. They
    make no inner step until then: if it did not wait for them, short rounds of others could leave
    them behind for ever."""
    found = set[PeerId]()
    for peer, one in peers.items():
        if one.ready is not None and one.ready.op < view.next_op:
            made, op = view.commits.get(one.ready.op), one.ready.op
            if op in view.skips or (made is not None and not made.takes(peer)):
                found.add(peer)
    return found


def stale_of(terms: RunTerms, view: GroupView, peer: PeerId, one: GroupPeer) -> int:
    """Number of results since a peer's work began: as it says, as far as the ledger allows; -1
    where there are too many, or no such beginning."""
    since = -1 if one.ready is None else one.ready.since
    told = view.commits_since(since)
    if not 0 <= since <= view.last_op or told > terms.max_stale:
        return -1
    return max(told, least_stale(view, peer, one.line.hello.boot, terms.max_stale))


def with_keepers(
    plan: Plan, keepers: Mapping[PeerId, PeerLine], join_index: Mapping[PeerId, int]
) -> Plan:
    """Return the plan with keepers as members, as far as there is room for them and all know each
    other's keys."""
    newest = max(join_index[member.peer] for member in plan.members)
    known = sorted(peer for peer, line in keepers.items() if line.acked_index >= newest)
    named = tuple(known[: max(0, plan.cells * limits.CELL_PEERS_MAX - len(plan.members))])
    added = tuple(Member(peer, keepers[peer].hello.boot, 0) for peer in named)
    return msgspec.structs.replace(plan, members=plan.members + added, keepers=named)


def _in_turn(op: int, peers: list[PeerId], places: int) -> list[PeerId]:
    """Put those first with whom the places of the ops before have ended: of more peers than have a
    place each is then left out as often."""
    start = (op - 1) * places % len(peers)
    return peers[start:] + peers[:start]


def given_by(peers: Peers, givers: Mapping[PeerId, int]) -> dict[PeerId, GroupPeer]:
    """The peers as they count for an op to which only some may give: nobody else is ready, and
    these have at most so many samples each, 0 for any number."""
    return {
        peer: replace(one, ready=_bounded(one.ready, givers[peer]) if peer in givers else None)
        for peer, one in peers.items()
    }


def _bounded(ready: Ready | None, samples: int) -> Ready | None:
    if ready is None or not samples or ready.samples <= samples:
        return ready
    return msgspec.structs.replace(ready, samples=samples)


def without(against: Mapping[PeerId, int], planned: int) -> set[PeerId]:
    """Choose who owns nothing: those with the most against them, at most half of all."""
    worst = sorted(against, key=lambda peer: (-against[peer], peer))
    return set(worst[: planned // 2])


def _known_to_all(join_index: Mapping[PeerId, int], present: Peers) -> dict[PeerId, GroupPeer]:
    """Without those whose key is not yet in everybody's allow-list (protocol.md, ZAP)."""
    joined = {peer: join_index.get(peer, 1 << 62) for peer in present}
    settled = {peer: one for peer, one in present.items() if one.line.acked_index >= joined[peer]}
    acked = min((one.line.acked_index for one in settled.values()), default=-1)
    return {peer: one for peer, one in settled.items() if joined[peer] <= acked}


def is_synced(view: GroupView, root: bytes | None, one: GroupPeer) -> bool:
    """Return True if the peer holds the newest state, which ops start from; under dispute nobody
    does. Where ops go by pairs that is its own."""
    if view.by_clocks:  # who has no part in what is under way has passed it
        return one.applied_op == view.next_op - 1
    is_own = view.goes_by_pairs and view.commit_at(view.last_op) > 0
    return one.applied_op == view.last_op and (is_own or one.state_root == root)


def pace_of(speeds: Sequence[float | None], *, hurries: bool) -> float | None:
    """The speed that dynamic local updates keep pace with, None where nobody told theirs: that
    which more than half reach, of two the faster one, or the fastest.

    Peers name their own, and a boast would make everybody else hurry: so it is believed up to
    some times the middle one, as rates are.
    """
    known = [speed for speed in speeds if speed is not None and 0 < speed < math.inf]
    if not known:
        return None
    if not hurries:
        return -most_s(-speed for speed in known)
    return min(max(known), limits.PACE_SPREAD * statistics.median(known))


def make_plan(
    terms: RunTerms,
    op: int,
    previous_outcome: bytes,
    num_values: int,
    contributors: Peers,
    receivers: Peers,
    op_deadline_s: float,
    slicing: Slicing,
    centre: int = 0,
    unfit: AbstractSet[PeerId] = frozenset(),
    detours: Detours = DIRECT,
    stale: tuple[int, ...] = (),
    num_cells: int = 1,
) -> Plan:
    """The PLAN of one op. Contributors own slices, but for the unfit, and for those behind a relay
    where that is faster; receivers only follow.

    Contributors stand as given: in the order of their keys or, of a pair op, of its draw, so the
    plan depends on the swarm alone, not on the order in which peers became ready. Where
    contributions stay whole there is nothing to cut. `Blobs` keeps and spills members' copies of
    them like any result, so the bytes that an owner can retain bound nothing.
    """
    ready = {peer: one.ready for peer, one in contributors.items()}
    given = [r for r in ready.values() if r is not None]
    weights = weights_of(
        {peer: r.samples for peer, r in ready.items() if r is not None},
        stale,
        terms.staleness,
    )
    # With a buffer the fastest may not be in this op: each one's newest word counts.
    paced = [*contributors.values(), *(receivers.values() if terms.buffer else ())]
    is_whole = terms.kind in WHOLE
    members = [Member(peer, contributors[peer].line.hello.boot, weights[peer]) for peer in weights]
    members += [Member(peer, one.line.hello.boot, 0) for peer, one in sorted(receivers.items())]
    order = list(weights)
    told = [r.samples for r in given] if terms.counts_samples or stale else []
    checkpoint_due = op % terms.checkpoint_rounds == 0 or op >= terms.rounds
    cells = dealt(members, num_cells, seed_of(previous_outcome, op))
    slices = (
        gathered_slices(order, num_values)
        if is_whole
        else _cut(terms, num_values, contributors, slicing, unfit, detours, cells)
    )
    return Plan(
        op=op,
        previous_outcome=previous_outcome,
        members=tuple(members),
        slices=slices,
        codec=terms.codec,
        exact=terms.exact and not is_whole,
        block=terms.block,
        chunk_values=terms.chunk_values if is_whole else _chunk_values(terms, slices),
        # Of pairs nothing is summed: one window for the whole run, so that anchors may go early.
        e_min=window_floor(terms.e_max, sum(weights.values()) if terms.kind != PAIR else 1),
        e_max=terms.e_max,
        min_contributors=_least(terms, len(order)),
        deadline_s=op_deadline_s,
        checkpoint_by=order[op // terms.checkpoint_rounds % len(order)] if checkpoint_due else b"",
        evaluate_by=order[(op + 1) % len(order)],
        result_codec=terms.result_codec,
        rule=terms.rule,
        samples=believed(told),
        fastest_steps_per_s=pace_of(
            [one.ready.steps_per_s for one in paced if one.ready], hurries=terms.hurries
        ),
        kind=constant_of(terms.kind),
        vectors=terms.vectors,
        graph=terms.graph,
        scalars=terms.scalars,
        centre=centre,
        group=terms.group,
        stale=stale,
        staleness=terms.staleness if stale else "",
        max_stale=terms.max_stale if stale else 0,
        cells=num_cells,
    )


def _least(terms: RunTerms, num_contributors: int) -> int:
    """Return how many contributors the op's result must have. An odd one cannot be in any pair."""
    if terms.kind != PAIR:
        return terms.min_contributors
    if num_contributors == 1:
        return 1
    return max(2, min(terms.min_contributors, num_contributors // 2 * 2))


def _chunk_values(terms: RunTerms, slices: Sequence[SliceSpec]) -> int:
    """Values per chunk of a mean: those of the run file, fewer where slices are short."""
    longest = max(spec.stop - spec.start for spec in slices)
    wanted = max(limits.CHUNK_VALUES_LEAST, longest / limits.CHUNKS_LEAST)
    most = min(terms.chunk_values, limits.SUM_VALUES_MAX // terms.block * terms.block)
    return min(most, math.ceil(wanted / terms.block) * terms.block)


def _cut(
    terms: RunTerms,
    num_values: int,
    contributors: Peers,
    slicing: Slicing,
    unfit: AbstractSet[PeerId],
    detours: Detours,
    cells: Cells,
) -> tuple[SliceSpec, ...]:
    """Slices of a mean op and their owners, by rates and ways.

    An owner's word is final where a robust rule is, and ways are peers' own words: so there half of
    the contributors own something, however far from each other they are.
    """
    vector_bytes = num_values * terms.value_bytes
    equal = terms.equal_slices
    lines = {peer: one.line for peer, one in contributors.items()}
    shares = slicing.shares(
        lines, vector_bytes, equal=equal, unfit=unfit, detours=detours,
        least_owners=math.ceil(len(lines) / 2) if terms.rule else 1,
    )  # fmt: skip
    if cells.count > 1:
        return _in_cells(terms, num_values, dict(zip(sorted(lines), shares, strict=True)), cells)
    bounds = cut(num_values, terms.block, shares)
    return tuple(
        SliceSpec(start, stop, peer)
        for peer, (start, stop) in zip(sorted(contributors), bounds, strict=True)
        if stop > start
    )


def _in_cells(
    terms: RunTerms, num_values: int, shares: Mapping[PeerId, float], cells: Cells
) -> tuple[SliceSpec, ...]:
    """Slices of an op in cells: ranges, each cut into a piece per cell.

    All cells have the same ranges: the fastest of each cell own the first one, and so on. So a
    range is as long as its owners' shares are in the middle.
    """
    ranked: list[list[PeerId]] = []
    for cell in range(cells.count):
        own = [peer for peer in shares if cells.cell_of(peer) == cell]
        able = [peer for peer in own if shares[peer] > 0] or own
        ranked.append(sorted(able, key=lambda peer: (-shares[peer], peer)))
    num_blocks = num_values // terms.block
    num_ranges = min(*map(len, ranked), num_blocks // cells.count)
    parts = [sum(shares[row[rank]] for row in ranked) for rank in range(num_ranges)]
    total = sum(parts)
    # Each piece has a block; the others follow the shares.
    spare = num_values - num_ranges * cells.count * terms.block
    longer = cut(spare, terms.block, [part / total if total else 1 / num_ranges for part in parts])
    slices, position = list[SliceSpec](), 0
    for rank, (start, stop) in enumerate(longer):
        length = stop - start + cells.count * terms.block
        for cell, bounds in enumerate(cut(length, terms.block, [1 / cells.count] * cells.count)):
            owner = ranked[cell][rank]
            slices.append(SliceSpec(position + bounds[0], position + bounds[1], owner))
        position += length
    return tuple(slices)

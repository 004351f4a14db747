"""Rules that every PLAN keeps (protocol.md, PLAN body); peers refuse one that breaks any."""

import math
from collections.abc import Sequence
from functools import lru_cache

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import CLOCKS, GRAPHS, KINDS, PAIR, PAIR_VECTORS, WHOLE
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.ledger.inner_products import CENTRED, SCALARS
from swarmtrain_transport.ledger.sample_weights import (
    STALENESS,
    are_legal,
    weights_are_believed,
    weights_follow_samples,
)
from swarmtrain_transport.ledger.transfers import gathered_slices
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import PLANS_AT_HAND, Attest, Plan, SliceSpec


def window_floor(e_max: int, total_weight: int) -> int:
    """Lowest e_min for which every sum of planned contributions is exact in float64 (rule 1)."""
    bits = limits.EXACT_BITS - limits.PRODUCT_BITS - _bits_of(total_weight)
    return max(limits.E_MIN_FLOOR, e_max - bits)


def _bits_of(count: int) -> int:
    """ceil(log2 count), in integers: no library's logarithm decides what is exact."""
    return (max(1, count) - 1).bit_length()


def centre_of(view: GroupView, op: int) -> int:
    """The op whose result `op` may begin from: the newest that moved the same values; 0 for none.

    One that is so long ago that peers may forget it while `op` goes on is none.
    """
    turns = len(view.genesis.fragments) if view.genesis is not None else 0
    recent = range(op - 1, max(0, op - limits.RESULT_KEEP_OPS), -1)
    fitting = (number for number in recent if (op - number) % max(1, turns) == 0)
    return next((number for number in fitting if number in view.commits), 0)


def check_centre(view: GroupView, plan: Plan) -> None:
    """Check the result that PLAN names as the beginning of its rule: one of other values, or one
    that is not known, would be read as if it fitted.

    Raises:
        RemoteFault: reason ``plan``.
    """
    if plan.centre and plan.centre != centre_of(view, plan.op):
        raise RemoteFault("plan", f"op {plan.op}: no rule begins from the result of {plan.centre}")


def least_stale(view: GroupView, peer: PeerId, boot: bytes, max_stale: int) -> int:
    """Least number of results since a peer's work for the next op began: it began no earlier than
    with the last result that it is in, and newer work would weigh more. 0 where that was in another
    life, or too long ago: such a peer has begun anew."""
    for stale, op in enumerate(sorted(view.commits, reverse=True)[: max_stale + 1]):
        made = view.commits[op]
        if made.takes(peer) and made.boots.get(peer) == boot:
            return stale
    return 0


def check_stale(view: GroupView, plan: Plan) -> None:
    """Check how old PLAN says each contributor's work to be.

    Raises:
        RemoteFault: reason ``plan``.
    """
    givers = [member for member in plan.members if member.weight]
    if len(plan.stale) not in (0, len(givers)):
        raise RemoteFault("plan", f"op {plan.op}: not one age for each contributor's work")
    for member, stale in zip(givers, plan.stale, strict=False):
        least = least_stale(view, member.peer, member.boot, plan.max_stale)
        if not least <= stale <= plan.max_stale:
            raise RemoteFault("plan", f"op {plan.op}: work that cannot be {stale} results old")


@lru_cache(PLANS_AT_HAND)
def check_plan(plan: Plan, num_values: int) -> None:
    """Every peer checks every plan and refuses loudly.

    Raises:
        RemoteFault: reason ``plan`` with the rule that is broken.
    """
    weights = [member.weight for member in plan.members if member.weight]
    peers = [member.peer for member in plan.members]
    total = sum(weights)
    spread = plan.e_max - plan.e_min
    bits = limits.PRODUCT_BITS + _bits_of(total)
    rules = {
        "nobody contributes": bool(weights),
        "nobody need contribute": plan.min_contributors >= 1,
        "a peer is named twice": len(set(peers)) == len(peers),
        "there is no cell": 1 <= plan.cells <= limits.CELLS_MAX,
        "too many members": len(peers) <= max(1, plan.cells) * limits.CELL_PEERS_MAX,
        "only exact means have cells": plan.cells == 1 or (plan.exact and plan.kind not in WHOLE),
        "a cell gives nothing": len(weights) >= plan.cells,
        "a cell's sum does not fit into a frame": plan.cells == 1
        or plan.chunk_values <= limits.SUM_VALUES_MAX,
        "an owner is not of its slice's cell": _are_in_cells(plan),
        "weights are 1 to 255": all(0 < weight <= limits.WEIGHT_MAX for weight in weights),
        "sums would not be exact": not plan.exact or spread + bits <= limits.EXACT_BITS,
        "what is no sum cannot be exact": not (plan.exact and plan.rule),
        "what stays whole has no rule": plan.kind not in WHOLE or not plan.rule,
        "scalars that this version does not know": plan.scalars in SCALARS,
        "scalars without a rule": not plan.scalars or bool(plan.rule),
        "a centre that cannot be one": plan.centre == 0
        or (plan.scalars == CENTRED and 0 < plan.centre < plan.op),
        "window too low": plan.e_min >= limits.E_MIN_FLOOR and spread >= 0,
        "window too high": plan.e_max <= limits.E_MAX_CEILING,
        "chunks are multiples of the block": plan.block > 0
        and plan.chunk_values > 0
        and plan.chunk_values % plan.block == 0,
        # A larger one would never fit into an owner's credit (four bytes per value at most).
        "chunks are too large": plan.chunk_values * 4 <= limits.CREDIT_WINDOW_BYTES,
        "a kind that this version does not know": plan.kind in KINDS,
        "slices do not cover the vector": plan.kind in WHOLE
        or _covers(plan.slices, plan.block, num_values),
        "slices are not the contributions": plan.kind not in WHOLE
        or _are_contributions(plan, num_values),
        "what stays whole has no sums": plan.kind not in WHOLE or not plan.exact,
        "a pair needs two": plan.kind != PAIR
        or min(len(weights), plan.min_contributors) >= 2
        or (len(weights), plan.min_contributors) == (1, 1),
        "a half is one vector or two": plan.vectors in (1, PAIR_VECTORS),
        "a graph that this version does not know": plan.graph in GRAPHS,
        "two meet by clocks": plan.graph != CLOCKS
        or (plan.kind == PAIR and len(weights) == len(peers) == 2),
        "an owner is not a member": all(spec.owner in peers for spec in plan.slices),
        "a keeper gives or owns": not set(plan.keepers)
        & {*(m.peer for m in plan.members if m.weight), *(spec.owner for spec in plan.slices)},
        "a keeper is not a member": set(plan.keepers) <= set(peers),
        "who is not waited for is no member": set(plan.unawaited) <= set(peers),
        "no text has such a place": plan.text is None
        or (plan.text.number >= 1 and 0 <= plan.text.used <= plan.text.pieces),
        "a weight is more than is believed": weights_are_believed(plan),
        "samples are not one number for each contributor": are_legal(plan),
        "weights are not those of the samples": weights_follow_samples(plan),
        "work may be too old": 0 <= plan.max_stale <= limits.STALE_MAX,
        "a staleness that this version does not know": plan.staleness in STALENESS,
        "losses are not one number for each contributor": len(plan.losses) in (0, len(weights))
        and all(-1.0 <= loss <= limits.TOLD_LOSS_MAX for loss in plan.losses),
        # In a narrower one small values would be sent as zero for no reason.
        "window too narrow": plan.e_min <= window_floor(plan.e_max, total),
        "the deadline is not positive": 0 < plan.deadline_s < math.inf,
    }
    for problem, holds in rules.items():
        if not holds:
            raise RemoteFault("plan", f"op {plan.op}: {problem}")


def _are_in_cells(plan: Plan) -> bool:
    """Check that each range has a piece for each cell, owned in that cell."""
    if plan.cells <= 1:
        return True
    cells = Cells.in_plan(plan)
    return len(plan.slices) % plan.cells == 0 and all(
        cells.of.get(spec.owner) == index % plan.cells for index, spec in enumerate(plan.slices)
    )


def _are_contributions(plan: Plan, num_values: int) -> bool:
    """Check that each contributor has its slice, in the members' order, and that it is the whole
    vector."""
    contributors = [member.peer for member in plan.members if member.weight]
    is_whole = num_values > 0 and plan.block > 0 and num_values % plan.block == 0
    return is_whole and plan.slices == gathered_slices(contributors, num_values)


def _covers(specs: Sequence[SliceSpec], block: int, num_values: int) -> bool:
    position = 0
    for spec in specs:
        if spec.start != position or spec.stop <= spec.start or block <= 0 or spec.stop % block:
            return False
        position = spec.stop
    return position == num_values


def vectors_in(plan: Plan) -> int:
    """Number of vectors in a contribution to an op."""
    return plan.vectors if plan.kind == PAIR else 1


def values_of(genesis: Attest, op: int, block: int, vectors: int = 1) -> int:
    """Return how many values an op moves: the padded vector, or the fragment whose turn it is; of a
    pair op one or two such vectors, one after the other.

    Op n moves fragment (n - 1) mod their number: nobody has to say so, and a round that is skipped
    or rewound changes nothing for the others. Only the peers know a fragment's place in the vector
    (Douillard et al., Streaming DiLoCo, arXiv 2501.18512); here it has a length.
    """
    if genesis.fragments:
        return vectors * genesis.fragments[(op - 1) % len(genesis.fragments)]
    return vectors * (-(-genesis.num_values // block) * block)

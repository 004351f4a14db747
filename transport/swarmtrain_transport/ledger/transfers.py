"""Transfers: the slices of an op as movements of values, whatever the op's kind.

Each slice of a PLAN is one transfer: *givers* contribute to it, a *reducer* makes its result of
what they give, *takers* get that result. Where a slice can be made again by somebody else it is
*movable*. A mean: all contributors give, where the op has cells those of the owner's; the slice's
owner reduces, all members take, and it can move. A gather: one gives, reduces and is the only one
who can, all members take. A pair: likewise, but only the partner takes, and one counts only with
the other.

In the latter two contributions stay *whole*: slice j is contributor j's own contribution, its owner
is j for good, its only attempt is 0, and nothing was summed for it. So a publication is named by
its content: the first 8 bytes of its root take the place of the contributors' set id. A HAVE that
was meant for other bytes of the same contributor, before a coordinator's restart, counts for
nothing then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.pairing import contributors_of, least_in, whole_pairs
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    PLANS_AT_HAND,
    Commit,
    Plan,
    SignedRoot,
    SliceOutcome,
    SliceSpec,
)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One slice of an op, as it was planned.

    Attributes:
        index: the slice's index in PLAN.
        givers: contributors that give to its owner, in PLAN's order.
        takers: members that get its result, in PLAN's order. A reducer that gives alone is no
            taker: peer that has what it gives.
        movable: another member may take over as its reducer.
        needs: other slices without which it counts for nothing.
    """

    index: int
    givers: tuple[PeerId, ...]
    takers: tuple[PeerId, ...]
    movable: bool
    needs: tuple[int, ...] = ()

    @property
    def is_verbatim(self) -> bool:
        """True if its result is its one giver's bytes, named by their content."""
        return not self.movable


@lru_cache(PLANS_AT_HAND)
def transfers_of(plan: Plan) -> tuple[Transfer, ...]:
    """The transfers of an op, one per slice, in the order of its slices."""
    contributors = contributors_of(plan)
    members = tuple(member.peer for member in plan.members)
    if plan.kind not in WHOLE:
        cells, indexes = Cells.in_plan(plan), range(len(plan.slices))
        givers = [cells.among(contributors, index) for index in range(plan.cells)]
        return tuple(Transfer(i, givers[i % plan.cells], members, True) for i in indexes)
    owners = [spec.owner for spec in plan.slices]
    if plan.kind == PAIR:
        return tuple(_half(index, owners) for index in range(len(owners)))
    return tuple(
        Transfer(index, (giver,), tuple(peer for peer in members if peer != giver), False)
        for index, giver in enumerate(owners)
    )


def _half(index: int, owners: Sequence[PeerId]) -> Transfer:
    """One direction of a pair; an odd last contributor moves nothing."""
    other = index ^ 1
    if other >= len(owners):
        return Transfer(index, (), (), False)
    return Transfer(index, (owners[index],), (owners[other],), False, (other,))


NOTHING_SUMMED = b""
"""Inputs that a contributor signs for its own contribution."""


def gathered_slices(contributors: Sequence[PeerId], num_values: int) -> tuple[SliceSpec, ...]:
    """A slice for each contributor: the whole of what the op moves."""
    return tuple(SliceSpec(0, num_values, peer) for peer in contributors)


def content_name(root: bytes) -> int:
    """Names what a contributor has published, in 64 bits."""
    return int.from_bytes(root[:8], "little")


def outcome_of(
    owners: Sequence[PeerId], roots: Mapping[PeerId, SignedRoot], kept: Collection[PeerId]
) -> tuple[SliceOutcome, ...]:
    """Return COMMIT's outcome of each slice: a kept contributor stands for itself, the others for
    nothing.

    Args:
        owners: owners of the slices, in order.
        roots: roots that FREEZE's contributors have signed.
        kept: contributors whose contributions are held; all of them are in `roots`.
    """
    return tuple(
        SliceOutcome(0, (peer,), roots[peer].root) if peer in kept else SliceOutcome(0, (), b"")
        for peer in owners
    )


def is_kept(
    plan: Plan,
    frozen: Sequence[PeerId] | None,
    roots: Mapping[PeerId, SignedRoot],
    commit: Commit,
) -> bool:
    """Return True if COMMIT names some of FREEZE's contributors, enough of them, with the roots
    that they have signed; of a pair op, both of each pair.

    Args:
        plan: plan of the op.
        frozen: FREEZE's contributors, None before it.
        roots: roots that the contributors have signed.
        commit: COMMIT to check.
    """
    kept = set(commit.contributors)
    owners = [spec.owner for spec in plan.slices]
    paired = {peer for pair in whole_pairs(plan, commit) for peer in pair}
    return (
        frozen is not None
        and commit.contributors == tuple(peer for peer in frozen if peer in kept)
        and len(kept) >= least_in(plan)
        and commit.slices == outcome_of(owners, roots, kept & roots.keys())
        and (plan.kind != PAIR or paired == kept)
    )

"""Transfers: the slices of an op as movements of values, whatever the op's kind.

Each slice of a PLAN is one transfer: *givers* contribute to it, a *reducer* makes its result of
what they give, *takers* get that result. Where a slice can be made again by somebody else it is
*movable*. A mean: all contributors give, the slice's owner reduces, all members take, and it can
move. A gather: one gives, reduces and is the only one who can, all members take. A pair: likewise,
but only the partner takes.
"""

from dataclasses import dataclass

from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.pairing import contributors_of, partner_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Plan


@dataclass(frozen=True, slots=True)
class Transfer:
    """One slice of an op, as it was planned.

    Attributes:
        index: the slice's index in PLAN.
        givers: contributors whose values it is made of, in PLAN's order.
        takers: members that get its result, in PLAN's order. A reducer that gives alone is no
            taker: it has what it gives.
        movable: another member may take over as its reducer.
    """

    index: int
    givers: tuple[PeerId, ...]
    takers: tuple[PeerId, ...]
    movable: bool


def transfers_of(plan: Plan) -> tuple[Transfer, ...]:
    """The transfers of an op, one per slice, in the order of its slices."""
    contributors = contributors_of(plan)
    members = tuple(member.peer for member in plan.members)
    if plan.kind not in WHOLE:
        return tuple(Transfer(i, contributors, members, True) for i in range(len(plan.slices)))
    return tuple(
        Transfer(index, (spec.owner,), _takers(plan, spec.owner, contributors, members), False)
        for index, spec in enumerate(plan.slices)
    )


def _takers(
    plan: Plan, giver: PeerId, contributors: tuple[PeerId, ...], members: tuple[PeerId, ...]
) -> tuple[PeerId, ...]:
    if plan.kind != PAIR:
        return tuple(peer for peer in members if peer != giver)
    partner = partner_in(contributors, giver)
    return () if partner is None else (partner,)

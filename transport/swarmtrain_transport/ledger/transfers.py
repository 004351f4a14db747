"""Transfers: the slices of an op as movements of values, whatever the op's kind.

Each slice of a PLAN is one transfer: *givers* contribute to it, a *reducer* makes its result of
what they give, *takers* get that result. Where a slice can be made again by somebody else it is
*movable*. A mean: all contributors give, the slice's owner reduces, all members take, and it can
move. A gather: one gives, reduces and is the only one who can, all members take. A pair: likewise,
but only the partner takes, and one counts only with the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.pairing import contributors_of
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


def transfers_of(plan: Plan) -> tuple[Transfer, ...]:
    """The transfers of an op, one per slice, in the order of its slices."""
    contributors = contributors_of(plan)
    members = tuple(member.peer for member in plan.members)
    if plan.kind not in WHOLE:
        return tuple(Transfer(i, contributors, members, True) for i in range(len(plan.slices)))
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

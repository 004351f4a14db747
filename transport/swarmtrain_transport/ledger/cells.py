"""Cells: how the members of a mean share its work where they are more than can all meet.

One peer can send to 64 others, and hear them, but not to thousands. So PLAN deals its members into
cells. Each cell sums its own parts, and the sums of all cells, unrounded, are added: as they are
exact the mean has the bits that it would have without cells.

The vector is cut into *ranges*, and each range into one *piece* per cell. PLAN names an owner for
each piece, out of its cell: slice r * cells + c is piece c of range r. The owner of a piece

- sums, over all of the range, the parts of its own cell;
- sends each piece of that sum to the owner of the piece;
- adds for its own piece what the owners in the other cells have sent, and publishes the mean.

A sum is without the part of the owner itself, which goes beside it: what an owner may give is its
own affair, what it makes of the others' parts is not. Each sum is with two peers, of two cells, for
audits (`cell_sums`): whoever makes it, and whoever is sent it.

So each member sends its cell about one vector of parts, and a piece of a result is one peer's word
that all can check. With one cell range, piece and slice are the same (protocol.md rule 8).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import PLANS_AT_HAND, Member, Plan, SliceSpec

Place = tuple[int, int]
"""A slice, and a chunk of it."""

_KEPT = 256
"""Slices and cells of the newest PLANs of which it is kept what their owners sum."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one PLAN.

    Attributes:
        count: number of cells.
        of: cell of each member; empty where there is one cell.
    """

    count: int
    of: Mapping[PeerId, int]

    @classmethod
    @lru_cache(PLANS_AT_HAND)
    def in_plan(cls, plan: Plan) -> "Cells":
        """The cells of a plan, which follow from its members and the outcome before it."""
        return dealt(plan.members, plan.cells, seed_of(plan.previous_outcome, plan.op))

    def cell_of(self, peer: PeerId) -> int:
        """Return the cell of a member."""
        return self.of.get(peer, 0)

    def near(self, peer: PeerId, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
        """Choose the members that are in the cell of a member, itself among them."""
        return self.among(peers, self.cell_of(peer))

    def among(self, peers: Iterable[PeerId], index: int) -> tuple[PeerId, ...]:
        """Choose the members that are in the cell of a slice, in the order given."""
        if self.count == 1:
            return tuple(peers)
        cell, of = index % self.count, self.of.get
        return tuple([peer for peer in peers if of(peer) == cell])

    def range_of(self, index: int) -> int:
        """Return the range that a slice is a piece of."""
        return index // self.count

    def pieces(self, index: int) -> range:
        """Slices of the same range, this one among them: one per cell."""
        first = index - index % self.count
        return range(first, first + self.count)

    def met_by(self, peer: PeerId, owners: Sequence[PeerId]) -> set[PeerId]:
        """Return those to whom a member sends: the owners of its cell; an owner to all members of
        its cell and to the other owners of its ranges."""
        cell, mine = self.cell_of(peer), [i for i, owner in enumerate(owners) if owner == peer]
        if not mine:
            return set(owners[cell :: self.count])
        ranges = {owners[piece] for index in mine for piece in self.pieces(index)}
        return ranges | {one for one, its in self.of.items() if its == cell}

    def taker(self, cell: int, index: int) -> int:
        """Return the slice of the same range whose owner is sent a cell's sum of a slice: that
        slice itself, and where it is owned in this very cell the next, to be kept for audits."""
        if index % self.count != cell:
            return index
        return self.owned((cell + 1) % self.count, index)

    def owned(self, cell: int, index: int) -> int:
        """Return the slice of the same range that is owned in a cell."""
        return index - index % self.count + cell


def seed_of(previous_outcome: bytes, op: int) -> bytes:
    """Return what the deal of an op's cells follows from: nobody can choose it."""
    return previous_outcome + op.to_bytes(8, "little")


def dealt(members: Iterable[Member], count: int, seed: bytes) -> Cells:
    """Deal members into so many cells: first those who contribute, then the others, both in the
    order of SHA-256 over seed and key. So cells differ by one peer at most, in both, and nobody can
    choose a key with which it meets another in the next op.

    Args:
        members: members of the op.
        count: number of cells.
        seed: as `seed_of` gives it.
    """
    if count <= 1:
        return Cells(1, {})

    def lot(member: Member) -> tuple[bool, bytes]:
        return not member.weight, hashlib.sha256(seed + member.peer).digest()

    order = sorted(members, key=lot)
    return Cells(count, {member.peer: rank % count for rank, member in enumerate(order)})


@lru_cache(_KEPT)
def summed_chunks(plan: Plan, index: int) -> tuple[Place, ...]:
    """Chunks that the owner of a slice sums: those of all pieces of its range, the first chunk of
    each, then the second of each. With one cell they are the slice's own, in order."""
    count = plan.cells
    first = index - index % count
    pieces = range(first, first + count)
    lengths = {piece: _num_chunks(plan.slices[piece], plan.chunk_values) for piece in pieces}
    most = max(lengths.values())
    return tuple((piece, k) for k in range(most) for piece in pieces if k < lengths[piece])


@lru_cache(_KEPT)
def places_of(plan: Plan, cell: int) -> Mapping[int, tuple[Place, ...]]:
    """Map the slices that are owned in a cell to the chunks that their owners sum."""
    indexes = range(cell if plan.cells > 1 else 0, len(plan.slices), plan.cells)
    return {index: summed_chunks(plan, index) for index in indexes}


def _num_chunks(spec: SliceSpec, chunk_values: int) -> int:
    return -(-(spec.stop - spec.start) // chunk_values)

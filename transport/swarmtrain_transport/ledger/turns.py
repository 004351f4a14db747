"""Turns of a run's subspace: which are legal, and which proposal becomes one.

A turn is a step along a geodesic of the Grassmann manifold, in planes that have no channel in
common. Any legal one does a run little harm, so it need not be known who is right.
"""

import hashlib
from collections.abc import Mapping, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Plane

UNITS = 1024
"""Units of the tangent of half an angle: the smallest angle is 0.002 radians."""

Planes = tuple[Plane, ...]


def most_units(angle: float) -> int:
    """The largest step where no plane may be turned by more than so many radians: a tangent is
    larger than its angle, and this product is the same everywhere."""
    return int(UNITS * angle / 2)


def are_apart(planes: Sequence[Plane]) -> bool:
    """Return True if these can be the planes of a turn, in a subspace of some rank."""
    insides, outsides = {one.inside for one in planes}, {one.outside for one in planes}
    return (
        0 < len(planes) <= limits.TURN_PLANES_MAX
        and len(insides) == len(outsides) == len(planes)
        and 0 <= min(insides) <= max(insides) < min(outsides)
        and all(0 < abs(one.step) <= UNITS for one in planes)
    )


def are_legal(planes: Sequence[Plane], rank: int, width: int, most: int) -> bool:
    """Return True if a run may turn its subspace so.

    Args:
        planes: planes of the turn.
        rank, width: channels of the subspace, and of all.
        most: the largest step of a plane.
    """
    return are_apart(planes) and all(
        one.inside < rank <= one.outside < width and abs(one.step) <= most for one in planes
    )


def drawn(proposed: Mapping[PeerId, Planes], head: bytes) -> Planes:
    """Return one of the proposals, by a draw that nobody who proposes can know before.

    Args:
        proposed: legal proposals, one at least, by who makes them.
        head: hash of the newest record.
    """
    return proposed[min(proposed, key=lambda peer: hashlib.sha256(head + peer).digest())]

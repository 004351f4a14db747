"""Seconds for which the others have waited for a peer, whatever it was that they waited for."""

import math
from collections.abc import Iterable

from swarmtrain_transport.links.link import PeerId

Waits = dict[PeerId, float]
"""Seconds for which the others have waited for each."""


def most_s(times_s: Iterable[float]) -> float:
    """Return when more than half had come, of two the first."""
    came_s = sorted(times_s)
    return came_s[0 if len(came_s) == 2 else len(came_s) // 2] if came_s else math.inf


def add(waits: Waits, peer: PeerId, seconds: float) -> None:
    """Count some more for a peer."""
    if seconds > 0:
        waits[peer] = waits.get(peer, 0.0) + seconds

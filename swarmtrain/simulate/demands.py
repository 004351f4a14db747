"""What may be demanded of whom: liveness holds only for those with whom nothing was wrong."""

from typing import TYPE_CHECKING

from swarmtrain_transport import limits
from swarmtrain_transport.link import PeerId

if TYPE_CHECKING:
    from swarmtrain.simulate.sim_peer import SimPeer
    from swarmtrain.simulate.world import World

GRACE_S = limits.SUSPECT_S + limits.FETCH_TIMEOUT_S
"""After its trouble a peer may still be suspected, and requests to it time out."""


class Demands:
    """Who was in trouble, and until when.

    Args:
        world: its clock.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._until_s: dict[PeerId, float] = {}
        self._all_until_s = 0.0

    def trouble(self, peer: PeerId, seconds: float) -> None:
        """Something is wrong with a peer or its links for so long from now on."""
        until_s = self._world.clock.now_s + seconds + GRACE_S
        self._until_s[peer] = max(self._until_s.get(peer, 0.0), until_s)

    def trouble_all(self, seconds: float) -> None:
        """Something is wrong with the coordinator."""
        self._all_until_s = max(self._all_until_s, self._world.clock.now_s + seconds + GRACE_S)

    def is_quiet(self, since_s: float) -> bool:
        """Whether the coordinator has been well since then."""
        return self._all_until_s < since_s

    def is_sound(self, peer: "SimPeer", since_s: float) -> bool:
        """Whether nothing but death could have kept this peer from an op that began then."""
        return peer.is_able and self._until_s.get(peer.peer_id, -1.0) < since_s

"""Checks of meetings, where peers are behind routers (protocol.md T21).

W1: a token is for one try of one pair in one way, and is taken once from each side. W2: in the end
a way leads from everybody to everybody. W3: nobody relays what it sends or gets itself. W4: a
way that stands is given up only for another, or when an end or its relay has left the roster.
"""

from collections.abc import Callable

from swarmtrain.simulate.ground.routers import SimWay
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire.messages import Meet


class WayChecks:
    """Checks of one world.

    Args:
        violated: hears of an invariant that does not hold, and in words why.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._stood: set[bytes] = set()
        self._relays: dict[bytes, PeerId] = {}
        self._gone_s: dict[PeerId, float] = {}
        self._tries: dict[bytes, tuple[PeerId, PeerId, str]] = {}
        self._told: dict[tuple[bytes, PeerId], int] = {}
        self._over: set[tuple[bytes, PeerId]] = set()
        self.taken_tokens: list[tuple[bytes, Side]] = []

    def asked(self, peer: PeerId, meet: Meet) -> None:
        """A peer is asked to meet another."""
        ends = (peer, meet.peer) if meet.sends else (meet.peer, peer)
        if self._relays.get(meet.token) in ends:
            self._violated("W3", "a peer is to relay for itself")
        this = (*ends, meet.way)
        if self._tries.setdefault(meet.token, this) != this:
            self._violated("W1", f"a token of {self._tries[meet.token]} is used for {this}")
        count = self._told[meet.token, peer] = self._told.get((meet.token, peer), 0) + 1
        if count > 1 + (meet.way == Way.PUNCHED):
            self._violated("W1", f"a token is told {count} times")
        if (meet.token, peer) in self._over:
            self._violated("W1", "a token is used again after its end")

    def taken(self, token: bytes, side: Side, way: Way) -> None:
        """The coordinator's port takes a connection."""
        if (token, side) in self.taken_tokens:
            self._violated("W1", f"a token is taken twice from the {side.name.lower()}")
        self.taken_tokens.append((token, side))

    def carries(self, relay: PeerId, token: bytes) -> None:
        """A peer is to relay."""
        self._relays[token] = relay

    def stood(self, token: bytes) -> None:
        """The coordinator knows of a way."""
        self._stood.add(token)

    def gone(self, peer: PeerId, now_s: float) -> None:
        """A peer is in the roster no longer."""
        self._gone_s[peer] = now_s

    def parted(self, peer: PeerId, token: bytes, only: SimWay | None) -> None:
        """A peer is to give up a meeting."""
        self._over.add((token, peer))
        if only is None or token not in self._stood:
            return
        ends = (only.sender, only.receiver, only.relay)
        if all(self._gone_s.get(end or b"", -1.0) < only.since_s for end in ends):
            self._violated("W4", "the only way between two is given up, and stands")

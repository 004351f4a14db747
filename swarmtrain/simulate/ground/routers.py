"""Routers before the peers of a simulated world: who reaches whom, plainly or by a way that stands.

Only worlds that are asked for have them. What a peer does to make a way is in
`processes.dialling`; here is what comes of it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmtrain.simulate.ground.scene import Scene
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Way

OPEN, CONE, RESTRICTED, SYMMETRIC = "open", "cone", "restricted", "symmetric"
_KINDS = (OPEN, CONE, RESTRICTED, RESTRICTED, SYMMETRIC)
_LETS_IN = (OPEN, CONE)

_RELAYS = 0.3
"""Part of the peers that nobody's router keeps others from, which relay."""

_NOTICE_S = 6.0
_NOTICES = 0.8
"""One of two ends notices within so long that a way has ended, in so many cases; else only PROGRESS
says so, as it names whom nothing reaches."""


_LATELY_S = 60.0
"""A word of the coordinator takes so long at most."""


class End(Protocol):
    """A peer's part in meetings."""

    def lost(self, token: bytes) -> None:
        """A way by which it sends, or hears, has ended."""


@dataclass(frozen=True, slots=True)
class SimWay:
    """A way that stands. `relay` is a peer, or b"" for the coordinator, of a relayed one."""

    token: bytes
    sender: PeerId
    receiver: PeerId
    way: Way
    relay: PeerId | None
    since_s: float


class Routers:
    """All routers of one world.

    Args:
        scene: clock and chance.
        drop: loses what is under way from one peer to another.

    Attributes:
        ends: parts in meetings of the processes that live.
        blocked: ordered pairs of which the first cannot plainly dial the second in any case.
        mapped: peers whose router forwards a port.
        deaf: MEETs that each peer will not hear.
        remotes: address of each peer outside.
    """

    def __init__(self, scene: Scene, drop: Callable[[PeerId, PeerId], None]) -> None:
        self.ends: dict[PeerId, End] = {}
        self.blocked: set[tuple[PeerId, PeerId]] = set()
        self.mapped: set[PeerId] = set()
        self.deaf: dict[PeerId, int] = {}
        self.remotes: dict[PeerId, str] = {}
        self._scene, self._drop = scene, drop
        self._kinds: dict[PeerId, tuple[str, bool]] = {}
        self._ways: dict[bytes, SimWay] = {}
        self._standing: dict[tuple[PeerId, PeerId], set[bytes]] = {}
        self._two_s: dict[tuple[PeerId, PeerId], float] = {}
        self._down_s: dict[tuple[PeerId, PeerId], float] = {}

    # ---- who reaches whom

    def enter(self, peer: PeerId, host: str, end: End) -> None:
        """A process begins behind its peer's router."""
        self.ends[peer], self.remotes[peer] = end, host
        if peer not in self._kinds:
            rng = random.Random(f"router {self._scene.conditions.seed} {peer.hex()}")
            kind = rng.choice(_KINDS)
            self._kinds[peer] = kind, kind in _LETS_IN and rng.random() < _RELAYS

    def kind(self, peer: PeerId) -> str:
        """Kind of a peer's router."""
        return self._kinds[peer][0]

    def relays(self, peer: PeerId) -> bool:
        """Return True if a peer passes bytes on."""
        return self._kinds[peer][1]

    def lets_in(self, source: PeerId, target: PeerId) -> bool:
        """Return True if one can plainly dial the other."""
        is_open = self.kind(target) in _LETS_IN
        return is_open and target in self.ends and (source, target) not in self.blocked

    def punches(self, one: PeerId, other: PeerId) -> bool:
        """Return True if both come through when they dial each other at once."""
        kinds = {self.kind(one), self.kind(other)}
        return SYMMETRIC not in kinds or bool(kinds & {*_LETS_IN})

    def at(self, host: str) -> PeerId | None:
        """Peer with this address outside."""
        return next((peer for peer in self.ends if self.remotes[peer] == host), None)

    def carries(self, source: PeerId, target: PeerId, *, is_told: bool = True) -> bool:
        """Return True if frames of the one, which may be told the other's address, reach it in some
        way."""
        is_met = bool(self._standing.get((source, target)))
        return is_met or (is_told and self.lets_in(source, target))

    def is_down(self, source: PeerId, target: PeerId) -> bool:
        """Return True if nothing has led from one to the other for UNREACHED_S, as far as this was
        asked."""
        if self.carries(source, target):
            self._down_s.pop((source, target), None)
            return False
        now_s = self._scene.clock.now_s
        return now_s - self._down_s.setdefault((source, target), now_s) >= limits.UNREACHED_S

    # ---- ways

    def stand(
        self, token: bytes, ends: tuple[PeerId, PeerId], kind: Way, relay: PeerId | None
    ) -> None:
        """A way is there."""
        self._ways[token] = SimWay(token, *ends, kind, relay, self._scene.clock.now_s)
        self._standing.setdefault(ends, set()).add(token)
        self._note_two(ends)

    def _note_two(self, ends: tuple[PeerId, PeerId]) -> None:
        if len(self._standing[ends]) > 1:
            self._two_s[ends] = self._scene.clock.now_s

    def is_standing(self, token: bytes) -> bool:
        """Return True if a way stands."""
        return token in self._ways

    def only_way(self, token: bytes) -> SimWay | None:
        """Return a way if it stands, and there was no other one for it lately."""
        way = self._ways.get(token)
        if way is None or self.lets_in(way.sender, way.receiver):
            return None
        ends = (way.sender, way.receiver)
        self._note_two(ends)
        is_lately = self._scene.clock.now_s < self._two_s.get(ends, -_LATELY_S) + _LATELY_S
        return None if is_lately else way

    def standing(self) -> list[SimWay]:
        """List all ways."""
        return list(self._ways.values())

    def end(self, token: bytes, *, is_noticed: bool = True) -> None:
        """A way is no more; one end may notice."""
        if (way := self._ways.pop(token, None)) is None:
            return
        self._note_two((way.sender, way.receiver))
        self._standing[way.sender, way.receiver].discard(token)
        self._drop(way.sender, way.receiver)
        rng = self._scene.rng
        end = self.ends.get(way.sender if rng.random() < 0.5 else way.receiver)
        if is_noticed and end is not None and rng.random() < _NOTICES:
            self._scene.clock.after(_NOTICE_S * rng.random(), lambda: end.lost(token))

    def end_all(self, peer: PeerId) -> None:
        """End all ways from, to and over a peer; b"" is the coordinator."""
        for way in self.standing():
            if peer in (way.sender, way.receiver, way.relay):
                self.end(way.token)

    def leave(self, peer: PeerId) -> None:
        """A process is gone, and with it all that went by it."""
        self.ends.pop(peer, None)
        self.mapped.discard(peer)
        self.end_all(peer)
        for ends in [ends for ends in self._down_s if peer in ends]:
            del self._down_s[ends]

    def calm(self) -> None:
        """Nothing else goes wrong; routers stay what they are."""
        self.blocked.clear()
        self.deaf.clear()

"""Relays: which of them is asked to carry for two peers, and what they are credited with.

A relay's word on itself is worth little. Its rate counts as far as it was seen, and what it has
carried as far as both ends have moved as many bytes themselves.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Carrying


@dataclass(slots=True)
class _Relay:
    told: Carrying
    credited: int = 0
    credited_told: int = 0
    tokens: set[bytes] = field(default_factory=set)
    complaints: dict[PeerId, float] = field(default_factory=dict)
    measured: float = 0.0
    window_s: float = -math.inf
    window_bytes: int = 0

    def rate(self, now_s: float, ways: int) -> float:
        """Bytes a second that each of so many pairs may hope for."""
        believed = max(limits.RELAY_BELIEVED * self.measured, limits.RELAY_UNSEEN_BYTES_PER_S)
        newest_s = now_s - limits.RELAY_COMPLAINT_S
        complaints = sum(said_s > newest_s for said_s in self.complaints.values())
        rate = min(self.told.bytes_per_s, believed) / max(1, ways)
        return math.ldexp(rate, -complaints)

    @property
    def has_room(self) -> bool:
        """True if it may carry more today."""
        spent = self.credited - self.credited_told
        return self.told.bytes_left < 0 or self.told.bytes_left > spent


@dataclass(slots=True)
class _Ends:
    """Bytes that a peer has moved itself, and those of them that a relay was credited with."""

    moved: int = 0
    credited: int = 0


class Relays:
    """All relays but the coordinator's own."""

    def __init__(self) -> None:
        self._relays: dict[PeerId, _Relay] = {}
        self._ends: dict[PeerId, _Ends] = {}
        self.credited: dict[PeerId, int] = {}
        """Bytes that each relay has carried, as both ends bear out."""

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._relays)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._relays

    def carrying(self, peer: PeerId, told: Carrying) -> None:
        """A relay says what it can; one of no rate has ceased to be one."""
        relay = self._relays.setdefault(peer, _Relay(told))
        relay.told, relay.credited_told = told, relay.credited
        if told.bytes_per_s <= 0:
            self.ceased(peer)

    def ceased(self, peer: PeerId) -> None:
        """A peer is no relay any more."""
        self._relays.pop(peer, None)

    def left(self, peer: PeerId) -> None:
        """A peer has left."""
        for known in (self._relays, self._ends, self.credited):
            known.pop(peer, None)
        for relay in self._relays.values():
            relay.complaints.pop(peer, None)

    def ranked(self, now_s: float) -> list[tuple[PeerId, int]]:
        """The relays with room and the port of each, the one that is likely the fastest first."""
        usable = [(peer, relay) for peer, relay in self._relays.items() if relay.has_room]
        usable.sort(key=lambda one: -one[1].rate(now_s, 1 + len(one[1].tokens)))
        return [(peer, relay.told.port) for peer, relay in usable]

    def rate_of(self, peer: PeerId, now_s: float) -> float:
        """Bytes a second that each pair may hope for that a relay carries for; 0 if it is none."""
        relay = self._relays.get(peer)
        return relay.rate(now_s, len(relay.tokens)) if relay is not None else 0.0

    def describe(self, peer: PeerId) -> dict[str, int]:
        """Return rate, ways and bytes of a relay, for people."""
        relay = self._relays[peer]
        return {
            "bytes_per_s": relay.told.bytes_per_s, "ways": len(relay.tokens),
            "carried": self.credited.get(peer, 0),
        }  # fmt: skip

    def takes(self, relay: PeerId, token: bytes) -> None:
        """A relay is asked to carry."""
        if relay in self._relays:
            self._relays[relay].tokens.add(token)

    def ends(self, relay: PeerId, token: bytes) -> None:
        """It carries that no longer."""
        if relay in self._relays:
            self._relays[relay].tokens.discard(token)

    def failed(self, relay: PeerId, sender: PeerId, now_s: float) -> int:
        """A sender has lost its way over a relay; return how many have lately."""
        if relay not in self._relays:
            return 0
        complaints = self._relays[relay].complaints
        complaints[sender] = now_s
        return sum(said_s > now_s - limits.RELAY_COMPLAINT_S for said_s in complaints.values())

    def moved(self, peer: PeerId, num_bytes: int) -> None:
        """A peer has moved so many bytes in its life, as it says itself."""
        end = self._ends.setdefault(peer, _Ends())
        if num_bytes < end.moved:
            end.credited = 0  # another process
        end.moved = num_bytes

    def credit(self, peer: PeerId, claimed: int, ends: tuple[PeerId, PeerId], now_s: float) -> int:
        """Credit a relay with what it claims to have carried, as far as both ends have moved as
        much that no relay was credited with; return that."""
        both = [self._ends.setdefault(end, _Ends()) for end in ends]
        granted = max(0, min([claimed, *(end.moved - end.credited for end in both)]))
        for end in both:
            end.credited += granted
        self.credited[peer] = self.credited.get(peer, 0) + granted
        if (relay := self._relays.get(peer)) is not None:
            relay.credited += granted
            relay.window_bytes += granted
            if (passed_s := now_s - relay.window_s) >= limits.RELAY_WINDOW_S:
                seen = relay.window_bytes / passed_s
                relay.measured = max(seen, 0.9 * relay.measured)
                relay.window_s, relay.window_bytes = now_s, 0
        return granted

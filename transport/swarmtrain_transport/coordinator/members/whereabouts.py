"""Addresses of peers, and who can use which: the part of a meeting that is geography.

The coordinator knows for certain only from where a peer's control connection comes. Peers with the
same public address are behind one router; whom the coordinator sees at a private address is on its
own network.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId, is_local, is_loopback
from swarmtrain_transport.links.ways import Way
from swarmtrain_transport.wire.messages import Place

_HERE = "here"
_SITE_BITS = 64


@dataclass(slots=True)
class Whereabouts:
    """Place of one process of a peer in the world.

    Attributes:
        remote: address that its control connection comes from.
        host: address that it tells the others.
        port: data port there.
        places: other addresses that it tells, None before it has: it does not know of meetings.
        is_dialled: True if the coordinator itself reached it at `host`, None if it has not tried.
    """

    remote: str
    host: str
    port: int
    places: tuple[Place, ...] | None = None
    is_dialled: bool | None = None

    @property
    def site(self) -> str:
        """Name of the network that the peer is in: all in it share one address outside."""
        return _site_of(self.remote)

    @property
    def has_v6(self) -> bool:
        """True if the peer is known to have a public IPv6 address."""
        told = [place.host for place in self.places or ()]
        return any(_is_v6(host) and not is_local(host) for host in (self.remote, *told))

    def can_dial(self, other: "Whereabouts", host: str) -> bool:
        """Return True if this peer may be told to dial another's address."""
        if is_loopback(host):
            return is_loopback(self.remote) and is_loopback(other.remote)
        if is_local(host):
            return self.site == other.site
        return self.has_v6 or not _is_v6(host)

    def others_of(self, other: "Whereabouts") -> list[tuple[str, int]]:
        """Another's addresses that this peer can dial, without that told to all, best first: in the
        same house, by IPv6, then as told."""
        seen = (other.remote, other.port)
        told = [(place.host, place.port) for place in other.places or ()]
        usable = [at for at in dict.fromkeys([*told, seen]) if self.can_dial(other, at[0])]
        usable.sort(key=lambda at: (not is_local(at[0]), not _is_v6(at[0])))
        return [at for at in usable if at != (other.host, other.port)][: limits.MEET_PLACES]

    def relay_at(self, relay: "Whereabouts", port: int) -> tuple[str, int] | None:
        """Address at which this peer dials a relay that names this port; None for none."""
        others = self.others_of(relay)
        near = [at for at in others if is_local(at[0])]
        plain = [] if self.fails_to_dial(relay) else [(relay.host, port)]
        return next(iter([*near, *plain, *others]), None)

    def fails_to_dial(self, other: "Whereabouts") -> bool:
        """Return True if it is known that this peer cannot dial the address another tells all."""
        if not self.can_dial(other, other.host):
            return True
        is_far = self.site != other.site or bool(self.others_of(other))
        return other.is_dialled is False and is_far


@dataclass(frozen=True, slots=True)
class Route:
    """One possible way from a sender to a receiver.

    Attributes:
        way: kind of it.
        host: address to dial, "" where that is not known yet, or the coordinator's own.
        port: likewise, 0.
        relay: peer that passes the bytes on; None for the coordinator, and for all other ways.
    """

    way: Way
    host: str = ""
    port: int = 0
    relay: PeerId | None = None


def direct_routes(sender: Whereabouts, receiver: Whereabouts, *, mirror: bool) -> Iterator[Route]:
    """Yield the routes that need no relay, best first.

    Args:
        sender: place of the sender.
        receiver: likewise.
        mirror: True if the coordinator can tell two peers how they look from outside.
    """
    for host, port in sender.others_of(receiver):
        yield Route(Way.DIALLED, host, port)
    places = receiver.others_of(sender)
    if not receiver.fails_to_dial(sender):
        places.insert(0, (sender.host, sender.port))
    for host, port in places[: limits.MEET_PLACES]:
        yield Route(Way.TURNED, host, port)
    if mirror:
        yield Route(Way.PUNCHED)


@lru_cache(maxsize=limits.ADDRESSES_KEPT)
def _site_of(remote: str) -> str:
    if is_local(remote):
        return _HERE
    if _is_v6(remote):
        return str(ipaddress.ip_network(f"{remote}/{_SITE_BITS}", strict=False))
    return remote


def _is_v6(host: str) -> bool:
    return ":" in host

"""A peer's part in meetings: it tells its addresses, makes ways as it is asked to, and may relay.

Who meets whom, and how, is the coordinator's to decide. Here is what that takes on this side: the
dialler, the relay if the owner has allowed one, and words for people on how this peer is reached.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from swarmtrain.peer.network.proxy import connect_through, proxy_for
from swarmtrain.peer.network.steadiness import interfaces
from swarmtrain.peer.network.ways_told import WaysTold
from swarmtrain_transport import limits
from swarmtrain_transport.links.dialler import Dialler, Endpoint
from swarmtrain_transport.links.link import PeerId, is_dialable
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.relay import Relay
from swarmtrain_transport.links.ways import Preamble
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.messages import (
    Carried,
    Carry,
    Carrying,
    CoordinatorMessage,
    Meet,
    Part,
    PeerMessage,
    Place,
    Places,
)

logger = logging.getLogger(__name__)

LAN = "lan"
LOOK_S = 1.0
"""Pause between two looks at addresses, ways, and what was relayed."""

_UNLIMITED = -1


class Meetings:
    """One peer's.

    Args:
        loop: event loop of the link.
        link: data lane.
        coordinator: tells the address of the coordinator, None while it is not known.
        send: sends a control message.
        name_of: tells the name of a peer.
        told: places that the owner or a router has named.
        relay_bytes_per_s: rate at which this peer may relay, 0 for not at all.
        relay_daily: bytes that it may relay in a day, 0 without a limit.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: ZmqLink,
        coordinator: Callable[[], Endpoint | None],
        send: Callable[[PeerMessage], None],
        name_of: Callable[[PeerId], str],
        *,
        told: Callable[[], tuple[Place, ...]] = tuple,
        relay_bytes_per_s: int = 0,
        relay_daily: int = 0,
    ) -> None:
        self._loop, self._link, self._send, self._told = loop, link, send, told
        self._dialler = Dialler(loop, link, coordinator, send, _by_proxy)
        self._told_ways = WaysTold(name_of)
        self._relay: Relay | None = None
        self._rate, self._daily, self._left = relay_bytes_per_s, relay_daily, relay_daily
        self._places: tuple[Place, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if relay_bytes_per_s:
            gate = TokenBucket(relay_bytes_per_s, loop.time())
            self._relay = Relay(loop, self._carried, gate)
        link.greet = self._greeted
        self._look()

    def welcomed(self) -> None:
        """Tell the coordinator all that it has to know: it may be another one than before."""
        self._places = ()
        self.tell_places()
        self._tell_carrying()
        for met in self._dialler.standing():
            self._send(met)

    def tell_places(self) -> None:
        """Tell this peer's addresses, if they have changed since WELCOME."""
        if self._places is None:
            return
        found = (*self._told(), *lan_places(self._link.address.host, self._link.address.port))
        places = tuple(dict.fromkeys(found))[: limits.PLACES_MAX]
        if places != self._places:
            self._places = places
            self._send(Places(places))

    def heard(self, message: CoordinatorMessage) -> bool:
        """Do what a message asks; False if it is none of a meeting's."""
        match message:
            case Meet():
                self._dialler.meet(message)
            case Part():
                self._dialler.part(message.token)
                if self._relay is not None:
                    self._relay.part(message.token)
            case Carry():
                if self._relay is not None:
                    self._relay.expect(message.token)
            case _:
                return False
        return True

    def heard_by_relay(self) -> tuple[PeerId, ...]:
        """Return the peers whose bytes come over a relay."""
        return self._dialler.heard_by_relay()

    def close(self) -> None:
        """Give up what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._dialler.close()
        if self._relay is not None:
            self._relay.close()

    def words(self) -> str:
        """Say by which way this peer sends to the others; "" while there are none."""
        return self._told_ways.in_short(self._link.ways())

    def _greeted(self, preamble: Preamble, far: socket.socket) -> bool:
        if self._dialler.greeted(preamble, far):
            return True
        return self._relay is not None and self._relay.greeted(preamble, far)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        if self._relay is not None:
            self._relay.look()
        self.tell_places()
        self._dialler.look()
        for line in self._told_ways.look(self._link.ways(), self._loop.time()):
            logger.info("%s", line)

    def _carried(self, token: bytes, num_bytes: int, is_over: bool) -> None:
        self._send(Carried(token, num_bytes, is_over))
        self._left -= num_bytes
        if self._daily and self._left <= 0:
            self._tell_carrying()

    def _tell_carrying(self) -> None:
        if self._relay is not None:
            left = max(0, self._left) if self._daily else _UNLIMITED
            self._send(Carrying(self._link.address.port, self._rate, left))


def lan_places(host: str, port: int) -> tuple[Place, ...]:
    """Addresses of this machine by which it may be dialled at a port that listens on `host`."""
    return tuple(Place(LAN, one, port) for one in own_hosts(host, interfaces()))


def own_hosts(host: str, found: Collection[str]) -> list[str]:
    """Choose the addresses that listen when a socket listens on `host`: one, or all of its family.

    Args:
        host: listening address, "" or a wildcard for everywhere.
        found: addresses of this machine's interfaces.
    """
    if host not in ("", "0.0.0.0", "::"):
        return [host] if is_dialable(host) else []
    chosen = [one for one in found if is_dialable(one)]
    parsed = [(ipaddress.ip_address(one), one) for one in chosen]
    return [
        text
        for one, text in parsed
        if not (one.is_loopback or one.is_link_local) and (one.version == 4 or host != "0.0.0.0")
    ]


def _by_proxy(there: Endpoint) -> Callable[[], Awaitable[socket.socket]] | None:
    """Open connections by this network's proxy, if it has one."""
    proxy = proxy_for(*there)
    return None if proxy is None else partial(connect_through, proxy, *there)

"""Peers behind routers, as the coordinator's Meetings see them: who can dial whom, and who cannot.

A router is ``open`` (none), ``cone`` (lets everybody in), ``restricted`` (lets in whom somebody
inside has just dialled, from the same port to all) or ``symmetric`` (another port to each).
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.meetings import Means, Meetings
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire import messages as m

DELAY_S = 0.05
DATA_PORT = 7000


class House:
    """A peer and the router before it.

    Args:
        kind: kind of the router.
        remote: address outside.
        inside: address inside.
    """

    def __init__(self, peer: PeerId, kind: str, remote: str, inside: str = "192.168.1.2") -> None:
        self.peer, self.kind, self.remote, self.inside = peer, kind, remote, inside
        self.is_on = True
        self.hides = False
        """Never shows itself at the coordinator's port."""
        self.outside = ""
        """Address by which the coordinator sees it there, if that is another one."""
        self.places: tuple[m.Place, ...] = ()
        self.relays = False
        self.heard: list[Any] = []
        self.ways: dict[bytes, m.Meet] = {}
        """Ways by which it sends, by token."""

    def lets_in(self, other: "House", host: str) -> bool:
        """Return True if another's connection to this address arrives."""
        if host == self.inside:
            return other.remote == self.remote
        return host == self.remote and self.kind in ("open", "cone")


class Streets:
    """Houses, the coordinator's machine, and the time.

    Args:
        houses: those who take part.
        mirror: the coordinator shows them how they look.
        relay: it passes bytes on.
    """

    def __init__(self, houses: Iterable[House], *, mirror: bool = True, relay: bool = True) -> None:
        self.now_s = 0.0
        self.notes: list[tuple[PeerId, str, str]] = []
        numbers = itertools.count(1)
        means = Means(lambda: next(numbers).to_bytes(32, "big"), mirror, 10 if relay else 0)
        self.machine = Meetings(means, self._send, lambda *what: self.notes.append(what))
        self.houses = {house.peer: house for house in houses}
        self._mirrored: dict[tuple[bytes, bool], House] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        for house in self.houses.values():
            self.enter(house)

    # ---- what houses do

    def enter(self, house: House, boot: bytes = b"boot") -> None:
        """A peer comes, tells its addresses, and is dialled back."""
        hello = m.Hello(boot, "otter", house.peer, house.remote, DATA_PORT, -1, b"", 1 << 30)
        self.machine.came(house.peer, house.remote, hello, self.now_s)
        self.machine.places(house.peer, m.Places(house.places), self.now_s)
        is_open = house.kind in ("open", "cone")
        self.machine.dialled(house.peer, self.now_s, is_open=is_open)
        if house.relays:
            self.machine.carrying(house.peer, m.Carrying(9000, 10**6, -1), self.now_s)
        self._tick()

    def say(self, who: PeerId, token: bytes, is_up: bool, reason: str = "", **more: Any) -> None:
        self.machine.met(who, m.Met(token, is_up, reason, **more), self.now_s)
        self._tick()

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end_s = self.now_s + seconds
        while True:
            due_s = self._events[0][0] if self._events else end_s
            if min(due_s, self.machine.next_wakeup_s) >= end_s:
                break
            if self.machine.next_wakeup_s < due_s:
                self.now_s = max(self.now_s, self.machine.next_wakeup_s)
                self._tick()
            else:
                self.now_s, _, event = heapq.heappop(self._events)
                event()
                self._tick()
        self.now_s = end_s
        self._tick()

    def ways(self) -> dict[tuple[PeerId, PeerId], Way | None]:
        return self.machine.ways()

    def meets(self, peer: PeerId) -> list[m.Meet]:
        return [one for one in self.houses[peer].heard if isinstance(one, m.Meet)]

    def has_relay(self, *ends: PeerId) -> bool:
        """Return True if somebody could pass bytes on between the two."""
        means = self.machine._means
        if means is not None and means.relay_bytes_per_s:
            return True
        return any(
            house.relays and house.is_on and house.kind in ("open", "cone")
            for peer, house in self.houses.items()
            if peer not in ends
        )

    def check(self) -> None:
        """Check that the machine's books agree with each other."""
        pairs = list(self.machine._every_pair())
        tried = [pair.trying for pair in pairs if pair.trying is not None]
        known = [*tried, *(pair.standing for pair in pairs if pair.standing is not None)]
        assert set(self.machine._by_token) == {one.token for one in known if one.token}
        for peer, member in self.machine._members.items():
            assert member.busy == sum(peer in (one.sender, one.receiver) for one in tried)
            assert member.busy <= limits.MEET_AT_ONCE
        for peer, relay in self.machine.relays._relays.items():
            assert relay.tokens == {one.token for one in known if one.route.relay == peer}
        for one in known:
            assert one.route.relay not in (one.sender, one.receiver)
        assert self.machine.next_wakeup_s > self.now_s

    # ---- the network

    def _tick(self) -> None:
        self.machine.tick(self.now_s)
        self.check()

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._count), event))

    def _send(self, peer: PeerId, message: Any) -> None:
        m.decode_from_coordinator(m.encode(message))
        self._later(DELAY_S, lambda: self._hear(self.houses[peer], message))

    def _hear(self, house: House, message: Any) -> None:
        house.heard.append(message)
        if not house.is_on:
            return
        if isinstance(message, m.Part):
            house.ways.pop(message.token, None)
        elif isinstance(message, m.Carry) and house.relays:
            ready = m.Carried(message.token, 0, is_over=False)
            self._later(DELAY_S, lambda: self.machine.carried(house.peer, ready, self.now_s))
        elif isinstance(message, m.Meet):
            other = self.houses[message.peer]
            sender, receiver = (house, other) if message.sends else (other, house)
            self._part(house, other, sender, receiver, message)

    def _part(
        self, house: House, other: House, sender: House, receiver: House, meet: m.Meet
    ) -> None:
        way, is_whole = Way(meet.way), False
        if way is Way.PUNCHED and not meet.port:
            self._show(house, meet)
            return
        if way is Way.TURNED and meet.sends:
            return
        if way in (Way.DIALLED, Way.TURNED):
            is_whole = other.lets_in(house, meet.host)
        elif way is Way.PUNCHED:
            assert meet.host == (other.outside or other.remote)
            is_whole = punches(sender, receiver)
        elif way is Way.RELAYED:
            is_whole = self._relays(house, meet)
        if not is_whole or not other.is_on:
            self._later(limits.MEET_S, lambda: self._met(house, meet, is_up=False))
        elif meet.sends or way is Way.TURNED:
            self._later(2 * DELAY_S, lambda: self._met(sender, meet, is_up=True))

    def _show(self, house: House, meet: m.Meet) -> None:
        side = Side.SENDER if meet.sends else Side.RECEIVER
        if not house.hides and self.machine.takes(meet.token, side) is Way.PUNCHED:
            port, host = 40_000 + next(self._count) % 1000, house.outside or house.remote
            self.machine.mirrored(meet.token, side, host, port, self.now_s)

    def _relays(self, house: House, meet: m.Meet) -> bool:
        if not meet.host:
            side = Side.SENDER if meet.sends else Side.RECEIVER
            return self.machine.takes(meet.token, side) is Way.RELAYED
        relay = next(one for one in self.houses.values() if one.remote == meet.host)
        return relay.is_on and relay.relays and relay.lets_in(house, meet.host)

    def _met(self, house: House, meet: m.Meet, *, is_up: bool) -> None:
        if is_up:
            house.ways[meet.token] = meet
        self.machine.met(house.peer, m.Met(meet.token, is_up), self.now_s)


def punches(a: House, b: House) -> bool:
    """Return True if both come through when they dial each other at once."""
    kinds = {a.kind, b.kind}
    return "symmetric" not in kinds or bool(kinds & {"open", "cone"})

"""The connections to one peer: one for all, or several where one TCP flow cannot fill the way.

They are plainly dialled while that can be done. Where it cannot, frames go by the best of the ways
that were made in a meeting (ways.py). Nothing is dialled before something is to be sent; what has
been idle for long is closed, and dialled again when it is needed.

Small frames keep to the first, so that they keep their order. Large frames go to the connection
that has the least under way. `parallel_flows` says how many there should be; here they are opened.
"""

import dataclasses
import math
from collections.abc import Collection

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.parallel_flows import Path
from swarmtrain_transport.links.tcp import acknowledged, has_arrived, is_stuck, local_host, path_of
from swarmtrain_transport.links.ways import Way
from swarmtrain_transport.links.zmq_sockets import Ground, Route
from swarmtrain_transport.links.zmq_turned import TurnedRoute


class Bundle:
    """The way to one peer.

    Args:
        ground: ground of the link.
        address: address of the peer.

    Attributes:
        address: address that the peer was allowed with.
        used_s: time of the last frame, or of the last word that frames are to come.
    """

    def __init__(self, ground: Ground, address: Address) -> None:
        self._ground = ground
        self.address = self._target = address
        self.used_s = -math.inf
        self._width = 1
        self._dialled: list[_Flow] = []
        self._met: dict[bytes, tuple[Way, _Flow]] = {}
        self._asked: set[tuple[Route, int]] = set()

    @property
    def is_open(self) -> bool:
        """True while there is a connection, or one is tried."""
        return bool(self._dialled or self._met)

    @property
    def is_met(self) -> bool:
        """True while there is a connection of a meeting."""
        return bool(self._met)

    @property
    def way(self) -> Way | None:
        """Way by which frames go now, None if none stands."""
        if self._is_dialled:
            return Way.DIALLED
        return min((way for way, _ in self._standing()), key=lambda way: way.rank, default=None)

    def use(self) -> None:
        """Dial, unless that was done: frames are to go by it now, or soon."""
        self.used_s = self._ground.loop.time()
        if not self._dialled:
            self._dialled.append(_Flow(Route(self._ground, self._target)))

    def is_idle(self) -> bool:
        """Return True if what was dialled has had nothing to do for LINK_IDLE_S, and has nothing
        under way that would be lost with it. One that is down is dialled on, as its end is what
        tells that the peer cannot be reached; one of a meeting is dear, and stays."""
        if self._ground.loop.time() < self.used_s + limits.LINK_IDLE_S or self._met:
            return False
        routes = [flow.route for flow in self._dialled]
        return all(route.is_up and has_arrived(route.descriptor, route.port) for route in routes)

    def redial(self, host: str, port: int) -> None:
        """Dial another address of the peer from now on, where something is dialled now."""
        self._target = dataclasses.replace(self.address, host=host, port=port)
        self._width = 1
        self.narrow()
        for flow in self._dialled:
            flow.route.redial(host, port)

    def narrow(self) -> None:
        """Close all but one of the dialled connections."""
        for flow in self._dialled[1:]:
            flow.route.close()
        del self._dialled[1:]

    def met(self, token: bytes, way: Way, route: TurnedRoute) -> None:
        """Have one more connection, made in the meeting of this token."""
        self._met[token] = way, _Flow(route)

    def stands(self) -> None:
        """A way of a meeting stands: what waits for a plain dial would come late, or never."""
        if self._dialled and not self._is_dialled:
            self.narrow()
            self._dialled[0].route.reopen()

    def part(self, token: bytes) -> bool:
        """Close the connection of this token; False if there is none."""
        if token not in self._met:
            return False
        self._met.pop(token)[1].route.close()
        return True

    def widen(self, width: int) -> None:
        """Open connections until there are so many, also whenever one is dialled again; those that
        there are stay. Those of a meeting are not multiplied."""
        self._width = max(self._width, width)
        while self._is_dialled and len(self._dialled) < self._width:
            self._dialled.append(_Flow(Route(self._ground, self._target)))

    def cut_talkers(self) -> int:
        """Make those anew by which the peer has talked back; returns how many there were."""
        routes = [flow.route for flow in self._all() if flow.route.is_talked_back()]
        for route in routes:
            route.reopen()
        return len(routes)

    def cut_stuck(self) -> None:
        """Make those anew on which nothing is heard any more."""
        for route in [flow.route for flow in self._all()]:
            if is_stuck(route.descriptor, route.port):
                route.reopen()

    def renew(self, gone: Collection[str] | None) -> None:
        """Make those anew that are down, or go out by an address that is gone; None for all."""
        for route in [flow.route for flow in self._all()]:
            is_dead = gone is None or local_host(route.descriptor, route.port) in gone
            if is_dead or not route.is_up:
                route.reopen()

    def close(self, linger_s: float = 0.0) -> None:
        """Close all of them; frames still queued after so long are lost."""
        for flow in self._all():
            flow.route.close(linger_s)
        self._dialled.clear()
        self._met.clear()

    def route_for(self, num_bytes: int, *, is_large: bool) -> Route:
        """Choose the connection that a frame of so many bytes takes."""
        flows = self._flows
        if not is_large or len(flows) == 1:
            return flows[0].route
        for flow in flows:
            flow.look()
        # A connection that is being made waits until there is nothing better.
        best = min(flows, key=lambda flow: (flow.route.descriptor < 0, flow.under_way))
        best.handed += num_bytes
        return best.route

    @property
    def down_since_s(self) -> float | None:
        """Time since which no connection can be made, None while one stands."""
        if self.way is not None or not self._dialled:
            return None
        return self._dialled[0].route.down_since_s

    def suit(self) -> None:
        """Let each connection choose what suits its way, see `suit_to_path`; there are as many as
        were asked for."""
        self.widen(self._width)
        for flow in self._all():
            flow.route.suit()

    def pace(self, bytes_per_s: float) -> None:
        """Send no faster by any of them, `math.inf` for no pace. More than one there are where
        losses hold each of them far below it."""
        for flow in self._all():
            flow.route.pace(bytes_per_s)

    def connections(self) -> list[tuple[int, int]]:
        """Descriptor and remote port of each."""
        return [(flow.route.descriptor, flow.route.port) for flow in self._all()]

    def acked(self) -> int | None:
        """Bytes acknowledged on those by which frames go; None without any, and once when one of
        them is there no more. Asked a hundred times a second, so it asks for nothing else."""
        routes = [flow.route for flow in self._flows] if self.way is not None else []
        before, self._asked = self._asked, {(route, route.descriptor) for route in routes}
        if before - self._asked:
            return None
        found = [acknowledged(route.descriptor, route.port) for route in routes]
        counts = [count for count in found if count is not None]
        return sum(counts) if counts else None

    def paths(self) -> list[Path]:
        """Return TCP's counts of the connections that stand."""
        found = (path_of(descriptor, port) for descriptor, port in self.connections())
        return [path for path in found if path is not None]

    @property
    def _flows(self) -> "list[_Flow]":
        """Connections by which frames go: of a meeting only while no plain dial succeeds."""
        if not self._met or self._is_dialled:
            return self._dialled
        best = min(self._standing(), key=lambda met: met[0].rank, default=None)
        return self._dialled if best is None else [best[1]]

    @property
    def _is_dialled(self) -> bool:
        return bool(self._dialled) and self._dialled[0].route.is_up

    def _standing(self) -> "list[tuple[Way, _Flow]]":
        return [met for met in self._met.values() if met[1].route.is_up]

    def _all(self) -> "list[_Flow]":
        return [*self._dialled, *(flow for _, flow in self._met.values())]


class _Flow:
    """One connection and how much of what is large was handed to it and not acknowledged."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.handed = 0
        self._acked = 0

    @property
    def under_way(self) -> int:
        return self.handed - self._acked

    def look(self) -> None:
        acked = acknowledged(self.route.descriptor, self.route.port)
        if acked is None or acked < self._acked:  # a new connection, or none
            self._acked = self.handed = acked or 0
            return
        # Encryption and small frames are acknowledged too.
        self._acked, self.handed = acked, max(self.handed, acked)

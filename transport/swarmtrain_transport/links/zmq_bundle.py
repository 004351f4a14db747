"""The connections to one peer: one for all, or several where one TCP flow cannot fill the way.

Small frames keep to the first, so that they keep their order. Large frames go to the connection
that has the least under way. `parallel_flows` says how many there should be; here they are opened.
"""

from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.parallel_flows import Path
from swarmtrain_transport.links.tcp import acknowledged, path_of
from swarmtrain_transport.links.zmq_sockets import Ground, Route


class Bundle:
    """The way to one peer.

    Args:
        ground: ground of the link.
        address: address of the peer.
    """

    def __init__(self, ground: Ground, address: Address) -> None:
        self._ground = ground
        self.address = address
        self._flows = [_Flow(Route(ground, address))]

    @property
    def width(self) -> int:
        """Number of connections."""
        return len(self._flows)

    def widen(self, width: int) -> None:
        """Open connections until there are so many; those that there are stay."""
        while len(self._flows) < width:
            self._flows.append(_Flow(Route(self._ground, self.address)))

    def cut_talkers(self) -> int:
        """Make those anew by which the peer has talked back; returns how many there were."""
        routes = [flow.route for flow in self._flows if flow.route.is_talked_back()]
        for route in routes:
            route.reopen()
        return len(routes)

    def close(self) -> None:
        """Close all of them; queued frames are lost."""
        for flow in self._flows:
            flow.route.close()

    def route_for(self, num_bytes: int, *, is_large: bool) -> Route:
        """Choose the connection that a frame of so many bytes takes."""
        if not is_large or len(self._flows) == 1:
            return self._flows[0].route
        for flow in self._flows:
            flow.look()
        # A connection that is being made waits until there is nothing better.
        best = min(self._flows, key=lambda flow: (flow.route.descriptor < 0, flow.under_way))
        best.handed += num_bytes
        return best.route

    @property
    def down_since_s(self) -> float | None:
        """Time since which the first connection cannot be made, None while it stands."""
        return self._flows[0].route.down_since_s

    def suit(self) -> None:
        """Let each connection choose what suits its way, see `suit_to_path`."""
        for flow in self._flows:
            flow.route.suit()

    def connections(self) -> list[tuple[int, int]]:
        """Descriptor and remote port of each."""
        return [(flow.route.descriptor, flow.route.port) for flow in self._flows]

    def acked(self) -> int | None:
        """Bytes acknowledged on those that stand, None without any. Asked a hundred times a
        second, so it asks for nothing else."""
        found = [acknowledged(descriptor, port) for descriptor, port in self.connections()]
        counts = [count for count in found if count is not None]
        return sum(counts) if counts else None

    def paths(self) -> list[Path]:
        """Return TCP's counts of the connections that stand."""
        found = (path_of(descriptor, port) for descriptor, port in self.connections())
        return [path for path in found if path is not None]


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

"""The control lane of a simulated world: one ordered connection per peer, which may break or stall.

Messages under way when an end dies are lost. A stalled direction loses nothing and keeps its order:
everything comes late, as on a path whose packets vanish for a while.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from swarmtrain.simulate.ground.scene import Scene
from swarmtrain.simulate.ground.stories import told
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import (
    CoordinatorMessage,
    Hello,
    PeerMessage,
    decode_from_coordinator,
    decode_from_peer,
    encode,
)
from swarmtrain_transport.wire.records import BodyReader

CONTROL_S = 0.002
RECONNECT_S = 0.5
_ENCODE_EVERY = 16
"""One message in so many goes through real bytes; structs are immutable."""


class PeerEnd(Protocol):
    """A peer's process at its end of a connection."""

    peer_id: PeerId
    is_alive: bool
    is_leaving: bool
    connection: int

    def greeting(self) -> Hello:
        """The peer's first message."""

    def later(self, delay_s: float, event: Callable[[], object]) -> None:
        """Let it do something later, if it still lives then."""

    def on_control(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator."""

    def on_control_down(self) -> None:
        """The connection is gone."""


class CoordinatorEnd(Protocol):
    """The coordinator's process at its end of every connection."""

    is_alive: bool

    def hear(self, event: Callable[..., object], *args: object) -> None:
        """Let it hear of an event, now or when it goes on."""

    def hello(self, peer: PeerId, hello: Hello) -> None:
        """A peer is at the door."""

    def message(self, peer: PeerId, message: PeerMessage) -> None:
        """A message of a connected peer."""

    def closed(self, peer: PeerId) -> None:
        """A peer's connection is gone."""


class ControlLanes:
    """All control connections of one world.

    Args:
        scene: clock and chance of the world.

    Attributes:
        coordinator: end of the coordinator.
    """

    coordinator: CoordinatorEnd

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._clock = scene.clock
        self._random = scene.rng.random
        self._connected: dict[PeerId, int] = {}
        self._accepted: dict[PeerId, tuple[PeerEnd, int]] = {}
        self._connections = 0
        self._lane_s: dict[tuple[PeerId, bool], float] = {}
        self._count = 0
        self._readers: dict[PeerId, BodyReader] = {}

    # ---- connections

    def connect(self, peer: PeerEnd) -> None:
        """A peer opens its connection; without a coordinator it tries again."""
        if peer.is_leaving:
            return
        if not self.coordinator.is_alive:
            peer.later(RECONNECT_S, lambda: self.connect(peer))
            return
        self._connections += 1
        peer.connection = self._connected[peer.peer_id] = self._connections
        hello = peer.greeting()
        end = (peer, peer.connection)

        def come_in() -> None:
            # Until now the coordinator knew an older connection, if any, and sent to that.
            if self.is_open(*end):
                self._accepted[peer.peer_id] = end
                self.coordinator.hello(peer.peer_id, hello)

        self._up(peer, "HELLO", come_in)

    def is_open(self, peer: PeerEnd, connection: int) -> bool:
        """Return True if this connection of the peer stands."""
        return peer.is_alive and self._connected.get(peer.peer_id) == connection

    def cut_all(self, peers: Iterable[PeerEnd]) -> None:
        """The coordinator has died: the connections of these, of everybody, are gone."""
        self._accepted.clear()
        for peer in peers:
            if self._connected.pop(peer.peer_id, None) is not None:
                peer.on_control_down()

    def close(self, peer_id: PeerId) -> None:
        """The coordinator closes a connection after what it has sent."""
        end = self._accepted.pop(peer_id, None)
        if end is None:
            return
        peer, connection = end

        def hang_up() -> None:
            if self.is_open(peer, connection):
                del self._connected[peer_id]
                peer.on_control_down()

        self._clock.at(max(self._clock.now_s, self._lane(peer, up=False)) + CONTROL_S, hang_up)

    def hung_up(self, peer: PeerEnd) -> None:
        """A peer's end is gone; the coordinator notices after what was sent before it."""
        self._connected.pop(peer.peer_id, None)
        end = (peer, peer.connection)
        coordinator = self.coordinator

        def notice() -> None:
            if self._accepted.get(peer.peer_id) == end:
                del self._accepted[peer.peer_id]
                coordinator.closed(peer.peer_id)

        moment = max(self._clock.now_s + CONTROL_S, self._lane(peer, up=True))
        self._clock.at(moment, lambda: coordinator.hear(notice))

    # ---- messages

    def to_coordinator(self, peer: PeerEnd, message: PeerMessage) -> None:
        """Send over a peer's connection, if it is open."""
        if not self.is_open(peer, peer.connection):
            return
        self._count += 1
        if self._count % _ENCODE_EVERY == 0:
            message = decode_from_peer(encode(message))
        self._up(peer, message, self._take, peer, peer.connection, message)

    def _take(self, peer: PeerEnd, connection: int, message: PeerMessage) -> None:
        """The coordinator hears a peer, unless it has closed that connection."""
        if self._accepted.get(peer.peer_id) == (peer, connection):
            self.coordinator.message(peer.peer_id, message)

    def to_peer(self, peer_id: PeerId, message: CoordinatorMessage) -> None:
        """Send over a peer's connection, if it is open."""
        end = self._accepted.get(peer_id)
        if end is None:
            return
        self._count += 1
        if self._count % _ENCODE_EVERY == 0:
            message = decode_from_coordinator(encode(message))
        self._clock.at(
            self._arrival_s(end[0], up=False),
            partial(self._scene.deliver, type(message), self._comes_down, *end, message),
        )

    def _comes_down(self, peer: PeerEnd, connection: int, message: CoordinatorMessage) -> None:
        if not self.is_open(peer, connection):
            return
        if self._scene.trace is not None:
            reader = self._readers.setdefault(peer.peer_id, BodyReader())
            what = told(message, self._scene.name_of, reader)
            self._scene.say(self._scene.name_of(peer.peer_id), f"<- coordinator: {what}")
        peer.on_control(message)

    def _up(self, peer: PeerEnd, what: object, event: Callable[..., None], *args: object) -> None:
        """Towards the coordinator; what a peer sent before it died may still be lost."""
        self._clock.at(
            self._arrival_s(peer, up=True),
            partial(
                self._scene.deliver, type(what), self._comes_up, peer, peer.connection, what,
                event, *args,
            ),
        )  # fmt: skip

    def _comes_up(
        self, peer: PeerEnd, connection: int, what: object, event: Callable[..., None],
        *args: object,
    ) -> None:  # fmt: skip
        if not self.is_open(peer, connection):
            return
        if self._scene.trace is not None:
            name_of = self._scene.name_of
            self._scene.say("coordinator", f"<- {name_of(peer.peer_id)}: {told(what, name_of)}")
        self.coordinator.hear(event, *args)

    def _arrival_s(self, peer: PeerEnd, *, up: bool) -> float:
        moment = self._clock.now_s + CONTROL_S * (0.5 + self._random())
        lane = (peer.peer_id, up)
        free_s = self._lane_s.get(lane, 0.0) + 1e-9
        self._lane_s[lane] = moment = moment if moment > free_s else free_s
        return moment

    def _lane(self, peer: PeerEnd, *, up: bool) -> float:
        return self._lane_s.get((peer.peer_id, up), 0.0)

    def stall(self, peer: PeerEnd, *, up: bool, seconds: float) -> None:
        """Delay whatever is sent in this direction: from now on it arrives in so many seconds at
        best."""
        lane = (peer.peer_id, up)
        self._lane_s[lane] = max(self._lane_s.get(lane, 0.0), self._clock.now_s + seconds)

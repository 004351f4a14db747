"""The data lane of a simulated world: latency, rates, loss at reconnect, one-way partitions.

Frames are immutable, so most travel as they are; of every few one is packed into bytes and unpacked
again by the production code, and hostile bytes always are. The production allow-list decides who
may speak, as in both real links.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from swarmtrain.simulate.ground.routers import Routers
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.links.allow_list import not_allowed
from swarmtrain_transport.links.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.links.reception import Reception
from swarmtrain_transport.wire.frames import Frame, FrameKind, pack

_PACK_EVERY = 16
"""One frame in so many goes through real bytes."""

_KEPT = (FrameKind.PART, FrameKind.SUM, FrameKind.RESULT)
_KEPT_FRAMES = 64
"""Frames kept of each connection; any of them may come a second time."""

_QUEUE_MAX = limits.LINK_SEND_QUEUE_FRAMES


@dataclass(slots=True)
class Line:
    """One peer's line to the internet.

    Attributes:
        rate: bytes per second, each way; 0 for one that is never full.
        lag_s: seconds that it adds to the latency of frames that the peer sends.
        up_free_s, down_free_s: times until which it is busy.
    """

    rate: float = 0.0
    lag_s: float = 0.0
    up_free_s: float = 0.0
    down_free_s: float = 0.0


class _Pair:
    """One connection in one direction. A new generation loses what is under way."""

    __slots__ = ("arrival_s", "generation", "under_way")

    def __init__(self) -> None:
        self.generation = 0
        self.under_way = 0
        self.arrival_s = 0.0


class SimLink:
    """One peer's end of the data lane, under the contract of `links.link.Link`."""

    def __init__(self, network: "SimNetwork", address: Address, handler: LinkHandler) -> None:
        self.address = address
        self.handler = handler
        self.reception = Reception(address.peer_id, handler)
        self._network = network

    @property
    def stats(self) -> LinkStats:
        """Counters since the link was opened."""
        return self.reception.stats

    def allow(self, address: Address) -> None:
        """Admit a peer, which may then be sent to."""
        if self.reception.admit(address):
            self._network.drop(self.address.peer_id, address.peer_id)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Do nothing: here ways take no time."""

    def revoke(self, peer: PeerId) -> None:
        """Stop hearing and reaching a peer."""
        self.reception.allowed.remove(peer)
        self._network.drop(self.address.peer_id, peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Queue one frame; False without a route to the peer or with its queue full."""
        target = self.reception.allowed.address_of(peer)
        return target is not None and self._network.transmit(self, target, frame)

    def take(self, source: Address, frame: Frame) -> None:
        """A frame arrives from whoever holds the source's key."""
        peer = self.reception.allowed.peer_of(source.curve_key)
        if peer is None:
            self.reception.refuse(None, not_allowed(source.curve_key))
        else:
            self.handler.on_frame(peer, frame)

    def take_bytes(self, curve_key: bytes, header: bytes, body: bytes) -> None:
        """Bytes arrive from whoever holds this key; they may be anything."""
        peer = self.reception.allowed.peer_of(curve_key)
        if peer is None:
            self.reception.refuse(None, not_allowed(curve_key))
        else:
            self.reception.take(peer, [header, body])


class SimNetwork:
    """All data links of one world.

    Args:
        scene: clock and chance of the world.
        latency_s: typical time of a frame on the way; each takes half to three halves of it.

    Attributes:
        shut: Peers to which nobody can open a connection, with the time from which on.
        relays: Lines of those who pass on what senders have for receivers, by both.
        routers: Routers before the peers, None for none.
    """

    def __init__(self, scene: Scene, latency_s: float) -> None:
        self.lines: dict[PeerId, Line] = {}
        self.links: dict[PeerId, SimLink] = {}
        self._scene = scene
        self._clock = scene.clock
        self._latency_s = latency_s
        self._random = scene.rng.random
        self._pairs: dict[tuple[PeerId, PeerId], _Pair] = {}
        self._pairs_of: dict[PeerId, list[_Pair]] = {}
        self._cut: dict[tuple[PeerId, PeerId], float] = {}
        self.shut: dict[PeerId, float] = {}
        self.relays: dict[tuple[PeerId, PeerId], Line] = {}
        self.routers = Routers(scene, self.drop) if scene.conditions.routers else None
        self._count = 0
        self._sent: dict[tuple[PeerId, PeerId], deque[Frame]] = {}

    def open(self, address: Address, handler: LinkHandler) -> SimLink:
        """A process listens; an older one of the same peer is gone."""
        link = self.links[address.peer_id] = SimLink(self, address, handler)
        self.lines.setdefault(address.peer_id, Line())
        return link

    def kill(self, peer: PeerId) -> None:
        """The peer's process is gone, with every frame from and to it."""
        self.links.pop(peer, None)
        if self.routers is not None:
            self.routers.leave(peer)
        for pair in self._pairs_of.get(peer, ()):
            pair.generation += 1
            pair.under_way = 0

    def drop(self, source: PeerId, target: PeerId) -> None:
        """The connection breaks and is made again: what is under way is lost."""
        pair = self._pair(source, target)
        pair.generation += 1
        pair.under_way = 0

    def cut(self, source: PeerId, target: PeerId) -> None:
        """From now on nothing that `source` sends reaches `target`."""
        self._cut.setdefault((source, target), self._clock.now_s)
        self.drop(source, target)

    def heal(self, source: PeerId, target: PeerId) -> None:
        """Undo `cut`; what was sent meanwhile stays lost."""
        self._cut.pop((source, target), None)

    def is_cut(self, source: PeerId, target: PeerId) -> bool:
        """Return True if frames of the one do not reach the other."""
        return (source, target) in self._cut

    def heal_all(self) -> None:
        """Every link is well again."""
        self._cut.clear()
        self.shut.clear()
        if self.routers is not None:
            self.routers.calm()

    def unreached(self, source: SimLink) -> tuple[PeerId, ...]:
        """Return the peers to which this one could make no connection for long."""
        me, long_s = source.address.peer_id, self._clock.now_s - limits.UNREACHED_S
        if (routers := self.routers) is not None:
            others = sorted(source.reception.allowed.peers())
            return tuple(peer for peer in others if routers.is_down(me, peer))
        if not (self._cut or self.shut):
            return ()
        never_s = float("inf")
        return tuple(
            peer
            for peer in sorted(source.reception.allowed.peers())
            if min(self._cut.get((me, peer), never_s), self.shut.get(peer, never_s)) <= long_s
        )

    def _pair(self, source: PeerId, target: PeerId) -> _Pair:
        ends = (source, target)
        pair = self._pairs.get(ends)
        if pair is None:
            pair = self._pairs[ends] = _Pair()
            for peer in ends:
                self._pairs_of.setdefault(peer, []).append(pair)
        return pair

    def transmit(self, source: SimLink, target: Address, frame: Frame) -> bool:
        """Put one frame on its way."""
        start, end = source.address.peer_id, target.peer_id
        pair = self._pair(start, end)
        if pair.under_way >= _QUEUE_MAX:
            return False
        if (self._cut and (start, end) in self._cut) or end in self.shut:
            return True
        is_told = bool(target.host)
        if self.routers is not None:
            if not self.routers.carries(start, end, is_told=is_told):
                return True
        elif not is_told:
            return False
        if frame.kind in _KEPT:
            if (sent := self._sent.get((start, end))) is None:
                sent = self._sent[start, end] = deque(maxlen=_KEPT_FRAMES)
            sent.append(frame)
        pair.under_way += 1
        size = limits.HEADER_BYTES + len(frame.body)
        moment = max(self._arrival_s(start, end, size), pair.arrival_s + 1e-9)
        pair.arrival_s = moment
        generation = pair.generation
        self._count += 1
        packed = pack(frame) if self._count % _PACK_EVERY == 0 else None
        deliver = partial(
            self._scene.deliver, frame.kind, self._arrive, source, target, pair, generation, frame,
            packed,
        )  # fmt: skip
        down = self.lines.get(end)
        if down is None or not down.rate:
            self._clock.at(moment, deliver)
        else:
            self._clock.at(moment, partial(self._squeeze, down, size, deliver))
        return True

    def _arrive(
        self, source: SimLink, target: Address, pair: _Pair, generation: int, frame: Frame,
        packed: tuple[bytes, Buffer] | None,
    ) -> None:  # fmt: skip
        if generation != pair.generation:
            return
        pair.under_way -= 1
        # Looked up now, not at sending: a socket reconnects to whoever listens there by then.
        link = self.links.get(target.peer_id)
        is_dialled = bool(target.host)
        if link is None or (is_dialled and link.address.host != target.host):
            return  # every process has its own
        if self._scene.trace is not None:
            self._tell(source, link, frame)
        if packed is None:
            link.take(source.address, frame)
        else:
            link.take_bytes(source.address.curve_key, packed[0], bytes(packed[1]))

    def _squeeze(self, down: Line, size: int, deliver: Callable[[], None]) -> None:
        """Through the receiver's line, after what came before."""
        down.down_free_s = max(self._clock.now_s, down.down_free_s) + size / down.rate
        self._clock.at(down.down_free_s, deliver)

    def _arrival_s(self, start: PeerId, end: PeerId, size: int) -> float:
        """Out through the sender's line and a relay's, then across: a big body delays later
        ones."""
        up, relay = self.lines[start], self.relays.get((start, end))
        now_s = self._clock.now_s
        for line in (up, relay) if relay is not None else (up,):
            if line.rate:
                now_s = line.up_free_s = max(now_s, line.up_free_s) + size / line.rate
        return now_s + (self._latency_s + up.lag_s) * (0.5 + self._random())

    def longest_s(self, line: Line) -> float:
        """Return how long a frame of this peer is on its way at most, and whatever it sends after
        it."""
        return 1.5 * (self._latency_s + line.lag_s)

    def inject(self, target: PeerId, curve_key: bytes, header: bytes, body: bytes) -> None:
        """Hostile bytes arrive at a peer."""
        link = self.links.get(target)
        if link is not None:
            link.take_bytes(curve_key, header, body)

    def sent_again(self, source: PeerId, target: PeerId, rng: random.Random) -> Frame | None:
        """A frame that was sent once arrives a second time, late; None if there was none."""
        sent, link = self._sent.get((source, target)), self.links.get(target)
        origin = self.links.get(source)
        if not sent or link is None or origin is None:
            return None
        frame = rng.choice(sent)
        link.take(origin.address, frame)
        return frame

    def _tell(self, source: SimLink, link: SimLink, frame: Frame) -> None:
        name = self._scene.name_of
        what = f"{frame.kind.name} slice {frame.slice_index}.{frame.attempt} chunk {frame.chunk}"
        self._scene.say(
            name(link.address.peer_id), f"<- {name(source.address.peer_id)}: {what}, "
            f"{len(frame.body)} bytes",
        )  # fmt: skip

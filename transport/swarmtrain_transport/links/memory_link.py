"""The data lane inside one process: link.Link's contract with real frame bytes and no sockets.

Tests and the simulator run the production machines over it, so it is deterministic: no threads, no
loop, no clock. The network's owner decides when a frame arrives; by default frames wait in one
queue until `pump`. It behaves as zmq_link does: a receiver knows its sender by the CURVE key, a
lost connection loses the frames under way, and nothing is ever altered or repeated. Rates and
delays are the scheduler's business.
"""

from collections import deque
from collections.abc import Callable, Iterable

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.links.allow_list import not_allowed
from swarmtrain_transport.links.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.links.reception import Reception
from swarmtrain_transport.wire.frames import Frame, Packer

Schedule = Callable[[PeerId, PeerId, Callable[[], None]], None]
"""Called once per frame with source, target and what delivers it. To lose a frame, never call
`deliver`; frames of one pair that are delivered must keep their order."""

_PORT_FIRST = 40_000


class _Pair:
    """One connection, in one direction, between two open links.

    A frame belongs to the generation in which it was sent; a new generation loses what is under
    way, as a connection does.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.sent = 0
        self.settled = 0

    @property
    def under_way(self) -> int:
        """Frames that were sent and neither delivered nor lost."""
        return self.sent - self.settled

    def lose(self) -> None:
        """The connection went away with all frames in it."""
        self.generation += 1
        self.settled = self.sent


class MemoryNetwork:
    """All links of one simulated world.

    Args:
        schedule: decides when each frame is delivered. Without one, `pump` delivers in the order
            of sending.
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._schedule = schedule if schedule is not None else self._enqueue
        self._links: dict[tuple[str, int], MemoryLink] = {}
        self._pairs: dict[tuple[PeerId, PeerId], _Pair] = {}
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._port_next = _PORT_FIRST

    def open(self, address: Address, handler: LinkHandler) -> "MemoryLink":
        """A link that listens at `address`; port 0 takes a free one, see `MemoryLink.address`.

        Raises:
            LocalFault: something listens there already.
        """
        port = address.port
        if port == 0:
            port, self._port_next = self._port_next, self._port_next + 1
        bound = Address(address.peer_id, address.curve_key, address.host, port)
        if (bound.host, bound.port) in self._links:
            raise LocalFault(f"{bound.host} port {bound.port} is taken in this network")
        link = MemoryLink(self, bound, handler)
        self._links[bound.host, bound.port] = link
        return link

    def pump(self, max_frames: int | None = None) -> int:
        """Deliver queued frames, and those that their receivers send meanwhile.

        Args:
            max_frames: stop after so many; None goes on until the queue is empty.

        Returns:
            Number of frames that left the queue.
        """
        count = 0
        while self._queue and (max_frames is None or count < max_frames):
            self._queue.popleft()()
            count += 1
        return count

    def cut(self, source: PeerId, target: PeerId) -> None:
        """From now on nothing that `source` sends reaches `target`; what is under way is lost."""
        self._cut.add((source, target))
        self._pair(source, target).lose()

    def heal(self, source: PeerId, target: PeerId) -> None:
        """Undo `cut`. Frames that were sent meanwhile stay lost."""
        self._cut.discard((source, target))

    def drop(self, source: PeerId, target: PeerId) -> None:
        """The connection breaks and is made again: only what is under way is lost."""
        self._pair(source, target).lose()

    def kill(self, peer: PeerId) -> None:
        """The peer's process is gone, with every frame from and to it."""
        for link in [link for link in self._links.values() if link.address.peer_id == peer]:
            link.close()

    # ---- for MemoryLink

    def _transmit(self, source: "MemoryLink", target: Address, header: bytes, body: bytes) -> bool:
        """Hand one frame to the scheduler; False when the pair's queue is full."""
        ends = (source.address.peer_id, target.peer_id)
        pair = self._pair(*ends)
        if pair.under_way >= limits.LINK_SEND_QUEUE_FRAMES:
            return False
        if ends in self._cut:
            return True
        generation, number = pair.generation, pair.sent
        pair.sent += 1

        def deliver() -> None:
            if generation != pair.generation:
                return
            if number < pair.settled:
                raise LocalFault("the scheduler delivered a frame twice or out of order")
            # Frames before this one that the scheduler withheld can no longer come.
            pair.settled = number + 1
            # Looked up now, not at sending: a socket reconnects to whoever listens there by then.
            link = self._links.get((target.host, target.port))
            if link is not None and link.address.curve_key == target.curve_key:
                link._receive(source.address, header, body)

        self._schedule(*ends, deliver)
        return True

    def _pair(self, source: PeerId, target: PeerId) -> _Pair:
        return self._pairs.setdefault((source, target), _Pair())

    def _forget(self, link: "MemoryLink") -> None:
        """A closed link: its port is free again, its frames are lost."""
        del self._links[link.address.host, link.address.port]
        for ends, pair in self._pairs.items():
            if link.address.peer_id in ends:
                pair.lose()

    def _enqueue(self, source: PeerId, target: PeerId, deliver: Callable[[], None]) -> None:
        self._queue.append(deliver)


class MemoryLink:
    """One peer's end of a `MemoryNetwork`; made by `MemoryNetwork.open`."""

    def __init__(self, network: MemoryNetwork, address: Address, handler: LinkHandler) -> None:
        self._network = network
        self._address = address
        self._reception = Reception(address.peer_id, handler)
        self._packer = Packer()
        self._is_open = True

    @property
    def address(self) -> Address:
        """The address and key at which this link listens."""
        return self._address

    @property
    def stats(self) -> LinkStats:
        """Counters since the link was opened."""
        return self._reception.stats

    def allow(self, address: Address) -> None:
        """Admit a peer, which may then be sent to; a changed address replaces the old one.

        An address that cannot be one, or another peer's key, is refused and counted.

        Raises:
            LocalFault: the link is closed.
        """
        if not self._is_open:
            raise LocalFault("allow() on a closed link")
        if self._reception.admit(address):
            self._network.drop(self._address.peer_id, address.peer_id)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Do nothing: here ways take no time."""

    def revoke(self, peer: PeerId) -> None:
        """Stop hearing and reaching a peer. Unknown peers are ignored."""
        self._reception.allowed.remove(peer)
        self._network.drop(self._address.peer_id, peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Queue one frame; False when there is no route to the peer or its queue is full.

        Raises:
            LocalFault: the body is larger than the limit.
        """
        target = self._reception.allowed.address_of(peer)
        if target is None or not target.host:
            return False
        header, body = self._packer.pack(frame)
        # A copy, so that a sender who re-uses its buffer too early is seen in a test.
        if not self._network._transmit(self, target, header, bytes(body)):
            return False
        self.stats.frames_sent += 1
        self.stats.bytes_sent += len(header) + len(body)
        return True

    def close(self) -> None:
        """Stop listening; frames under way are lost. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            for peer in self._reception.allowed.peers():
                self._reception.allowed.remove(peer)
            self._network._forget(self)

    # ---- for MemoryNetwork

    def _receive(self, source: Address, header: Buffer, body: Buffer) -> None:
        peer = self._reception.allowed.peer_of(source.curve_key)
        if peer is None:
            self._reception.refuse(None, not_allowed(source.curve_key))
        else:
            self._reception.take(peer, [header, body])

"""The data lane over the internet: link.Link's contract on ZeroMQ sockets with CURVE.

One ROUTER listens and only receives; one DEALER per allowed peer only sends. A peer is known by the
CURVE key that its connection proved; the routing id, which a sender may choose, is never looked at.
Keys that are not allowed are turned away at the handshake. No file but this one and
zmq_link_sockets knows zmq.

Why it is so:
- Sockets are drained by `loop.add_reader`, not by coroutines: no task can die unseen, and `close`
  needs no await.
- ZMQ_IMMEDIATE is 0: frames queue (bounded) while a connection is being made. With 1 the first
  frames of an op to a peer that has just been allowed would be refused, and the machine would
  only repeat them at its next nudge, a second later.
- libzmq 4.3.5 gives a connection up for good after ZAP code 400 and after anything that is not
  ZMTP, and after 300 it sits in the handshake until HANDSHAKE_IVL (all measured). So we answer
  400, and each DEALER's monitor shows a disconnection that libzmq does not retry; the route is
  then opened anew after a pause. A peer that learns of our key late is reached within 2 s.
- libzmq cannot close one connection of a ROUTER. A revoked key is refused frame by frame, and
  its connection is shut down through the descriptor that its own frame names.

libzmq resolves names on its one I/O thread, which stalls it: only IP addresses are let through.
"""

import asyncio
from typing import Self

import zmq

from swarmtrain_transport import limits
from swarmtrain_transport.allow_list import not_allowed
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.frames import Frame, Packer
from swarmtrain_transport.identity import Identity
from swarmtrain_transport.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.outbox import TokenBucket
from swarmtrain_transport.reception import Reception
from swarmtrain_transport.widths import Path
from swarmtrain_transport.zmq_link_bundle import Bundle
from swarmtrain_transport.zmq_link_sockets import (
    Ground,
    Reader,
    Socket,
    bind,
    make_listener,
    resolve,
)
from swarmtrain_transport.zmq_link_tcp import (
    Connections,
    Moved,
    Unread,
    break_connection,
    can_tell,
)


class ZmqLink:
    """One peer's end of the data lane; made by `ZmqLink.open` on the loop that will own it."""

    def __init__(
        self,
        ground: Ground,
        address: Address,
        handler: LinkHandler,
        listener: Socket,
        gate: TokenBucket | None,
    ) -> None:
        """For `open`, which made the sockets."""
        self._ground = ground
        self._address = address
        self._reception = Reception(address.peer_id, handler)
        self._routes: dict[PeerId, Bundle] = {}
        self._shut: set[tuple[bytes, int]] = set()
        self._connections = Connections()
        self._heard_by: set[int] = set()  # grows by connections; a descriptor's number comes again
        self._is_open = True
        self._unread = Unread(address.port)
        self._watch_timer = ground.loop.call_later(limits.LINK_UNREAD_S, self._watch)
        self._packer = Packer()
        self._zap = Reader(ground.loop, ground.zap, self._on_zap)
        self._listener = Reader(ground.loop, listener, self._on_message, gate)

    @classmethod
    async def open(
        cls,
        identity: Identity,
        host: str,
        port: int,
        handler: LinkHandler,
        gate: TokenBucket | None = None,
    ) -> Self:
        """A link that listens on `host` and `port` (0 for a free one) and admits nobody yet.

        Args:
            identity: its keys.
            host: address to listen on.
            port: likewise.
            handler: is told of frames and faults.
            gate: cap on what is taken in.

        Raises:
            PortInUse: another socket listens there.
            ListenFailed: `host` is not an address of this machine, or the port is not permitted.
            LocalFault: this libzmq was built without CURVE.
        """
        if not zmq.has("curve"):
            raise LocalFault("libzmq has no CURVE; install the pyzmq wheel from the registry")
        numeric = await resolve(host, port)
        ground = Ground(asyncio.get_running_loop(), zmq.Context(io_threads=1), identity)
        try:
            listener = make_listener(ground, numeric, is_capped=gate is not None)
            real_port = bind(listener, host, numeric, port)
            address = Address(identity.peer_id, identity.curve_key, host, real_port)
            return cls(ground, address, handler, listener, gate)
        except BaseException:
            ground.context.destroy(linger=0)
            raise

    @property
    def address(self) -> Address:
        """As whom and where this link listens: the host as asked for, the real port."""
        return self._address

    @property
    def stats(self) -> LinkStats:
        """Counters since the link was opened."""
        return self._reception.stats

    def moved(self) -> Moved | None:
        """Bytes that really went over the network, as TCP counts them; None if it does not say."""
        own_port = self._address.port
        for bundle in self._routes.values():
            bundle.suit()
        sending = {one for bundle in self._routes.values() for one in bundle.connections()}
        return self._connections.moved(
            sending, {(descriptor, own_port) for descriptor in self._heard_by}
        )

    def acknowledged(self) -> dict[PeerId, int] | None:
        """Bytes that each reachable peer has acknowledged since its connection was made, None if
        TCP does not say."""
        if not can_tell():
            return None
        found = {peer: bundle.acked() for peer, bundle in self._routes.items()}
        return {peer: count for peer, count in found.items() if count is not None}

    def paths(self) -> dict[PeerId, list[Path]]:
        """What TCP says of the connections to each reachable peer; nothing if it does not say."""
        return {peer: bundle.paths() for peer, bundle in self._routes.items()}

    def widen(self, peer: PeerId, width: int) -> None:
        """Send what is large to this peer by so many connections, if it is known."""
        if peer in self._routes:
            self._routes[peer].widen(width)

    def allow(self, address: Address) -> None:
        """Admit a peer and be ready to send to it; a changed address replaces the old one.

        An address that cannot be one, or another peer's key, is refused and counted.

        Raises:
            LocalFault: the link is closed.
        """
        if not self._is_open:
            raise LocalFault("allow() on a closed link")
        if not self._reception.admit(address):
            return
        old = self._routes.pop(address.peer_id, None)
        if old is not None:
            old.close()
        self._shut = {pair for pair in self._shut if pair[0] != address.curve_key}
        self._routes[address.peer_id] = Bundle(self._ground, address)

    def revoke(self, peer: PeerId) -> None:
        """Stop hearing and reaching a peer. Unknown peers are ignored."""
        self._reception.allowed.remove(peer)
        route = self._routes.pop(peer, None)
        if route is not None:
            route.close()

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Queue one frame; False when there is no route to the peer or its queue is full.

        A body of `limits.ZERO_COPY_BYTES` or more is not copied: it must not change until it is
        sent, and the machines' buffers do not change before COMMIT.

        Raises:
            LocalFault: the body is larger than the limit.
        """
        bundle = self._routes.get(peer)
        if bundle is None:
            return False
        header, body = self._packer.pack(frame)
        is_large = len(body) >= limits.ZERO_COPY_BYTES
        route = bundle.route_for(len(body), is_large=is_large)
        try:
            route.socket.send(header, zmq.SNDMORE | zmq.NOBLOCK, copy=True)
            route.socket.send(body, zmq.NOBLOCK, copy=not is_large)
        except zmq.Again:
            return False
        self.stats.frames_sent += 1
        self.stats.bytes_sent += len(header) + len(body)
        return True

    def close(self) -> None:
        """Close all sockets; frames not yet sent are lost. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._watch_timer.cancel()
        for peer in list(self._routes):
            self.revoke(peer)
        self._listener.close()
        self._zap.close()
        self._ground.context.destroy(linger=0)

    def _on_message(self, parts: list[zmq.Frame]) -> None:
        key = _proved_key(parts[-1])
        self._unread.read(_descriptor(parts[-1]))
        peer = self._reception.allowed.peer_of(key)
        if peer is None:
            self._shut_down(key, parts[-1])
            self._reception.refuse(None, not_allowed(key))
        else:
            if len(parts[-1]) >= limits.ZERO_COPY_BYTES:
                self._heard_by.add(_descriptor(parts[-1]))
            self._reception.take(peer, [_content(part) for part in parts[1:]])

    def _watch(self) -> None:
        """Break connections whose sender fills our memory with a message that does not end."""
        for descriptor in self._unread.overfull():
            break_connection(descriptor, self._address.port)
            self._reception.refuse(None, RemoteFault("flood", "a message that does not end"))
        self._watch_timer = self._ground.loop.call_later(limits.LINK_UNREAD_S, self._watch)

    def _on_zap(self, parts: list[zmq.Frame]) -> None:
        """One handshake that proved a key; libzmq waits for the verdict (ZeroMQ RFC 27)."""
        # Routing id and an empty delimiter come first, as for a REQ socket.
        route, delimiter, *request = [part.bytes for part in parts]
        reply, refusal = self._reception.allowed.zap_reply(request)
        # Never blocks: libzmq puts no limit on this pipe.
        self._zap.socket.send_multipart([route, delimiter, *reply])
        if refusal is not None:
            self._reception.refuse_handshake(refusal, self._ground.loop.time())

    def _shut_down(self, key: bytes, part: zmq.Frame) -> None:
        """Break the connection that a revoked key's frame came by; ZAP refuses its return.

        Once per connection: the descriptor may be somebody else's by the time that further
        queued frames of the same connection are read.
        """
        descriptor = _descriptor(part)
        if descriptor >= 0 and (key, descriptor) not in self._shut:
            self._shut.add((key, descriptor))
            break_connection(descriptor, self._address.port)


def _proved_key(part: zmq.Frame) -> bytes:
    """The CURVE key that ZAP named for this connection; b"" matches no peer."""
    try:
        return bytes.fromhex(str(part.get("User-Id")))
    except (zmq.ZMQError, ValueError):
        return b""


def _descriptor(part: zmq.Frame) -> int:
    """Of the connection that a message came by, -1 if that is gone."""
    try:
        return int(part.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _content(part: zmq.Frame) -> Buffer:
    """Small parts are copied out of their message; a view of a large one keeps it alive."""
    return part.bytes if len(part) < limits.ZERO_COPY_BYTES else part.buffer.toreadonly()

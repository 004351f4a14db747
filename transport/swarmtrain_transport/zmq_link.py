"""The data lane over the internet: link.Link's contract on ZeroMQ sockets with CURVE.

One ROUTER listens and only receives; one DEALER per allowed peer only sends. A peer is known by the
CURVE key that its connection proved; the routing id, which a sender may choose, is never looked at.
Keys that are not allowed are turned away at the handshake. No other file knows zmq.

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

libzmq resolves names on its one I/O thread, which stalls it, and only to IPv4: better give IPs.
"""

import asyncio
import errno
import itertools
import socket as sockets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport import limits
from swarmtrain_transport.allow_list import ZAP_DOMAIN, not_allowed
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import ListenFailed, LocalFault, PortInUse
from swarmtrain_transport.frames import Frame, pack
from swarmtrain_transport.identity import Identity
from swarmtrain_transport.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.reception import Reception

_Socket: TypeAlias = "zmq.Socket[bytes]"
_Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
_Take: TypeAlias = Callable[[list[zmq.Frame]], None]

_DRAIN_FRAMES = 16
"""Frames handled before the loop gets a turn: at most a few milliseconds at 256 KiB each."""
_WATCHED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class ZmqLink:
    """One peer's end of the data lane; made by `ZmqLink.open` on the loop that will own it."""

    def __init__(
        self, ground: "_Ground", address: Address, handler: LinkHandler, listener: _Socket
    ) -> None:
        """For `open`, which made the sockets."""
        self._ground = ground
        self._address = address
        self._reception = Reception(address.peer_id, handler)
        self._routes: dict[PeerId, _Route] = {}
        self._shut: set[tuple[bytes, int]] = set()
        self._is_open = True
        self._zap = _Reader(ground.loop, ground.zap, self._on_zap)
        self._listener = _Reader(ground.loop, listener, self._on_message)

    @classmethod
    async def open(cls, identity: Identity, host: str, port: int, handler: LinkHandler) -> Self:
        """A link that listens on `host` and `port` (0 for a free one) and admits nobody yet.

        Raises:
            PortInUse: another socket listens there.
            ListenFailed: `host` is not an address of this machine, or the port is not permitted.
            LocalFault: this libzmq was built without CURVE.
        """
        if not zmq.has("curve"):
            raise LocalFault("libzmq has no CURVE; install the pyzmq wheel from the registry")
        numeric = await _resolve(host, port)
        ground = _Ground(asyncio.get_running_loop(), zmq.Context(io_threads=1), identity)
        try:
            listener = _make_listener(ground, numeric)
            real_port = _bind(listener, host, numeric, port)
            address = Address(identity.peer_id, identity.curve_key, host, real_port)
            return cls(ground, address, handler, listener)
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
        self._routes[address.peer_id] = _Route(self._ground, address)

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
        route = self._routes.get(peer)
        if route is None:
            return False
        header, body = pack(frame)
        is_large = len(body) >= limits.ZERO_COPY_BYTES
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
        for peer in list(self._routes):
            self.revoke(peer)
        self._listener.close()
        self._zap.close()
        self._ground.context.destroy(linger=0)

    def _on_message(self, parts: list[zmq.Frame]) -> None:
        key = _proved_key(parts[-1])
        peer = self._reception.allowed.peer_of(key)
        if peer is None:
            self._shut_down(key, parts[-1])
            self._reception.refuse(None, not_allowed(key))
        else:
            self._reception.take(peer, [_content(part) for part in parts[1:]])

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
        try:
            descriptor = int(part.get(zmq.SRCFD))
        except zmq.ZMQError:
            return
        if (key, descriptor) not in self._shut:
            self._shut.add((key, descriptor))
            _break_connection(descriptor, self._address.port)


@dataclass(slots=True)
class _Ground:
    """What all sockets of a link share; making it binds the ZAP handler, before any listener."""

    loop: asyncio.AbstractEventLoop
    context: _Context
    identity: Identity
    zap: _Socket = field(init=False)
    monitor_numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.zap = self.context.socket(zmq.ROUTER)
        self.zap.setsockopt(zmq.LINGER, 0)
        self.zap.bind("inproc://zeromq.zap.01")


class _Reader:
    """Hands every message of a socket to `take`, on the loop, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: _Socket, take: _Take) -> None:
        self.socket = socket
        self._loop = loop
        self._take = take
        self._descriptor = socket.FD
        loop.add_reader(self._descriptor, self._drain)
        # The descriptor signals changes, not states: what is there already must be looked for.
        self._again = loop.call_soon(self._drain)

    def close(self) -> None:
        """Stop reading and close the socket."""
        self._loop.remove_reader(self._descriptor)
        self._again.cancel()
        self.socket.close(linger=0)

    def _drain(self) -> None:
        """Read until the socket is empty, for else it would not signal again."""
        for _ in range(_DRAIN_FRAMES):
            if self.socket.closed:
                return
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._take(parts)
            except BaseException:
                # A bug of the handler goes to the loop; the messages behind it are not its fault.
                self._schedule()
                raise
        self._schedule()

    def _schedule(self) -> None:
        if not self.socket.closed:
            self._again.cancel()
            self._again = self._loop.call_soon(self._drain)


class _Route:
    """The way to one peer: a DEALER, and a monitor that tells when libzmq gave it up."""

    def __init__(self, ground: _Ground, address: Address) -> None:
        self._ground = ground
        self._address = address
        self._pause_s = limits.RECONNECT_MIN_S
        self._retry: asyncio.TimerHandle | None = None
        self._connect()

    def close(self) -> None:
        """Close the sockets; queued frames are lost."""
        if self._retry is not None:
            self._retry.cancel()
        self._disconnect()

    def _connect(self) -> None:
        self._retry = None
        endpoint = f"inproc://route-{next(self._ground.monitor_numbers)}"
        self.socket = _make_sender(self._ground, self._address)
        self.socket.monitor(endpoint, _WATCHED)
        events = self._ground.context.socket(zmq.PAIR)
        events.setsockopt(zmq.LINGER, 0)
        events.setsockopt(zmq.RCVHWM, 0)
        events.connect(endpoint)
        self._monitor = _Reader(self._ground.loop, events, self._on_event)
        self.socket.connect(_endpoint(self._address.host, self._address.port))

    def _disconnect(self) -> None:
        # The monitor first: with nobody to read its events libzmq's I/O thread would block in
        # sending one, holding the lock that closing the socket needs.
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close(linger=0)

    def _on_event(self, parts: list[zmq.Frame]) -> None:
        event = parse_monitor_message([part.bytes for part in parts])["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._pause_s = limits.RECONNECT_MIN_S
        elif event == zmq.EVENT_DISCONNECTED and self._retry is None:
            self._retry = self._ground.loop.call_later(self._pause_s, self._reopen)
        elif event == zmq.EVENT_CONNECT_RETRIED and self._retry is not None:
            # Follows at once where libzmq tries again by itself; queued frames are then kept.
            self._retry.cancel()
            self._retry = None

    def _reopen(self) -> None:
        self._pause_s = min(2 * self._pause_s, limits.REFUSED_RETRY_MAX_S)
        self._disconnect()
        self._connect()


async def _resolve(host: str, port: int) -> str:
    """The numeric address to listen on, IPv4 where a name has both, as senders do; "" is any."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or "0.0.0.0", port, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ListenFailed(host, port, "the name has no address") from exc
    return str(min(found, key=lambda entry: entry[0] != sockets.AF_INET)[4][0])


def _bind(listener: _Socket, host: str, numeric: str, port: int) -> int:
    """Bind and return the real port."""
    try:
        listener.bind(_endpoint(numeric, port if port else "*"))
    except zmq.ZMQError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, "another program listens there") from exc
        no_such = exc.errno in (errno.EADDRNOTAVAIL, errno.ENODEV)
        raise ListenFailed(host, port, "not this machine's" if no_such else str(exc)) from exc
    return int(listener.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])


def _make_listener(ground: _Ground, host: str) -> _Socket:
    listener = _make_socket(ground, zmq.ROUTER, host)
    listener.setsockopt(zmq.CURVE_SERVER, 1)
    listener.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    listener.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    listener.setsockopt(zmq.RCVHWM, limits.LINK_RECEIVE_QUEUE_FRAMES)
    listener.setsockopt(zmq.SNDHWM, 1)
    listener.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX + limits.FRAME_SLACK_BYTES)
    listener.setsockopt(zmq.BACKLOG, 2 * limits.PEERS_MAX)
    return listener


def _make_sender(ground: _Ground, address: Address) -> _Socket:
    sender = _make_socket(ground, zmq.DEALER, address.host)
    sender.setsockopt(zmq.CURVE_PUBLICKEY, ground.identity.curve_key)
    sender.setsockopt(zmq.CURVE_SERVERKEY, address.curve_key)
    sender.setsockopt(zmq.IMMEDIATE, 0)
    sender.setsockopt(zmq.SNDHWM, limits.LINK_SEND_QUEUE_FRAMES)
    # Nothing is ever read here; whatever a hostile listener sends back stays this small.
    sender.setsockopt(zmq.RCVHWM, 1)
    sender.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_SLACK_BYTES)
    sender.setsockopt(zmq.CONNECT_TIMEOUT, _milliseconds(limits.HANDSHAKE_S))
    sender.setsockopt(zmq.RECONNECT_IVL, _milliseconds(limits.RECONNECT_MIN_S))
    sender.setsockopt(zmq.RECONNECT_IVL_MAX, _milliseconds(limits.RECONNECT_MAX_S))
    return sender


def _make_socket(ground: _Ground, kind: int, host: str) -> _Socket:
    """The options that both kinds share."""
    socket = ground.context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1 if ":" in host else 0)
    socket.setsockopt(zmq.CURVE_SECRETKEY, ground.identity.curve_secret)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _milliseconds(limits.HANDSHAKE_S))
    socket.setsockopt(zmq.HEARTBEAT_IVL, _milliseconds(limits.LINK_HEARTBEAT_S))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _milliseconds(limits.LINK_SILENCE_S))
    socket.setsockopt(zmq.HEARTBEAT_TTL, _milliseconds(limits.LINK_SILENCE_S))
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    return socket


def _break_connection(descriptor: int, own_port: int) -> None:
    """Shut a TCP connection of our listener down; libzmq sees it end and cleans up."""
    try:
        connection = sockets.socket(fileno=descriptor)
    except OSError:
        return
    try:
        # A descriptor that was closed and given to something else meanwhile is left alone.
        if connection.getsockname()[1] == own_port:
            connection.shutdown(sockets.SHUT_RDWR)
    except OSError:
        return
    finally:
        connection.detach()


def _proved_key(part: zmq.Frame) -> bytes:
    """The CURVE key that ZAP named for this connection; b"" matches no peer."""
    try:
        return bytes.fromhex(str(part.get("User-Id")))
    except (zmq.ZMQError, ValueError):
        return b""


def _content(part: zmq.Frame) -> Buffer:
    """Small parts are copied out of their message; a view of a large one keeps it alive."""
    return part.bytes if len(part) < limits.ZERO_COPY_BYTES else part.buffer.toreadonly()


def _endpoint(host: str, port: int | str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)

"""The sockets under zmq_link: their options, who drains them, and the way to one peer.

Why each is as it is stands in zmq_link.
"""

import asyncio
import dataclasses
import errno
import itertools
import math
import socket as sockets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import ListenFailed, PortInUse
from swarmtrain_transport.links.allow_list import ZAP_DOMAIN
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.tcp import pace, received, suit_to_path

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
Take: TypeAlias = Callable[[list[zmq.Frame]], None]

_DRAIN_FRAMES = 16
"""Frames handled before the loop gets a turn: at most a few milliseconds at 256 KiB each."""
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
)


@dataclass(slots=True)
class Ground:
    """The part that all sockets of a link share. Making it binds the ZAP handler, before any
    listener."""

    loop: asyncio.AbstractEventLoop
    context: Context
    identity: Identity
    zap: Socket = field(init=False)
    monitor_numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.zap = self.context.socket(zmq.ROUTER)
        self.zap.setsockopt(zmq.LINGER, 0)
        self.zap.bind("inproc://zeromq.zap.01")


class Reader:
    """Hands every message of a socket to `take`, on the loop, one at a time.

    Args:
        loop: event loop of the socket.
        socket: socket, closed with this.
        take: receives each message.
        gate: while it is shut nothing is read, and TCP holds the senders back.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: Socket,
        take: Take,
        gate: TokenBucket | None = None,
    ) -> None:
        self.socket = socket
        self._loop = loop
        self._take = take
        self._gate = gate
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
            if self._gate is not None and not self._gate.is_open(self._loop.time()):
                self._wait_at(self._gate)
                return
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if self._gate is not None:
                self._gate.spend(sum(len(part) for part in parts))
            try:
                self._take(parts)
            except BaseException:
                # A bug of the handler goes to the loop; the messages behind it are not its fault.
                self._schedule()
                raise
        self._schedule()

    def hurry(self) -> None:
        """Wait no more for the gate as it was: it is another one."""
        self._again.cancel()
        self._again = self._loop.call_soon(self._go_on)

    def _wait_at(self, gate: TokenBucket) -> None:
        # The descriptor stays ready while there is something to read, so it is not watched now.
        self._loop.remove_reader(self._descriptor)
        self._again.cancel()
        self._again = self._loop.call_at(gate.opens_s, self._go_on)

    def _go_on(self) -> None:
        if not self.socket.closed:
            self._loop.add_reader(self._descriptor, self._drain)
            self._drain()

    def _schedule(self) -> None:
        if not self.socket.closed:
            self._again.cancel()
            self._again = self._loop.call_soon(self._drain)


class Route:
    """The way to one peer: a DEALER, and a monitor that tells when libzmq gave it up.

    Attributes:
        socket: socket that sends.
        port: port that it leads to.
        descriptor: descriptor of its TCP connection as last heard of, -1 without one.
    """

    def __init__(self, ground: Ground, address: Address) -> None:
        self._ground = ground
        self._address = address
        self._pause_s = limits.RECONNECT_MIN_S
        self._retry: asyncio.TimerHandle | None = None
        self._is_suited = True
        self._pace = math.inf
        self.down_since_s: float | None = ground.loop.time()
        self.port = address.port
        self.descriptor = -1
        self._connect()

    @property
    def is_up(self) -> bool:
        """True while a connection stands that has proved the peer's key."""
        return self.down_since_s is None

    def redial(self, host: str, port: int) -> None:
        """Dial another address of the peer from now on; queued frames are lost."""
        self._address = dataclasses.replace(self._address, host=host, port=port)
        self.port = port
        self.reopen()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the sockets; frames still queued after so long are lost."""
        if self._retry is not None:
            self._retry.cancel()
        self._disconnect(linger_s)

    def suit(self) -> None:
        """See `suit_to_path`; once for each connection."""
        if not self._is_suited:
            self._is_suited = suit_to_path(self.descriptor, self.port)

    def pace(self, bytes_per_s: float) -> None:
        """Send no faster, see `tcp.pace`. Of small changes the system is not told."""
        is_near = 1 - limits.OUT_PACE_STEP < bytes_per_s / self._pace < 1 + limits.OUT_PACE_STEP
        if (
            bytes_per_s != self._pace
            and not is_near
            and pace(self.descriptor, self.port, bytes_per_s)
        ):
            self._pace = bytes_per_s

    def is_talked_back(self) -> bool:
        """Return True if anything came by this connection, which is for us to send by alone.

        Nothing is ever read here: libzmq stops at the first message, and a connection that has
        stopped must never go on (see zmq_link). Bytes tell of a message that does not end.
        """
        heard = received(self.descriptor, self.port) or 0
        has_message = int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        return bool(has_message) or heard > limits.LINK_ANSWER_BYTES_MAX

    def reopen(self) -> None:
        """Make the connection anew; queued frames are lost."""
        if self._retry is not None:
            self._retry.cancel()
        if self.down_since_s is None:
            self.down_since_s = self._ground.loop.time()
        self._disconnect()
        self._connect()

    def _connect(self) -> None:
        self._retry = None
        endpoint = f"inproc://route-{next(self._ground.monitor_numbers)}"
        self.socket = self._make_socket()
        self.socket.monitor(endpoint, _WATCHED)
        events = self._ground.context.socket(zmq.PAIR)
        events.setsockopt(zmq.LINGER, 0)
        events.setsockopt(zmq.RCVHWM, 0)
        events.connect(endpoint)
        self._monitor = Reader(self._ground.loop, events, self._on_event)
        if self._address.host:
            self.socket.connect(self._endpoint())

    def _make_socket(self) -> Socket:
        return _make_sender(self._ground, self._address)

    def _endpoint(self) -> str:
        host, port = self._address.host, self._address.port
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def _disconnect(self, linger_s: float = 0.0) -> None:
        self.descriptor = -1
        # The monitor first: with nobody to read its events libzmq's I/O thread would block in
        # sending one, holding the lock that closing the socket needs.
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close(linger=_milliseconds(linger_s))

    def _on_event(self, parts: list[zmq.Frame]) -> None:
        told = parse_monitor_message([part.bytes for part in parts])
        event = told["event"]
        if event == zmq.EVENT_CONNECTED:
            self.descriptor = told["value"]
        elif event == zmq.EVENT_DISCONNECTED:
            self.descriptor = -1
            if self.down_since_s is None:
                self.down_since_s = self._ground.loop.time()
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._pause_s = limits.RECONNECT_MIN_S
            self.down_since_s = None
            self._is_suited, self._pace = False, math.inf
            self.suit()
        elif event == zmq.EVENT_DISCONNECTED and self._retry is None:
            self._retry = self._ground.loop.call_later(self._pause_s, self._try_again)
        elif event == zmq.EVENT_CONNECT_RETRIED and self._retry is not None:
            # Follows at once where libzmq tries again by itself; queued frames are then kept.
            self._retry.cancel()
            self._retry = None

    def _try_again(self) -> None:
        self._pause_s = min(2 * self._pause_s, limits.REFUSED_RETRY_MAX_S)
        self.reopen()


async def resolve(host: str, port: int) -> str:
    """The numeric address to listen on, IPv4 where a name has both, as senders do; "" is any."""
    if not host:
        return ""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ListenFailed(host, port, "the name has no address") from exc
    return str(min(found, key=lambda entry: entry[0] != sockets.AF_INET)[4][0])


def listen(host: str, numeric: str, port: int, *, is_capped: bool = False) -> sockets.socket:
    """A listening TCP socket, of both families for "" where there are two. A capped one reads
    little ahead.

    Raises:
        PortInUse: another socket listens there.
        ListenFailed: not an address of this machine, or the port is not permitted.
    """
    try:
        if not numeric and not sockets.has_dualstack_ipv6():
            numeric = "0.0.0.0"
        is_six = not numeric or ":" in numeric
        listener = sockets.create_server(
            (numeric, port),
            family=sockets.AF_INET6 if is_six else sockets.AF_INET,
            backlog=2 * limits.CELL_PEERS_MAX,
            dualstack_ipv6=is_six and sockets.has_dualstack_ipv6(),
        )
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, "another program listens there") from exc
        no_such = exc.errno in (errno.EADDRNOTAVAIL, errno.ENODEV)
        what = "not this machine's" if no_such else exc.strerror or str(exc)
        raise ListenFailed(host, port, what) from exc
    if is_capped:
        # Those that are accepted here have it from here.
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, limits.CAPPED_RECEIVE_BYTES)
    return listener


def make_receiver(ground: Ground, endpoint: str, *, is_capped: bool = False) -> Socket:
    """A DEALER that only hears, bound to a local endpoint. A capped one reads little ahead."""
    receiver = _make_socket(ground)
    receiver.setsockopt(zmq.CURVE_SERVER, 1)
    receiver.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    receiver.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    frames = limits.CAPPED_QUEUE_FRAMES if is_capped else limits.LINK_RECEIVE_QUEUE_FRAMES
    receiver.setsockopt(zmq.RCVHWM, frames)
    receiver.setsockopt(zmq.SNDHWM, 1)
    receiver.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX + limits.FRAME_SLACK_BYTES)
    receiver.setsockopt(zmq.BACKLOG, 2 * limits.CELL_PEERS_MAX)
    receiver.bind(endpoint)
    return receiver


def _make_sender(ground: Ground, address: Address) -> Socket:
    sender = _make_socket(ground)
    sender.setsockopt(zmq.IPV6, 1 if ":" in address.host else 0)
    sender.setsockopt(zmq.CURVE_PUBLICKEY, ground.identity.curve_key)
    sender.setsockopt(zmq.CURVE_SERVERKEY, address.curve_key)
    sender.setsockopt(zmq.IMMEDIATE, 0)
    sender.setsockopt(zmq.SNDHWM, limits.LINK_SEND_QUEUE_FRAMES)
    # Nothing is ever read here, and little and slowly is what a hostile listener can send back.
    sender.setsockopt(zmq.RCVHWM, 1)
    sender.setsockopt(zmq.RCVBUF, limits.LINK_ANSWER_WINDOW_BYTES)
    sender.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_SLACK_BYTES)
    # TCP finds dead lines. libzmq's own heartbeats can end the process, see zmq_link.
    probes = round(limits.LINK_SILENCE_S / limits.LINK_KEEPALIVE_S)
    sender.setsockopt(zmq.TCP_KEEPALIVE, 1)
    sender.setsockopt(zmq.TCP_KEEPALIVE_IDLE, round(limits.LINK_KEEPALIVE_S))
    sender.setsockopt(zmq.TCP_KEEPALIVE_INTVL, round(limits.LINK_KEEPALIVE_S))
    sender.setsockopt(zmq.TCP_KEEPALIVE_CNT, probes)
    sender.setsockopt(zmq.TCP_MAXRT, _milliseconds(limits.LINK_SILENCE_S))
    sender.setsockopt(zmq.CONNECT_TIMEOUT, _milliseconds(limits.HANDSHAKE_S))
    sender.setsockopt(zmq.RECONNECT_IVL, _milliseconds(limits.RECONNECT_MIN_S))
    sender.setsockopt(zmq.RECONNECT_IVL_MAX, _milliseconds(limits.RECONNECT_MAX_S))
    return sender


def _make_socket(ground: Ground) -> Socket:
    """A DEALER with what both ends share."""
    socket = ground.context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.CURVE_SECRETKEY, ground.identity.curve_secret)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _milliseconds(limits.HANDSHAKE_S))
    return socket


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)

"""An admitted member that aims at libzmq itself: it fills a peer's queues and resets connections.

libzmq 4.3.5 stops reading a connection whose queue is full. If that connection then fails, an
assertion of its own ends the whole process at the next heartbeat, its own or one that waits in the
connection's buffer. `Backtalker` fills the queue of connections that peers made to it, `Flooder`
that of a peer's listener. Both are for processes of ours on loopback.
"""

import contextlib
import errno
import socket as sockets
import struct
import time
from abc import ABC, abstractmethod
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.tcp import acknowledged

_RESET = struct.pack("ii", 1, 0)
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_LOOK_MS = 20
_REBIND_S = 5.0
_TTL_MS = 60_000
_PINGS = 3
_PING_BYTES = 42
_MESSAGE_BYTES = 36
"""On the wire, with CURVE: seven bytes and one."""


class _Hostile(ABC):
    """A socket that keeps to none of our rules, and the descriptors that its monitor tells of."""

    def __init__(self, identity: Identity, heartbeat_ms: int) -> None:
        self._identity = identity
        self._heartbeat_ms = heartbeat_ms
        self._context = zmq.Context(io_threads=1)
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def attack(self, count: int, limit_s: float) -> bool:
        """Send so many small messages by every connection that stands, and a few heartbeats if they
        are on, then reset all; False if nobody connects within `limit_s`."""
        if not self.wait(1, limit_s):
            return False
        self.send(count * self._handshakes)
        pings = _PINGS * _PING_BYTES if self._heartbeat_ms else 0
        self.settle(count * _MESSAGE_BYTES + pings, limit_s)
        self.reset()
        return True

    def reset(self) -> None:
        """Reset every connection, and be ready for new ones."""
        self._reset()
        self._begin()

    def close(self) -> None:
        """End it; connections that stand are closed, not reset."""
        self._context.destroy(linger=0)

    def wait(self, num_handshakes: int, limit_s: float) -> bool:
        """Wait until so many peers have shaken hands since the last reset; False if they did not
        within `limit_s`."""
        until = time.monotonic() + limit_s
        while self._handshakes < num_handshakes:
            if time.monotonic() > until:
                return False
            self._look(_LOOK_MS)
        return True

    def send(self, count: int, *parts: bytes) -> None:
        """Send so many messages, of one byte if nothing else is said."""
        for _ in range(count):
            self.socket.send_multipart(parts or (b"x",), zmq.NOBLOCK)

    def settle(self, num_bytes: int, limit_s: float) -> bool:
        """Wait until the other ends have so many bytes more than now, heartbeats included; False if
        they do not take them within `limit_s`."""
        wanted, until = self._arrived() + num_bytes, time.monotonic() + limit_s
        while self._arrived() < wanted:
            if time.monotonic() > until:
                return False
            self._look(1)
        return True

    @abstractmethod
    def _begin(self) -> None:
        """Bind or connect the socket."""

    def _reset(self) -> None:
        """End all connections with RST, and the socket with them."""
        self._look(0)
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):  # it has ended already
                one = sockets.socket(fileno=descriptor)
                with contextlib.suppress(OSError):
                    one.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, _RESET)
                one.detach()
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)
        self._open()

    def _open(self) -> None:
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, self._identity.curve_secret)
        if self._heartbeat_ms:
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, self._heartbeat_ms)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TTL_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TTL, _TTL_MS)
        self._monitor = self.socket.get_monitor_socket(_EVENTS)
        self._descriptors: list[int] = []
        self._handshakes = 0

    def _arrived(self) -> int:
        self._look(0)
        return sum(_acknowledged(descriptor) for descriptor in self._descriptors)

    def _look(self, wait_ms: int) -> None:
        while self._monitor.poll(wait_ms):
            told = parse_monitor_message(self._monitor.recv_multipart())
            if told["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshakes += 1
            else:
                self._descriptors.append(told["value"])
            wait_ms = 0


def _acknowledged(descriptor: int) -> int:
    """Bytes that have arrived at the other end of a connection, 0 where nobody tells."""
    try:
        one = sockets.socket(fileno=descriptor)
    except OSError:
        return 0
    try:
        return acknowledged(descriptor, one.getpeername()[1]) or 0
    except OSError:
        return 0
    finally:
        one.detach()


class Backtalker(_Hostile):
    """Listens as a member does, talks back to whoever connects, and resets.

    Args:
        host: address to listen on.
        port: likewise, 0 for a free one.
        heartbeat_ms: interval of libzmq's own PING, 0 for none.

    Attributes:
        address: address that peers are told to connect to.
    """

    def __init__(
        self, identity: Identity, host: str = "127.0.0.1", port: int = 0, heartbeat_ms: int = 0
    ) -> None:
        super().__init__(identity, heartbeat_ms)
        self.address = Address(identity.peer_id, identity.curve_key, host, port)
        self._begin()

    def _begin(self) -> None:
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        until = time.monotonic() + _REBIND_S
        while True:
            try:
                self.socket.bind(f"tcp://{self.address.host}:{self.address.port or '*'}")
                break
            except zmq.ZMQError as exc:  # libzmq's own thread still closes the old one
                if exc.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                self._monitor.poll(_LOOK_MS)
        port = int(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        self.address = Address(
            self._identity.peer_id, self._identity.curve_key, self.address.host, port
        )


class Flooder(_Hostile):
    """Connects to a peer's listener as a member does, fills its queue, and resets.

    Args:
        heartbeat_ms: interval of libzmq's own PING, 0 for none.
    """

    def __init__(self, identity: Identity, target: Address, heartbeat_ms: int = 0) -> None:
        super().__init__(identity, heartbeat_ms)
        self._target = target
        self._begin()

    def _begin(self) -> None:
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, self._identity.curve_key)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, self._target.curve_key)
        self.socket.connect(f"tcp://{self._target.host}:{self._target.port}")

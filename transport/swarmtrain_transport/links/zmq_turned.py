"""A way to a peer over a connection that libzmq has not dialled: turned, punched or relayed.

libzmq can only dial, or be dialled. So it dials a local socket of ours, and the pump carries its
bytes to the connection and back, as the proxy does at the other end.
"""

import functools
import math
import os
import socket as sockets
import struct
import sys
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.zmq_proxy import Local, watch
from swarmtrain_transport.links.zmq_pump import BufferPool, Pump
from swarmtrain_transport.links.zmq_sockets import Ground, Route, Socket

_CREDENTIALS = struct.Struct("3i")


class TurnedRoute(Route):
    """The way to one peer by one connection that is there already; gone for good when that ends.

    Args:
        ground: ground of the link.
        address: address and key of the peer.
        far: the connection, owned by this from now on.
        pool: buffers of the pump.
        told: hears True once the peer has proved its key, and False when the way is gone.
    """

    def __init__(
        self,
        ground: Ground,
        address: Address,
        far: sockets.socket,
        pool: BufferPool,
        told: Callable[[bool], None],
    ) -> None:
        self._far, self._pool, self._told = far, pool, told
        self._near: sockets.socket | None = None
        self._pumps: tuple[Pump, ...] = ()
        self._is_over = self._is_closed = False
        watch(far)
        port = far.getpeername()[1]  # before anything is made that a failure would leave behind
        # Little is what a hostile receiver can make us hold: nothing is ever read from it.
        far.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, limits.LINK_ANSWER_WINDOW_BYTES)
        self._local = Local()
        self._listener = self._local.listen()
        ground.loop.add_reader(self._listener, self._accept)
        super().__init__(ground, address)
        self.descriptor, self.port = far.fileno(), port

    def close(self, linger_s: float = 0.0) -> None:
        """Close the sockets; queued frames are lost, as its own end of the way goes with them."""
        self._end()
        if not self._is_closed:
            self._is_closed = True
            super().close()

    def reopen(self) -> None:
        """End it: a connection that somebody else has made cannot be made anew from here."""
        self._lose()

    def _endpoint(self) -> str:
        return self._local.endpoint

    def _make_socket(self) -> Socket:
        socket = super()._make_socket()
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        return socket

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        if not _is_own(near):
            near.close()
            return
        near.setblocking(False)
        self._near = near
        self._shut_listener()
        pump = functools.partial(Pump, self._ground.loop, self._pool)
        far = self._far
        self._pumps = (
            pump(near, far, _nothing, self._lose, self._lose),
            pump(far, near, _nothing, self._lose, self._lose),
        )

    def _on_event(self, parts: list[zmq.Frame]) -> None:
        event = parse_monitor_message([part.bytes for part in parts])["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self._is_over:
            self.down_since_s = None
            self._is_suited, self._pace = False, math.inf
            self.suit()
            self._told(True)
        elif event == zmq.EVENT_DISCONNECTED:
            self._lose()

    def _lose(self) -> None:
        """The way is gone: whoever has the other end will not come back by it."""
        if self._is_over:
            return
        self._end()
        # Not from within an event of its own monitor, nor from its own pump.
        self._ground.loop.call_soon(self._gone)

    def _gone(self) -> None:
        if not self._is_closed:
            self.close()
            self._told(False)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self.down_since_s is None:
            self.down_since_s = self._ground.loop.time()
        self.descriptor = -1
        for pump in self._pumps:
            pump.stop()
        self._shut_listener()
        if self._near is not None:
            self._near.close()
        self._far.close()

    def _shut_listener(self) -> None:
        if self._listener.fileno() >= 0:
            self._ground.loop.remove_reader(self._listener)
            self._listener.close()
            self._local.close()


def _is_own(near: sockets.socket) -> bool:
    """Return True if this process is at the other end: abstract names are open to other users."""
    if sys.platform != "linux":
        return True
    told = near.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[0] == os.getpid())


def _nothing(num_bytes: int) -> None:
    """Nobody counts: TCP does."""

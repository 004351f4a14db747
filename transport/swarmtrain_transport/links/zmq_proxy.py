"""The TCP proxy before libzmq's listener: no connection fails for libzmq while its queue is full.

libzmq 4.3.5 stops reading a connection whose queue is full. If that one then fails (a reset, a
timeout), and a heartbeat still waits in its buffer, an assertion ends the whole process. Anybody
who is admitted could bring that about, so strangers' connections end here. Their bytes go on over a
local socket, whose end libzmq learns of only by reading it: it is half closed, and closed when
libzmq has closed it. Bytes that libzmq does not read wait in the network, as before.

A connection that begins with a preamble (ways.py) is no plainly dialled one, and `greet` says what
becomes of it. Nobody is answered before its first bytes are here.

Everything runs on the loop. While that is blocked nothing passes, so nothing grows.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import socket as sockets
import sys
import tempfile
from collections.abc import Callable, Collection

from swarmtrain_transport import limits
from swarmtrain_transport.links.doorway import Doorway, Greet
from swarmtrain_transport.links.tcp import own_host
from swarmtrain_transport.links.zmq_pump import BufferPool, Pump

_ACCEPT_AT_ONCE = 16
_ACCEPT_PAUSE_S = 0.5
_KEEPALIVE = (
    ("TCP_KEEPIDLE", round(limits.LINK_KEEPALIVE_S)),
    ("TCP_KEEPINTVL", round(limits.LINK_KEEPALIVE_S)),
    ("TCP_KEEPCNT", round(limits.LINK_SILENCE_S / limits.LINK_KEEPALIVE_S)),
    ("TCP_USER_TIMEOUT", round(limits.LINK_SILENCE_S * 1000)),
)


def watch(far: sockets.socket) -> None:
    """Have TCP find out that this connection is dead, and send what is small at once.

    Raises:
        OSError: it has just ended.
    """
    far.setblocking(False)
    far.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    far.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(sockets, name):
            far.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)


class Local:
    """Names for sockets that only this machine can reach: abstract ones on Linux, which leave
    nothing behind; elsewhere files in a directory of our own."""

    def __init__(self, *, is_abstract: bool | None = None) -> None:
        self._is_abstract = sys.platform == "linux" if is_abstract is None else is_abstract
        self._count = 0
        if self._is_abstract:
            name = f"swarmtrain-{secrets.token_hex(16)}"
            self.endpoint, self._listener = f"ipc://@{name}", f"\0{name}"
        else:
            self._directory = tempfile.mkdtemp(prefix="swarmtrain-")
            self._listener = os.path.join(self._directory, "zmq")
            self.endpoint = f"ipc://{self._listener}"

    def connect(self) -> sockets.socket:
        """A connection to what listens at `endpoint`, with a name of its own.

        Raises:
            OSError: nobody listens, or too many wait there.
        """
        one = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            one.setblocking(False)
            self._count += 1
            path = "" if self._is_abstract else os.path.join(self._directory, str(self._count))
            one.bind(path)
            try:
                one.connect(self._listener)
            finally:
                if path:
                    os.unlink(path)
        except OSError:
            one.close()
            raise
        return one

    def listen(self) -> sockets.socket:
        """A socket that listens at `endpoint`, for one connection of libzmq's."""
        one = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            one.setblocking(False)
            one.bind(self._listener)
            one.listen(1)
        except OSError:
            one.close()
            raise
        return one

    def close(self) -> None:
        """Remove the directory, where there is one."""
        if not self._is_abstract:
            shutil.rmtree(self._directory, ignore_errors=True)


def is_ours(zap_address: list[bytes]) -> bool:
    """Return True if a connection to the local socket comes from this process, by what libzmq says
    of its other end: abstract names are open to other users of the machine."""
    if sys.platform != "linux":
        return True
    return bool(zap_address) and zap_address[0].endswith(f":{os.getpid()}".encode())


class Proxy:
    """Takes TCP connections and passes their bytes on.

    Args:
        loop: event loop that it runs on.
        public: the listening socket, closed with this.
        local: socket on which libzmq listens, closed with this.
        hold_bytes: bytes that the local socket of a connection may hold.
        greet: says what becomes of a connection that begins with a preamble.
        refused: hears that one was closed for its first bytes.

    Attributes:
        bytes_in: bytes passed on to libzmq.
        bytes_out: bytes that libzmq has answered.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        public: sockets.socket,
        local: Local,
        hold_bytes: int,
        greet: Greet = lambda preamble, far: False,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = loop
        self.pool = BufferPool()
        self.bytes_in = 0
        self.bytes_out = 0
        self._public = public
        self._local = local
        self._floods = 0
        self._hold_bytes = hold_bytes
        self._connections: dict[object, Connection] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._doorway = Doorway(loop, self.adopt, greet, refused)
        public.setblocking(False)
        loop.add_reader(public, self._accept)

    def connection_of(self, descriptor: int) -> "Connection | None":
        """The connection that libzmq has under this descriptor."""
        if descriptor < 0:
            return None
        try:
            # Named so that Python does not ask the kernel for family and type.
            one = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM, 0, fileno=descriptor)
        except OSError:
            return None
        try:
            return self._connections.get(one.getpeername())
        except OSError:
            return None  # it has just ended
        finally:
            one.detach()

    def take_floods(self) -> int:
        """Return how many connections were cut for a message that does not end, since this was
        asked."""
        count, self._floods = self._floods, 0
        return count

    def renew(self, gone: Collection[str] | None) -> None:
        """Cut the connections to an address of this machine that is gone, None for all: who made
        them makes them anew, and need not find out by itself that they are dead."""
        for connection in list(self._connections.values()):
            if gone is None or connection.local_host in gone:
                connection.cut()

    def close(self) -> None:
        """End all connections; libzmq's sockets must have been closed before."""
        if self._pause is not None:
            self._pause.cancel()
        self.loop.remove_reader(self._public)
        self._public.close()
        self._doorway.close()
        for connection in list(self._connections.values()):
            connection.end()
        self.pool.close()
        self._local.close()

    def took_in(self, connection: "Connection", num_bytes: int) -> None:
        """Count; cut the connection if libzmq holds too much of an unfinished message.

        With many connections each may hold its share of what all may, but always one frame.
        """
        self.bytes_in += num_bytes
        share = limits.LINK_UNREAD_BYTES_ALL // len(self._connections)
        most = min(max(share, 2 * limits.FRAME_BYTES_MAX), limits.LINK_UNREAD_BYTES_MAX)
        if connection.unread > most:
            connection.cut()
            self._floods += 1

    def forget(self, connection: "Connection") -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection.name, None)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                far, _ = self._public.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: those who wait in line are taken later
                self.loop.remove_reader(self._public)
                self._pause = self.loop.call_later(_ACCEPT_PAUSE_S, self._go_on)
                return
            self._doorway.enter(far)

    def adopt(self, far: sockets.socket, ended: Callable[[], None] = lambda: None) -> None:
        """Pass on what comes by a connection, whoever has dialled it, until it has ended; closed if
        that fails."""
        try:
            self._begin(far, ended)
        except OSError:
            far.close()
            self.loop.call_soon(ended)

    def _go_on(self) -> None:
        self.loop.add_reader(self._public, self._accept)

    def _begin(self, far: sockets.socket, ended: Callable[[], None]) -> None:
        watch(far)
        near = self._local.connect()
        near.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, self._hold_bytes)
        connection = Connection(self, far, near, ended)
        self._connections[connection.name] = connection
        self.keep_few(b"", limits.LINK_UNHEARD_MAX)

    def keep_few(self, key: bytes, most: int) -> None:
        """Close the oldest connection beyond so many of one key, or of those that nothing was read
        from, whose key is empty: nobody may take all the descriptors."""
        same = [one for one in self._connections.values() if one.key == key and not one.is_cut]
        for connection in same[: max(0, len(same) - most)]:
            connection.cut()

    def keep_newest(self) -> None:
        """Close the connection that was silent for longest, beyond LINK_HEARD_MAX of all members:
        of thousands each may have some."""
        heard = [one for one in self._connections.values() if one.key and not one.is_cut]
        if len(heard) > limits.LINK_HEARD_MAX:
            min(heard, key=lambda one: one.read_s).cut()


class Connection:
    """One connection from the network and its local half.

    Attributes:
        name: name of the local half, as libzmq's side sees it.
        key: key that its first message proved, empty before.
        read_s: time at which its newest message was read.
        is_cut: `cut` was called.
    """

    def __init__(
        self,
        proxy: Proxy,
        far: sockets.socket,
        near: sockets.socket,
        ended: Callable[[], None],
    ) -> None:
        self.name: object = near.getsockname()
        self.key = b""
        self.read_s = 0.0
        self.is_cut = False
        self._proxy = proxy
        self._far = far
        self._near, self._ended = near, ended
        self._is_told = False
        self._taken = 0
        self._mark = 0
        pump = functools.partial(Pump, proxy.loop, proxy.pool)
        self._inward = pump(far, near, self._took_in, self._far_ended, self.end)
        self._outward = pump(near, far, self._gave_out, self.end, self._far_broke)

    @property
    def unread(self) -> int:
        """Bytes passed on since the last message was read."""
        return self._taken - self._mark

    @property
    def local_host(self) -> str:
        """Our own address on it, "" if it has ended."""
        return own_host(self._far)

    def was_read(self, key: bytes) -> None:
        """A message that came by this connection, and by whose key, was read."""
        self._mark = self._taken
        self.read_s = self._proxy.loop.time()
        if not self.key:
            self.key = key
            self._proxy.keep_few(key, limits.LINK_CONNECTIONS_MAX)
            self._proxy.keep_newest()

    def cut(self) -> None:
        """Break it; libzmq sees it end."""
        if self.is_cut:
            return
        self.is_cut = True
        self._far_ended()
        self._far_broke()
        self._far.close()

    def end(self) -> None:
        """libzmq has closed it, or has no more sockets."""
        self._tell_end()
        self._inward.stop()
        self._outward.stop()
        self._far.close()
        self._near.close()
        self._proxy.forget(self)

    def _took_in(self, num_bytes: int) -> None:
        self._taken += num_bytes
        self._proxy.took_in(self, num_bytes)

    def _gave_out(self, num_bytes: int) -> None:
        self._proxy.bytes_out += num_bytes

    def _far_ended(self) -> None:
        """End reading: nothing more comes. libzmq may still be busy with it, and answer."""
        self._tell_end()
        self._inward.stop()
        with contextlib.suppress(OSError):
            self._near.shutdown(sockets.SHUT_WR)

    def _tell_end(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._proxy.loop.call_soon(self._ended)

    def _far_broke(self) -> None:
        """End writing: what libzmq says is dropped until it closes."""
        self._outward.drop()

"""TLS over one accepted socket, as a transport of asyncio.

asyncio's own TLS holds each connection in two buffers in memory beside OpenSSL's: 23 KB more for
each, and the outgoing one stays as large as the largest message that it ever had, which for a peer
of a crowd are 0.1 MB of the ledger. Here OpenSSL reads and writes the socket itself, what is read
lands in one buffer of the process, and what waits to be written is not copied.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

RECORD_BYTES = 16 << 10
"""One record of TLS."""

READS_PER_TURN = 4
"""Records of one connection that are read before the loop looks at the others."""

HIGH_BYTES = 64 << 10
"""Bytes that wait to be written before the protocol is asked to pause, and a quarter of them before
it goes on: a peer's queue of messages is a better place, as it shares them with other peers'."""


def secured(stream: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a connection's socket as one of TLS, whose handshake is still to come. The old one is
    used up. OSError: it has left."""
    return context.wrap_socket(stream, server_side=True, do_handshake_on_connect=False)


async def shake_hands(stream: ssl.SSLSocket) -> None:
    """Have the handshake of TLS. OSError: it is gone, or speaks no TLS."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            stream.do_handshake()
            return
        except ssl.SSLWantReadError:
            await _until(stream, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _until(stream, loop.add_writer, loop.remove_writer)


async def readable(stream: socket.socket) -> None:
    """Wait until there is something to read."""
    loop = asyncio.get_running_loop()
    await _until(stream, loop.add_reader, loop.remove_reader)


async def _until(
    stream: socket.socket, add: Callable[..., None], remove: Callable[[Any], bool]
) -> None:
    ready = asyncio.get_running_loop().create_future()
    add(stream, _set, ready)
    try:
        await ready
    finally:
        remove(stream)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class TlsTransport(asyncio.Transport):
    """One connection after its handshake.

    Args:
        heard: room for what is read, one record of TLS; all connections of a loop may share it.
        close_s: longest time that `close` takes: what waits is sent, and the other side closes.
    """

    def __init__(
        self, stream: ssl.SSLSocket, protocol: asyncio.Protocol, heard: bytearray, close_s: float
    ) -> None:
        super().__init__()
        self._stream, self._protocol, self._close_s = stream, protocol, close_s
        self._heard = heard
        self._names = stream.getpeername(), stream.getsockname()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_closing = self._is_gone = False
        self._is_reading, self._is_paused = True, False
        self._closer: asyncio.TimerHandle | None = None
        with contextlib.suppress(OSError):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.connection_made(self)
        if not self._is_closing:
            self._loop.add_reader(stream, self._read)

    # ---- questions

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about the connection."""
        match name:
            case "peername":
                return self._names[0]
            case "sockname":
                return self._names[1]
            case "socket" | "ssl_object":
                return self._stream
            case "sslcontext":
                return self._stream.context
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who hears of it."""
        return self._protocol

    def is_closing(self) -> bool:
        """Return True if it is closed, or about to be."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Return True if what comes is read."""
        return self._is_reading and not self._is_closing

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait to be written."""
        return self._waiting_bytes

    def can_write_eof(self) -> bool:
        """TLS ends in both directions at once."""
        return False

    # ---- reading

    def pause_reading(self) -> None:
        """Leave what comes where it is."""
        if self.is_reading():
            self._is_reading = False
            self._loop.remove_reader(self._stream)

    def resume_reading(self) -> None:
        """Read again."""
        if not (self._is_reading or self._is_closing):
            self._is_reading = True
            self._loop.add_reader(self._stream, self._read)

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                count = self._stream.recv_into(self._heard)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as exc:
                self._end(exc)
                return
            if not count:  # the other side has said all
                self._loop.remove_reader(self._stream)
                self._protocol.eof_received()
                self.close()
                return
            self._protocol.data_received(bytes(memoryview(self._heard)[:count]))
            if not self.is_reading():
                return

    def _discard(self) -> None:
        """Read what nobody wants to know any more, until it ends."""
        try:
            while socket.socket.recv_into(self._stream, self._heard):
                pass
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._end(None)

    # ---- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, now or as the other side reads."""
        if self._is_closing or not data:
            return
        # What waits must not change any more.
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        self._waiting.append(view)
        self._waiting_bytes += len(view)
        if len(self._waiting) == 1:
            self._flush()
            if self._waiting:
                self._loop.add_writer(self._stream, self._flush)
        if self._waiting_bytes > HIGH_BYTES and not (self._is_paused or self._is_closing):
            self._is_paused = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        try:
            while self._waiting:
                view = self._waiting[0]
                # What could not be written is tried again as it was, which OpenSSL insists on.
                count = self._stream.send(view[:RECORD_BYTES])
                self._waiting_bytes -= count
                if count < len(view):
                    self._waiting[0] = view[count:]
                else:
                    self._waiting.popleft()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as exc:
            self._end(exc)
            return
        if self._is_paused and self._waiting_bytes <= HIGH_BYTES // 4:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._waiting:
            self._loop.remove_writer(self._stream)
            if self._is_closing:
                self._say_bye()

    # ---- the end

    def close(self) -> None:
        """Send what waits, say goodbye, and wait for the other side's: a socket that is closed
        before all was read would take back what was sent last."""
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._stream)
        self._closer = self._loop.call_later(self._close_s, self._end, None)
        if not self._waiting:
            self._say_bye()

    def _say_bye(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it waits for the other side's goodbye
            self._stream.unwrap()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._stream, socket.SHUT_WR)
        self._loop.add_reader(self._stream, self._discard)

    def abort(self) -> None:
        """End it now."""
        self._is_closing = True
        self._loop.call_soon(self._end, None)

    def _end(self, exc: Exception | None) -> None:
        if self._is_gone:
            return
        self._is_gone = self._is_closing = True
        if self._closer is not None:
            self._closer.cancel()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._loop.remove_reader(self._stream)
        self._loop.remove_writer(self._stream)
        # A protocol is never told from within its own call.
        self._loop.call_soon(self._gone, exc)

    def _gone(self, exc: Exception | None) -> None:
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._stream.close()

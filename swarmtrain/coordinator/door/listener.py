"""The listening socket, and everybody who stands before the door: bounded before TLS begins.

asyncio's own server makes a TLS connection of whatever it accepts, which takes memory for a minute
though the other side says nothing. So connections are accepted here, each is counted first, and TLS
is the socket's (`tls`): a
`Doorstep` says who has to go when too many stand there. From TCP's accept a stranger has
ADMISSION_S to become a member's connection (the handshake HANDSHAKE_S of that), however slowly it
trickles in. Members are not counted among strangers; each may have a few connections.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

from swarmtrain.console.repeats import Repeats
from swarmtrain.coordinator.door.admission import Doorstep
from swarmtrain.coordinator.door.tls import (
    RECORD_BYTES,
    TlsTransport,
    readable,
    secured,
    shake_hands,
)
from swarmtrain.foundation.control_lane import CLOSE_TIMEOUT_S
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.doorway import Greet
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Preamble, may_be_preamble

logger = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""For TLS: two round trips on the worst link, with a lost packet in each."""

ADMISSION_S = 20.0
"""From TCP's accept to the knock that is let in: TLS, ten seconds as at the door, and what a member
has to wait there that comes back too often."""

STRANGER_BYTES_MAX = limits.KNOCK_BYTES_MAX + (16 << 10)
"""Bytes that a stranger may send in all, of whatever sort: the head of a request and a knock. Any
more is not handed on, so that neither the HTTP server nor a WebSocket keeps any of it."""

WORDLESS_BYTES_MAX = limits.CONTROL_BYTES_MAX + (1 << 20)
"""Bytes of a member between two of its messages, of which the largest has CONTROL_BYTES_MAX. Empty
fragments of one that never ends take time to read, and no budget would hear of them."""

MEMBER_CONNECTIONS_MAX = 8
"""Connections of one member: its control lane, one for pieces of text, and those that have broken
and that TCP has not given up yet. The oldest goes."""

VIEWER_CONNECTIONS_MAX = 256
"""Connections of all who only look: beyond that the oldest goes. Whoever floods pushes out others
who look, and no member."""

BACKLOG = 1024
"""Connections that the system keeps until they are accepted; a flood must not push others out."""

ACCEPTS_PER_TURN = 32
"""Connections accepted before the loop gets a turn: a flood takes a millisecond at a time."""

SHORTAGE_PAUSE_S = 1.0
"""After a connection could not be accepted (no descriptor is left)."""


class Line(asyncio.Protocol):
    """One connection: passes on what it hears to the HTTP server, and knows whose it is.

    Args:
        stream: connection as it was accepted.
        serve: makes the HTTP server's side, once TLS stands: most strangers of a flood never get so
            far.
        expected: called when it has shown that it may become a member's, and waits for its turn.
        welcomed: called when it has become a member's.
        ended: called when it was a member's, and is gone.

    Attributes:
        stream: socket, which is another one once TLS begins.
        member: member whose connection it is, None before it has proved that.
        settled: set when it is a member's, or gone.
        is_wordless: True once it was ended for bytes of a member that became no message.
        is_viewer: True if its member only looks at the run's page.
    """

    def __init__(
        self,
        stream: socket.socket,
        serve: Callable[[], asyncio.Protocol],
        expected: Callable[["Line"], bool],
        welcomed: Callable[["Line", PeerId], None],
        ended: Callable[["Line", PeerId], None],
    ) -> None:
        self.member: PeerId | None = None
        self.settled = asyncio.Event()
        self.is_wordless = self.is_viewer = False
        self.stream = stream
        self._serve = serve
        self._expected, self._welcomed, self._ended = expected, welcomed, ended
        self._transport: asyncio.Transport | None = None
        self._num_bytes = 0
        self._allowed_bytes = STRANGER_BYTES_MAX

    def welcome(self, member: PeerId) -> None:
        """Count it as a stranger no more: it has proved whose it is."""
        if not self.settled.is_set():
            self.member = member
            self.settled.set()
            self._welcomed(self, member)

    def expect(self) -> bool:
        """Let it wait for its turn, as it has shown that it may come in; False if too many do."""
        return self._expected(self)

    def allow(self, num_bytes: int) -> None:
        """Let a stranger send so many bytes more than others."""
        self._allowed_bytes += num_bytes

    def heard(self) -> None:
        """Count a member's bytes anew: a message or a request of it was whole."""
        self._num_bytes = 0

    def abort(self) -> None:
        """End it now, without a goodbye."""
        if self._transport is not None:
            self._transport.abort()
            return
        # TLS is under way: its end is told by the socket, in whichever state it is.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.stream, socket.SHUT_RDWR)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS stands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._server = transport, self._serve()
        self._server.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.settled.set()
        if self.member is not None:
            self._ended(self, self.member)
        self._server.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes for the server, unless they are more than a stranger has to say, or more than a
        member's message can have."""
        self._num_bytes += len(data)
        bytes_max = self._allowed_bytes if self.member is None else WORDLESS_BYTES_MAX
        if self._num_bytes > bytes_max:
            self.is_wordless = self.member is not None
            self.abort()
            return
        self._server.data_received(data)

    def eof_received(self) -> bool | None:
        """The other side has said all."""
        return self._server.eof_received()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._server.pause_writing()

    def resume_writing(self) -> None:
        """Write again: it reads."""
        self._server.resume_writing()


def line_of(transport: asyncio.BaseTransport | None) -> Line | None:
    """The line that a request came by, None if it is gone."""
    if not isinstance(transport, asyncio.Transport) or transport.is_closing():
        return None
    found = transport.get_protocol()
    return found if isinstance(found, Line) else None


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Log of the HTTP server. The server would write a traceback for every request that it cannot
    read, and strangers send what they like: for those one line is written.
    """

    def __init__(self, repeats: Repeats) -> None:
        super().__init__(logger)
        self._repeats = repeats

    def exception(
        self, msg: object, *args: object, exc_info: object = True, **more: object
    ) -> None:
        """An exception while a request was read or answered."""
        if isinstance(exc_info, HttpProcessingError):
            self._repeats.say(logging.INFO, "http", "Somebody sent a request that cannot be read.")
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)  # type: ignore[arg-type]


class Porch:
    """Accepts connections for one HTTP server.

    Args:
        serve: makes the server's side of a connection.
        context: TLS with the run's certificate.

    Attributes:
        greet: takes a connection that begins with a preamble; False if it is nobody's.
        ended: hears that a member's connection has ended.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol], context: ssl.SSLContext) -> None:
        self.greet: Greet = lambda preamble, far: False
        self.ended: Callable[[], None] = lambda: None
        self._serve = serve
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._doorstep: Doorstep[Line] = Doorstep()
        self._heard = bytearray(RECORD_BYTES)
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._ushering: set[asyncio.Task[None]] = set()
        self._members: dict[PeerId, deque[Line]] = {}
        self._viewers: deque[Line] = deque()

    @property
    def strangers(self) -> int:
        """Number of connections that stand before the door."""
        return len(self._doorstep)

    @property
    def port(self) -> int:
        """The address that it listens at, once it does."""
        return int(self._listeners[0].getsockname()[1])

    async def open(self, host: str, port: int) -> int:
        """Listen on `host` ("" for everywhere) and `port` (0 for any); returns the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        # asyncio resolves and binds, for every address of a name; it shall not accept.
        binder = await self._loop.create_server(
            asyncio.Protocol, host or None, port, start_serving=False
        )
        self._listeners = [each.dup() for each in binder.sockets]
        binder.close()
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._accepting.append(self._loop.create_task(self._accept(listener)))
        return self.port

    async def close(self) -> None:
        """Stop listening and send strangers away; members' connections are the server's to end."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        for line in tuple(self._doorstep):
            line.abort()
        await asyncio.gather(*self._ushering)

    async def _accept(self, listener: socket.socket) -> None:
        accepted = 0
        while True:
            try:
                stream, (address, *_) = await self._loop.sock_accept(listener)
            except ConnectionError:
                continue  # it left while it waited
            except OSError as exc:
                self._loop.call_exception_handler(
                    {"message": "no connection accepted", "exception": exc, "socket": listener}
                )
                await asyncio.sleep(SHORTAGE_PAUSE_S)
                continue
            self._receive(stream, str(address))
            accepted += 1
            if accepted % ACCEPTS_PER_TURN == 0:
                await asyncio.sleep(0)  # accepting what waits does not await by itself

    def _receive(self, stream: socket.socket, address: str) -> None:
        line = Line(stream, self._serve, self._doorstep.expect, self._welcomed, self._ended)
        loser = self._doorstep.enter(line, address, self._loop.time())
        if loser is line:
            stream.close()
            return
        if loser is not None:
            loser.abort()
        ushering = self._loop.create_task(self._usher(line, stream))
        self._ushering.add(ushering)
        ushering.add_done_callback(self._ushering.discard)

    async def _usher(self, line: Line, stream: socket.socket) -> None:
        """See a stranger through TLS and to the door, or off; or to a meeting."""
        is_met = has_tls = False
        try:
            async with asyncio.timeout(ADMISSION_S):
                preamble = await self._preamble(stream)
                if preamble is not None:
                    is_met = self.greet(preamble, stream)
                    return
                line.stream = shaken = secured(stream, self._context)
                async with asyncio.timeout(HANDSHAKE_S):
                    await shake_hands(shaken)
                TlsTransport(shaken, line, self._heard, CLOSE_TIMEOUT_S)
                has_tls = True
                await line.settled.wait()
        except (OSError, RemoteFault) as exc:  # it left, spoke no TLS, or took too long
            logger.debug("a stranger did not come in: %s", exc)
        finally:
            self._doorstep.leave(line, was_let_in=is_met or line.member is not None)
            if line.member is None and not is_met:
                line.abort()
                if not has_tls:
                    line.stream.close()

    async def _preamble(self, stream: socket.socket) -> Preamble | None:
        """Look how a connection begins: None, and nothing read, if not with a preamble.

        Raises:
            RemoteFault: it begins like one, and is none.
            OSError: it has ended, or took too long.
        """
        async with asyncio.timeout(limits.PREAMBLE_S):
            first = await self._first_byte(stream)
            if not may_be_preamble(first):
                return None
            said = b""
            while len(said) < PREAMBLE_BYTES:
                more = await self._loop.sock_recv(stream, PREAMBLE_BYTES - len(said))
                if not more:
                    raise ConnectionError("it left")
                said += more
        return Preamble.decode(said)

    async def _first_byte(self, stream: socket.socket) -> bytes:
        while True:
            try:
                return stream.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                await readable(stream)

    def _welcomed(self, line: Line, member: PeerId) -> None:
        self._doorstep.leave(line, was_let_in=True)  # at once: nobody pushes it out any more
        lines = self._members.setdefault(member, deque())
        lines.append(line)
        for surplus in tuple(lines)[:-MEMBER_CONNECTIONS_MAX]:
            surplus.abort()
        if line.is_viewer:
            self._viewers.append(line)
            if len(self._viewers) > VIEWER_CONNECTIONS_MAX:
                self._viewers.popleft().abort()

    def _ended(self, line: Line, member: PeerId) -> None:
        self.ended()
        lines = self._members[member]
        lines.remove(line)
        if line in self._viewers:
            self._viewers.remove(line)
        if not lines:
            del self._members[member]

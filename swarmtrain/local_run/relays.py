"""TCP relays on loopback: links that can be cut, held in one direction, garbled, and healed, and
links with a rate and a delay.

A relay sees other people's encrypted bytes and forwards them. All relays live on one event loop on
a thread of its own, so that the caller's own waiting delays nobody.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

_HOST = "127.0.0.1"
_READ_BYTES = 1 << 16
_ANSWER_S = 10.0

_PIECE_S, _PIECE_BYTES_MIN = 0.01, 1500
"""A line takes so many seconds' worth at once, and no less than a packet."""

_QUEUE_S = 0.1
"""A line holds so many seconds' worth, as a router at its end does."""

_SYSTEM_BYTES = 1 << 16

_T = TypeVar("_T")


class Way(StrEnum):
    """A direction: towards the relay's target, or back from it."""

    THERE = "there"
    BACK = "back"


class Line:
    """One direction of somebody's link: pieces pass one after the other, and arrive later.

    Args:
        bytes_s: bytes that it carries in a second, 0 for no limit.
        delay_s: delay from one end to the other.
    """

    def __init__(self, bytes_s: float = 0.0, delay_s: float = 0.0) -> None:
        self._bytes_s, self._delay_s = bytes_s, delay_s
        self._free_s = 0.0

    @property
    def piece_bytes(self) -> int:
        """Bytes that are taken at once: as much as passes in a moment."""
        if not self._bytes_s:
            return _READ_BYTES
        return min(_READ_BYTES, max(_PIECE_BYTES_MIN, int(self._bytes_s * _PIECE_S)))

    def arrives_s(self, size: int, now_s: float) -> float:
        """Return when a piece that is given now has arrived whole."""
        self._free_s = max(now_s, self._free_s)
        if self._bytes_s:
            self._free_s += size / self._bytes_s
        return self._free_s + self._delay_s

    def wait_s(self, now_s: float) -> float:
        """Return in how many seconds it takes more: what it holds beyond that is the sender's."""
        return max(0.0, self._free_s - now_s - _QUEUE_S)


class Relay:
    """One port that leads to another. Everything but `port` is for its own loop.

    Args:
        lines: directions that take their time; several relays may share one.

    Attributes:
        port: port that others dial.
    """

    def __init__(self, lines: Mapping[Way, Line] = MappingProxyType({})) -> None:
        self.port = 0
        self._lines = lines
        self._target = 0
        self._is_cut = False
        self._is_garbled = False
        self._flows = {way: asyncio.Event() for way in Way}
        for flow in self._flows.values():
            flow.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port."""
        listener = socket.create_server((_HOST, 0))
        if self._lines:  # what the system held on the way would come beside the line's own queue
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SYSTEM_BYTES)
        self._server = await asyncio.start_server(self._take, sock=listener)
        self.port = self._server.sockets[0].getsockname()[1]

    def aim(self, port: int) -> None:
        """Lead new connections to this port from now on; 0 for nowhere."""
        self._target = port

    def cut(self) -> None:
        """End all connections, and every new one at once."""
        self._is_cut = True
        self._abort_all()

    def hold(self, *ways: Way) -> None:
        """Let nothing pass in these directions; connections stay open, as on a silent link."""
        for way in ways:
            self._flows[way].clear()

    def garble(self) -> None:
        """Change a byte of every piece that passes towards the target."""
        self._is_garbled = True

    def heal(self) -> None:
        """All is well again; what was held goes on."""
        self._is_cut = self._is_garbled = False
        for flow in self._flows.values():
            flow.set()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        self._abort_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            # Ends this connection alone: with an error as on a broken link, or because we close.
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut or not self._target:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(_HOST, self._target)
        self._writers.add(far_writer)
        try:
            if self._is_cut:
                raise ConnectionAbortedError("cut while it was being opened")
            pumps = [
                asyncio.create_task(self._pump(reader, far_writer, Way.THERE)),
                asyncio.create_task(self._pump(far_reader, writer, Way.BACK)),
            ]
            try:
                await asyncio.gather(*pumps)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            far_writer.close()
        except BaseException:  # a cancelled task too: its far end hears of it at once
            far_writer.transport.abort()
            raise
        finally:
            self._writers.discard(far_writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        """Forward until the end of the stream, and then the end itself."""
        line = self._lines.get(way)
        if line is not None:
            await self._pump_by(line, reader, writer, way)
        else:
            while data := await reader.read(_READ_BYTES):
                await self._pass(data, writer, way)
        await self._flows[way].wait()
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    async def _pump_by(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        """Pass data on as fast and as late as the line lets it through."""
        now_s = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while (piece := await under_way.get())[1]:
                await asyncio.sleep(piece[0] - now_s())
                await self._pass(piece[1], writer, way)

        arriving = asyncio.create_task(arrive())
        try:
            while (data := await reader.read(line.piece_bytes)) and not arriving.done():
                under_way.put_nowait((line.arrives_s(len(data), now_s()), data))
                await asyncio.sleep(line.wait_s(now_s()))
            under_way.put_nowait((0.0, b""))
            await arriving
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, way: Way) -> None:
        await self._flows[way].wait()
        writer.write(_garbled(data) if self._is_garbled and way is Way.THERE else data)
        await writer.drain()


def _garbled(data: bytes) -> bytes:
    """Change the last byte of data: it is in the middle of a ciphertext, not in a length."""
    return data[:-1] + bytes((data[-1] ^ 0x10,))


class Relays:
    """Relays on a thread of their own; the methods here may be called from any other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[Relay] = []
        self._thread = threading.Thread(target=self._run, name="relays", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def add(self, lines: Mapping[Way, Line] = MappingProxyType({})) -> Relay:
        """A new relay that leads nowhere yet.

        Raises:
            OSError: no port is free.
        """

        async def make() -> Relay:
            relay = Relay(lines)
            await relay.open()
            return relay

        relay = self._wait(make())
        self._relays.append(relay)
        return relay

    def call(self, act: Callable[..., None], *words: int | Way) -> None:
        """Have one of the relays act, on their own thread."""
        self._loop.call_soon_threadsafe(act, *words)

    def close(self) -> None:
        """End all connections and the thread. Closing twice is allowed."""
        if not self._thread.is_alive():
            return
        for relay in self._relays:
            self._wait(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ANSWER_S)

    def _wait(self, work: Coroutine[object, object, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)

"""TCP relays on loopback: links that can be cut, held in one direction, garbled, and healed.

A relay sees other people's encrypted bytes and forwards them. All relays live on one event loop on
a thread of its own, so that the caller's own waiting delays nobody.
"""

import asyncio
import threading
from collections.abc import Coroutine
from enum import StrEnum
from typing import TypeVar

_HOST = "127.0.0.1"
_READ_BYTES = 1 << 16
_ANSWER_S = 10.0

_T = TypeVar("_T")


class Way(StrEnum):
    """A direction: towards the relay's target, or back from it."""

    THERE = "there"
    BACK = "back"


class Relay:
    """One port that leads to another. Everything but `port` is for its own loop.

    Attributes:
        port: what others dial.
    """

    def __init__(self) -> None:
        self.port = 0
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
        self._server = await asyncio.start_server(self._take, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def aim(self, port: int) -> None:
        """From now on new connections lead to this port; 0 for nowhere."""
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
        except BaseException:
            far_writer.transport.abort()
            raise
        finally:
            self._writers.discard(far_writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        """Forward until the end of the stream, and then the end itself."""
        while data := await reader.read(_READ_BYTES):
            await self._flows[way].wait()
            writer.write(_garbled(data) if self._is_garbled and way is Way.THERE else data)
            await writer.drain()
        await self._flows[way].wait()
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()


def _garbled(data: bytes) -> bytes:
    """The same with its last byte changed: in the middle of what is encrypted, not in a length."""
    return data[:-1] + bytes((data[-1] ^ 0x10,))


class Relays:
    """All relays of one chaos, on a thread of their own. Its methods may be called from another."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[Relay] = []
        self._thread = threading.Thread(target=self._run, name="relays", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def add(self) -> Relay:
        """A new relay that leads nowhere yet.

        Raises:
            OSError: no port is free.
        """

        async def make() -> Relay:
            relay = Relay()
            await relay.open()
            return relay

        relay = self._wait(make())
        self._relays.append(relay)
        return relay

    def aim(self, relay: Relay, port: int) -> None:
        """See Relay."""
        self._loop.call_soon_threadsafe(relay.aim, port)

    def cut(self, relay: Relay) -> None:
        """See Relay."""
        self._loop.call_soon_threadsafe(relay.cut)

    def hold(self, relay: Relay, *ways: Way) -> None:
        """See Relay."""
        self._loop.call_soon_threadsafe(relay.hold, *ways)

    def garble(self, relay: Relay) -> None:
        """See Relay."""
        self._loop.call_soon_threadsafe(relay.garble)

    def heal(self, relay: Relay) -> None:
        """See Relay."""
        self._loop.call_soon_threadsafe(relay.heal)

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

"""TLS over a socket: all arrives, a slow reader holds the writer back, an end is told once."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swarmtrain.coordinator.disk.certificate import KeyFiles, load_or_create
from swarmtrain.coordinator.door import tls
from swarmtrain.coordinator.door.tls import TlsTransport
from tests.coordinator.rig import WALL_S, run

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
LARGE = bytes(range(256)) * (4 << 12)
"""More than the system's buffers take."""


class Told(asyncio.Protocol):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.data, self.events = b"", list[str]()
        self.lost = asyncio.Event()
        self.paused, self.resumed = asyncio.Event(), asyncio.Event()
        self.errors: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.paused.set()

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.errors.append(exc)
        self.lost.set()


@asynccontextmanager
async def joined(
    directory: Path, close_s: float = 5.0
) -> AsyncIterator[tuple[TlsTransport, Told, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Our end with its protocol, and the other one."""
    loop = asyncio.get_running_loop()
    keys = load_or_create(KeyFiles(directory), may_create=True, wall_s=WALL_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        coming = asyncio.create_task(
            asyncio.open_connection(*listener.getsockname(), ssl=TRUSTING, limit=1 << 16)
        )
        stream, _ = await loop.sock_accept(listener)
    ours = tls.secured(stream, keys.server_context())
    await tls.shake_hands(ours)
    told = Told()
    transport = TlsTransport(ours, told, bytearray(tls.RECORD_BYTES), close_s)
    reader, writer = await coming
    try:
        yield transport, told, reader, writer
    finally:
        transport.abort()
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
        await told.lost.wait()
        assert told.events.count("lost") == 1 and ours.fileno() < 0


async def until(what: Told, num_bytes: int) -> None:
    while len(what.data) < num_bytes:
        await asyncio.sleep(0)


def test_what_one_says_the_other_hears(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined(tmp_path) as (transport, told, reader, writer):
            transport.write(b"ho")
            transport.writelines([b"w ", bytearray(b"are"), memoryview(b" you")])
            assert await reader.readexactly(11) == b"how are you"
            writer.write(LARGE)
            await until(told, len(LARGE))
            assert told.data == LARGE
            assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")
            assert transport.get_extra_info("sockname") == writer.get_extra_info("peername")

    run(scene())


def test_who_does_not_read_pauses_the_writer_and_gets_all_in_the_end(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined(tmp_path) as (transport, told, reader, _):
            transport.write(LARGE)
            transport.write(b"end")
            assert told.paused.is_set() and transport.get_write_buffer_size() > tls.HIGH_BYTES
            assert await reader.readexactly(len(LARGE)) == LARGE
            assert await reader.readexactly(3) == b"end"
            await told.resumed.wait()
            assert not transport.get_write_buffer_size()

    run(scene())


def test_what_is_said_last_arrives_though_the_other_side_goes_on_talking(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined(tmp_path) as (transport, told, reader, writer):
            writer.write(LARGE)
            transport.write(LARGE + b"goodbye")
            transport.close()
            transport.close()
            assert transport.is_closing() and not transport.is_reading()
            assert (await reader.read(-1)) == LARGE + b"goodbye"
            writer.close()
            await told.lost.wait()
            assert told.errors == [None]
            transport.write(b"nobody hears this")

    run(scene())


def test_who_never_says_goodbye_is_waited_for_so_long(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined(tmp_path, close_s=0.05) as (transport, told, _, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            transport.write(LARGE)
            transport.close()
            await told.lost.wait()

    run(scene())


@pytest.mark.parametrize("politely", [True, False])
def test_the_other_sides_end_is_told(tmp_path: Path, politely: bool) -> None:
    async def scene() -> None:
        async with joined(tmp_path) as (transport, told, _, writer):
            if politely:
                writer.close()
            else:
                writer.transport.abort()
            await told.lost.wait()
            assert transport.is_closing() and told.events[-1] == "lost"

    run(scene())


def test_nothing_is_read_while_reading_is_paused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined(tmp_path) as (transport, told, reader, writer):
            transport.pause_reading()
            writer.write(b"wait")
            transport.write(b"x")
            await reader.readexactly(1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not told.data
            transport.resume_reading()
            await until(told, 4)
            assert told.data == b"wait"

    run(scene())

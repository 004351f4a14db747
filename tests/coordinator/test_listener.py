"""Before the door, over real sockets: who never comes in costs little, and nobody their place."""

import asyncio
import contextlib
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from swarmtrain.coordinator.door import admission
from swarmtrain.coordinator.door import listener as porch
from swarmtrain.coordinator.door.admission import STRANGERS_PER_NETWORK
from swarmtrain.foundation.control_lane import PEER_HEADER, SIGNATURE_HEADER, piece_payload
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.messages import Have
from tests.coordinator.rig import Rig, connected, run, serving

ALICE = Identity.create()
CROWD = 400
TRUSTING = ssl.create_default_context()
UPGRADE = (
    b"GET /control HTTP/1.1\r\nHost: run\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


@pytest.fixture
def tls_made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the TLS connections that exist, of whichever state: each takes a tenth of a MB."""
    made: list[ssl.SSLSocket] = []
    real = ssl.SSLContext.wrap_socket

    def wrap_socket(context: ssl.SSLContext, *rest: object, **more: object) -> ssl.SSLSocket:
        made.append(real(context, *rest, **more))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap_socket)
    return lambda: len(made)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # nothing tells of it; `run` bounds it
        await asyncio.sleep(0.002)


@asynccontextmanager
async def half_open(
    rig: Rig, count: int, source: str = "127.0.0.1"
) -> AsyncIterator[list[socket.socket]]:
    """Connections that say nothing."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as held:
        lines = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.bind((source, 0))
            await loop.sock_connect(one, ("127.0.0.1", rig.port))
            lines.append(one)
        yield lines


async def is_cut(line: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(line, 1) == b""
    except ConnectionError:
        return True


def test_a_flood_of_silent_connections_is_bounded_and_keeps_nobody_out(
    tmp_path: Path, tls_made: Callable[[], int]
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, half_open(rig, CROWD) as lines:
            await until(lambda: rig.porch.strangers == STRANGERS_PER_NETWORK)
            assert tls_made() <= admission.ARRIVALS_AT_ONCE + 20
            # Who comes from another address gets in at once.
            connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0), ssl=False)
            async with aiohttp.ClientSession(connector=connector) as session:
                url = f"https://127.0.0.1:{rig.port}/control"
                async with session.ws_connect(url) as door:
                    await door.receive_bytes()
                    assert rig.porch.strangers == STRANGERS_PER_NETWORK + 1
            for line in lines[:STRANGERS_PER_NETWORK]:
                assert await is_cut(line)

    run(scene())


def test_a_connection_before_the_door_takes_a_tenth_of_a_megabyte(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            tracemalloc.start()
            try:
                async with half_open(rig, STRANGERS_PER_NETWORK):
                    await until(lambda: rig.porch.strangers == STRANGERS_PER_NETWORK)
                    await asyncio.sleep(0)
                    peak = tracemalloc.get_traced_memory()[1]
                assert peak < STRANGERS_PER_NETWORK * 100_000
            finally:
                tracemalloc.stop()

    run(scene())


def test_a_flood_goes_on_and_the_members_of_the_same_address_stay(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            assert rig.porch.strangers == 0
            async with half_open(rig, CROWD):
                await until(lambda: rig.porch.strangers == STRANGERS_PER_NETWORK)
                assert client.is_up and rig.machine.heard.qsize() == 1
            await until(lambda: rig.porch.strangers == 0)

    run(scene())


def test_a_handshake_that_does_not_come_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porch, "HANDSHAKE_S", 0.05)

    async def scene() -> None:
        async with serving(tmp_path) as rig, half_open(rig, 3) as lines:
            await lines_are_cut(lines)
            assert rig.porch.strangers == 0

    run(scene())


async def lines_are_cut(lines: list[socket.socket]) -> None:
    for line in lines:
        assert await is_cut(line)


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost: swarm"])
def test_who_shakes_hands_and_never_finishes_a_request_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            monkeypatch.setattr(porch, "ADMISSION_S", 0.2)
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=TRUSTING)
            writer.write(said)
            await reader.readline()
            writer.close()
            await until(lambda: rig.porch.strangers == 0)
            assert client.is_up

    run(scene())


def test_who_never_knocks_is_cut_though_the_line_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porch, "ADMISSION_S", 0.3)

    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{rig.port}/control"
            async with session.ws_connect(url, ssl=False) as door:
                await door.receive_bytes()
                assert (await door.receive()).type is not aiohttp.WSMsgType.BINARY
            await until(lambda: rig.porch.strangers == 0)

    run(scene())


def test_who_only_asks_how_it_is_gets_one_answer_per_connection(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            for path in ("/livez", "/control", "/nothing"):
                url = f"https://127.0.0.1:{rig.port}{path}"
                async with session.get(url, ssl=False) as answer:
                    await answer.read()
                    assert answer.headers.get("Connection") == "close"
            await until(lambda: rig.porch.strangers == 0)

    run(scene())


def test_the_connections_of_one_member_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porch, "MEMBER_CONNECTIONS_MAX", 3)

    async def scene() -> None:
        async with serving(tmp_path) as rig, contextlib.AsyncExitStack() as held:
            rig.machine.members.add(ALICE.peer_id)
            signature = ALICE.sign(piece_payload(rig.keys.cert_sha256, bytes(32)))
            headers = {PEER_HEADER: ALICE.peer_id.hex(), SIGNATURE_HEADER: signature.hex()}
            url = f"https://127.0.0.1:{rig.port}/piece/{bytes(32).hex()}"
            for _ in range(8):
                session = await held.enter_async_context(aiohttp.ClientSession())
                async with session.get(url, headers=headers, ssl=False) as answer:
                    assert answer.status == 404 and "Connection" not in answer.headers
            (lines,) = rig.porch._members.values()
            await until(lambda: len(lines) == 3)
            assert rig.porch.strangers == 0
            await held.aclose()
            await until(lambda: not rig.porch._members)

    run(scene())


def test_strangers_are_sent_away_when_the_coordinator_stops(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, half_open(rig, 5) as lines:
            await until(lambda: rig.porch.strangers == 5)
            await rig.porch.close()
            await lines_are_cut(lines)
            assert rig.porch.strangers == 0

    run(scene())


class Closed(asyncio.Transport):
    """As a transport that was closed."""

    def is_closing(self) -> bool:
        return True


def test_a_request_whose_line_has_closed_meanwhile_has_none() -> None:
    assert porch.line_of(Closed()) is None
    assert porch.line_of(None) is None


@pytest.mark.parametrize("path", [b"/control", b"/check"])
def test_who_has_left_before_it_is_answered_leaves_no_traceback(
    tmp_path: Path, path: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(self: web.WebSocketResponse) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    async def scene() -> None:
        async with serving(tmp_path) as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=TRUSTING)
            writer.write(UPGRADE.replace(b"/control", path))
            await reader.readline()
            writer.close()

    monkeypatch.setattr(web.WebSocketResponse, "_write_headers", gone)
    run(scene())
    assert not [one for one in caplog.records if one.exc_info]


def test_requests_that_cannot_be_read_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            for number in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=TRUSTING)
                writer.write(b"GET /%d HTTP/9.9\r\n\r\n" % number)
                assert (await reader.read()).startswith(b"HTTP/1.0 400")
                writer.close()

    with caplog.at_level(logging.INFO):
        run(scene())
    told = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert [record.getMessage() for record in told] == [
        "Somebody sent a request that cannot be read."
    ]
    assert not any(record.exc_info for record in told)


FRAME = b"\x82\xff" + (4 << 20).to_bytes(8, "big") + bytes(4)
"""The head of a WebSocket message of 4 MiB."""

LARGE = {
    "a message": (b"", FRAME),
    "a message in parts": (b"", (b"\x02\xfe\x03\xe8" + bytes(4) + bytes(1000))),
    "headers": (b"GET /control HTTP/1.1\r\n", b"X-A: " + b"a" * 500 + b"\r\n"),
    "a body": (b"POST /control HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n", b"a" * 1000),
    "requests": (b"", b"GET /livez HTTP/1.1\r\n\r\n"),
}


@pytest.mark.parametrize("large", LARGE)
def test_a_stranger_that_sends_much_is_cut_before_anything_of_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    handed: list[int] = []
    first, more = LARGE[large]
    real = RequestHandler.data_received

    def data_received(self: RequestHandler, data: bytes) -> None:
        handed.append(len(data))
        real(self, data)

    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            handed.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=TRUSTING)
            if not first:
                writer.write(UPGRADE)
                await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                for _ in range(20_000):
                    writer.write(more if large != "a message" or not handed else bytes(1000))
                    await writer.drain()
            await until(lambda: rig.porch.strangers == 0)
            writer.close()
            assert client.is_up and sum(handed) <= porch.STRANGER_BYTES_MAX

    monkeypatch.setattr(RequestHandler, "data_received", data_received)
    run(scene())


def test_who_has_come_in_may_send_what_a_stranger_may_not(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            large = Have(1, 0, 0, 1, (True,) * (3 * porch.STRANGER_BYTES_MAX))
            assert client.send(large)
            assert (await rig.machine.hears("received"))[2] == large

    run(scene())

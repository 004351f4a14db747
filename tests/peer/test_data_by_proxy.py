"""A peer behind a proxy takes its part in meetings by CONNECT, to relays and to peers."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from swarmtrain.peer.network import meetings
from swarmtrain.peer.network.proxy import Proxy, connect_through
from swarmtrain_transport.links.dialler import Dialler
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Preamble, Side, Way
from swarmtrain_transport.wire.messages import Meet, Met
from tests.coordinator.rig import run
from tests.peer.connect_proxy import PASSWORD, proxying

OTHER, TOKEN = b"o" * 32, b"t" * 32


class Taker:
    """The link's part: takes one connection to hear by."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[socket.socket] = asyncio.Queue()

    def adopt(self, far: socket.socket, ended: Callable[[], None]) -> None:
        self.taken.put_nowait(far)

    def ways(self) -> dict[bytes, Way | None]:
        return {}

    def part(self, token: bytes) -> None: ...


def dialler_by(
    proxy: Proxy, taker: Any, tell: Callable[[Met], None], home: tuple[str, int]
) -> Dialler:
    def detour(there: tuple[str, int]) -> Callable[[], Awaitable[socket.socket]]:
        return partial(connect_through, proxy, *there)

    return Dialler(asyncio.get_running_loop(), taker, lambda: home, tell, detour)


def test_a_relay_is_reached_by_the_proxy_also_the_coordinator_s_own() -> None:
    async def scene() -> None:
        said: asyncio.Queue[bytes] = asyncio.Queue()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said.put_nowait(await reader.readexactly(PREAMBLE_BYTES))
            writer.write(b"\xff")
            await reader.read()
            writer.transport.abort()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, proxying() as proxy:
            taker, told = Taker(), []
            dialler = dialler_by(proxy.proxy, taker, told.append, ("127.0.0.1", port))
            for host, to in (("127.0.0.1", port), ("", 0)):
                dialler.meet(Meet(TOKEN, OTHER, False, Way.RELAYED, host, to))
                assert await said.get() == Preamble(Side.RECEIVER, TOKEN).encode()
                with await taker.taken.get() as far:
                    assert await asyncio.get_running_loop().sock_recv(far, 9) == b"\xff"
            assert told == [] and len(proxy.heads) == 2
            assert all(head.startswith(f"CONNECT 127.0.0.1:{port} ") for head in proxy.heads)
            dialler.close()

    run(scene())


def test_what_a_proxy_refuses_fails_at_once_and_nothing_is_punched() -> None:
    async def scene() -> None:
        async with proxying(b"HTTP/1.1 403 Forbidden\r\n\r\n") as proxy:
            told: asyncio.Queue[Met] = asyncio.Queue()
            dialler = dialler_by(proxy.proxy, Taker(), told.put_nowait, ("127.0.0.1", 9))
            for way, host, port in ((Way.RELAYED, "192.0.2.7", 443), (Way.PUNCHED, "", 0)):
                dialler.meet(Meet(TOKEN, OTHER, False, way, host, port))
                met = await told.get()
                assert not met.is_up and PASSWORD not in met.reason
            assert len(proxy.heads) == 1
            dialler.close()

    run(scene())


def test_the_proxy_is_the_environment_s(monkeypatch: Any) -> None:
    for name in ("https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    assert meetings._by_proxy(("192.0.2.7", 443)) is not None
    assert meetings._by_proxy(("127.0.0.1", 443)) is None

"""A punch whose time is up leaves nothing behind: no dial that goes on, and no connection."""

import asyncio
import socket
from typing import Any

from swarmtrain_transport.links.dialler import Dialler
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Way
from swarmtrain_transport.wire.messages import Meet
from tests.coordinator.rig import run

OTHER, TOKEN = b"o" * 32, b"t" * 32


class NoLink:
    """Link that no connection ever comes to."""

    def ways(self) -> dict[bytes, Way | None]:
        return {}

    def part(self, token: bytes) -> None: ...


def silent() -> tuple[socket.socket, list[socket.socket]]:
    """A listener whose queue is full, so that a further SYN is not answered."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
        waiting.append(one)
    return listener, waiting


def test_a_dial_under_way_ends_with_its_punch() -> None:
    async def scene() -> None:
        heard: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: heard.append(what))
        mirror = socket.create_server(("127.0.0.1", 0))
        mirror.setblocking(False)
        listener, waiting = silent()
        link: Any = NoLink()
        dialler = Dialler(loop, link, lambda: mirror.getsockname(), lambda met: None)
        dialler.meet(Meet(TOKEN, OTHER, True, Way.PUNCHED, "", 0))
        shown, _ = await loop.sock_accept(mirror)
        assert len(await loop.sock_recv(shown, PREAMBLE_BYTES)) == PREAMBLE_BYTES
        before = asyncio.all_tasks()
        dialler.meet(Meet(TOKEN, OTHER, True, Way.PUNCHED, *listener.getsockname()))
        while len(asyncio.all_tasks() - before) < 3:  # the punch, its dial, and who hears one
            await asyncio.sleep(0)
        begun = asyncio.all_tasks() - before
        dialler.part(TOKEN)
        async with asyncio.timeout(10):
            await asyncio.wait(begun)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not heard
        for one in (mirror, shown, listener, *waiting):
            one.close()

    run(scene())

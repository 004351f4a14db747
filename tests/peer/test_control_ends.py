import asyncio
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from swarmtrain.peer.network.control import DoorRefused
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import Refused, encode
from tests.coordinator.rig import Listener, client_of, run, scripted

ALICE = Identity.create()


def test_a_connection_ends_with_the_client_though_the_server_never_says_goodbye(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        done = asyncio.Event()

        async def handler(request: web.Request) -> web.WebSocketResponse:
            answer = web.WebSocketResponse()
            await answer.prepare(request)
            await answer.send_bytes(encode(Refused("SWT-E311", "spent")))
            await answer._writer.close()  # type: ignore[union-attr]
            # From here on this end reads nothing: TLS's own closing message stays unanswered.
            request.transport._ssl_protocol._transport.pause_reading()  # type: ignore[union-attr]
            await done.wait()
            return answer

        def connections_to(port: int) -> list[object]:
            lines = psutil.Process().net_connections("tcp")
            return [line for line in lines if line.raddr and line.raddr.port == port]

        async with scripted(tmp_path, handler) as (invite, _):
            with pytest.raises((DoorRefused, RemoteFault)):
                await client_of(invite, ALICE, Listener()).run()
            assert connections_to(invite.port) == []
            done.set()

    run(scene())

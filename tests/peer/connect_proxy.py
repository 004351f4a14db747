"""A web proxy on loopback that knows CONNECT."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from swarmtrain.peer.network.proxy import Proxy

PASSWORD = "horse battery"
AUTHORIZATION = "Basic b3R0ZXI6aG9yc2UgYmF0dGVyeQ=="


@dataclass
class ConnectProxy:
    """Passes bytes on, answers with `says` and closes, or says nothing.

    Attributes:
        heads: heads of all requests.
        to: port on loopback to which each connection leads, 0 for the one that is asked for.
    """

    says: bytes = b""
    to: int = 0
    is_silent: bool = False
    heads: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def proxy(self) -> Proxy:
        return Proxy.parse(self.url)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            if self.is_silent:
                await reader.read()
            if self.says:
                writer.write(self.says)
                await writer.drain()
                return
            host, _, port = head.split()[1].rpartition(":")
            back, out = await asyncio.open_connection(host, self.to or int(port))
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                await asyncio.gather(_pump(reader, out), _pump(back, writer))
            finally:
                out.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def proxying(
    says: bytes = b"", *, to: int = 0, is_silent: bool = False
) -> AsyncIterator[ConnectProxy]:
    """A proxy that is there; its users have a password."""
    made = ConnectProxy(says, to, is_silent)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await made.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"http://otter:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}"
    try:
        yield made
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

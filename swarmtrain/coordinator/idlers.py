"""Connections that open and then ask for nothing: each takes memory and a descriptor.

The door judges who knocks; this is for those who never do. A connection has IDLE_TIMEOUT_S from
its TLS handshake to its first whole request, however slowly that trickles in; once it has asked,
the HTTP server's own limits and the door's hold.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Hashable)

IDLE_TIMEOUT_S = 10.0
"""Time for a first request: two round trips on the worst link, as at the door."""

SWEEP_S = 5.0
"""How often idle connections are looked for."""


class Idlers:
    """Which connections are to be cut. They are keys here, forgotten soon after their end."""

    def __init__(self) -> None:
        self._since_s: dict[Hashable, float] = {}
        self._asked: set[Hashable] = set()

    def asked(self, connection: Hashable) -> None:
        """A whole request came."""
        self._asked.add(connection)

    def overdue(self, connections: Collection[C], now_s: float) -> list[C]:
        """Those of the open connections that were seen IDLE_TIMEOUT_S ago and never asked."""
        self._asked &= set(connections)
        silent = [connection for connection in connections if connection not in self._asked]
        self._since_s = {each: self._since_s.get(each, now_s) for each in silent}
        return [each for each in silent if now_s - self._since_s[each] >= IDLE_TIMEOUT_S]

    @web.middleware
    async def notice(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: every request says that its connection asks."""
        self.asked(request.protocol)
        return await handler(request)

    def cut(self, server: web.Server | None, now_s: float) -> int:
        """End overdue connections of a server; the answer is how many."""
        overdue = self.overdue(server.connections if server is not None else (), now_s)
        for connection in overdue:
            if connection.transport is not None:
                connection.transport.abort()
        if overdue:
            logger.info("%d connections asked for nothing: cut off", len(overdue))
        return len(overdue)

    @contextlib.asynccontextmanager
    async def watched(
        self, runner: web.AppRunner, clock: Callable[[], float]
    ) -> AsyncIterator[None]:
        """While inside, the runner's idle connections are looked for and cut."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_S)
                self.cut(runner.server, clock())

        sweeping = asyncio.create_task(sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping

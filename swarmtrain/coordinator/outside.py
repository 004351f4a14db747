"""The host and port by which others reach the coordinator, as invites name them.

Given by the organiser, else forwarded by a router that was asked, else this machine's own.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

from swarmtrain.port_mapping.mapper import Mapper, families
from swarmtrain_transport.wire.messages import Place

ROUTE_PROBE = ("192.0.2.1", 9)
"""An address that belongs to nobody (RFC 5737): asking for the route to it sends nothing."""

SETTLE_S = 60.0
"""Longest wait for a router; all protocols together take 45 s."""


class Outside:
    """The address in the run's invites.

    Args:
        listening: host that the coordinator listens at.
        host: host that the organiser gave, "" for none.
        port: port that the organiser gave, 0 for none.
        tell: hears what the organiser must know.
        maps: True to ask the router for a port.
    """

    def __init__(
        self, listening: str, host: str, port: int, tell: Callable[[str], None], *, maps: bool
    ) -> None:
        self._listening = listening
        self._given = host, port
        self._own_port = 0
        self._tell = tell
        self._maps = maps
        self._mapper: Mapper | None = None
        self._announced: tuple[str, int] | None = None

    def begin(self, port: int) -> None:
        """Note the port that is listened at, and ask the router if that is wished."""
        self._own_port = port
        if self._maps:
            listens_in = families(self._listening, ("",))
            self._mapper = Mapper(port, self._changed, versions=listens_in)
            self._mapper.start()

    async def settle(self, stop: asyncio.Event) -> None:
        """Wait until the router has answered, or `stop` is set."""
        if self._mapper is None:
            return
        self._tell("Asking the router to forward a port.")
        waits = [asyncio.ensure_future(self._mapper.decided()), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(waits, timeout=SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._announced = self.address

    async def close(self) -> None:
        """Give the router's port back."""
        if self._mapper is not None:
            await self._mapper.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for an invite."""
        host, port = self._given
        if (place := self._mapped()) is not None:
            return host or place.host, port or place.port
        return host or reachable_host(self._listening), port or self._own_port

    def _mapped(self) -> Place | None:
        return next(iter(self._mapper.places()), None) if self._mapper is not None else None

    def _changed(self) -> None:
        before, now = self._announced, self.address
        if before is None or now == before or self._mapped() is None:
            return
        self._announced = now
        self._tell(
            f"Others reach this coordinator at {now[0]} port {now[1]} now. Invites of before name "
            f"{before[0]} port {before[1]}: put the new ones in their place there, the rest stays."
        )


def reachable_host(host: str) -> str:
    """Choose the host that an invite names when no public host is given.

    A listening address as it is; for "everywhere" the address by which this machine reaches
    other networks, or its name when it reaches none.
    """
    if host not in ("", "0.0.0.0", "::", "*"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ROUTE_PROBE)
            found: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return socket.gethostname() if ipaddress.ip_address(found).is_unspecified else found

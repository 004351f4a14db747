"""One try to open a connection to a peer's data port, from where the coordinator is.

Peers open connections to each other, and a peer that none of them reaches should hear of it before
they have all waited for it. The try must be of no use to anybody who scans a network or floods one:
only the address that the peer itself comes from is tried, once for each of its addresses and
processes and once a minute at most, a few at a time, and not a byte is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId

DIAL_S = 5.0
"""A connection that is not there by then will be of no use to a peer."""

DIAL_AGAIN_S = 60.0
"""Shortest pause between two tries for one key, whatever addresses it tells."""

DIALS_AT_ONCE = 8
DIALLED_KEPT = 4 * limits.RUN_PEERS_MAX
"""Keys whose last try is remembered: four times as many as may be in a run."""


class Place(NamedTuple):
    """One process of a peer and the address that it tells."""

    boot: bytes
    host: str
    port: int


class Dialler:
    """Try the addresses of peers as they come in.

    Args:
        clock: Monotonic seconds.
        again_s: shortest pause between two tries for one key.
        opens: Opens and closes a connection; raises OSError or TimeoutError if it cannot.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        opens: Callable[[str, int], Awaitable[None]] | None = None,
        *,
        again_s: float = DIAL_AGAIN_S,
    ) -> None:
        self._clock = clock
        self._again_s = again_s
        self._opens = opens or _open
        self._under_way = 0
        self._tried: dict[PeerId, tuple[Place, float]] = {}

    @property
    def num_under_way(self) -> int:
        """Number of tries under way."""
        return self._under_way

    def wants(self, peer: PeerId, place: Place, remote: str) -> bool:
        """Return True if a peer's address is to be tried now; then it counts as tried."""
        now_s = self._clock()
        known, tried_s = self._tried.get(peer, (None, -self._again_s))
        if place.host != remote or known == place or now_s < tried_s + self._again_s:
            return False
        if self._under_way >= DIALS_AT_ONCE:
            return False
        self._tried.pop(peer, None)
        self._tried[peer] = (place, now_s)
        if len(self._tried) > DIALLED_KEPT:
            del self._tried[next(iter(self._tried))]
        return True

    async def reaches(self, place: Place) -> bool:
        """Return True if a connection to the address could be opened."""
        self._under_way += 1
        try:
            async with asyncio.timeout(DIAL_S):
                await self._opens(place.host, place.port)
        except (OSError, TimeoutError):
            return False
        finally:
            self._under_way -= 1
        return True


async def _open(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()

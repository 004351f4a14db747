"""Tries of the ports that routers are said to forward to peers, which are told what came of them.

A router may say yes and forward nothing, and the peer, inside, cannot see that. As with any try of
the coordinator's only the address that a peer comes from is dialled, once a minute and key.
"""

import asyncio
from collections.abc import Callable, Iterable

from swarmtrain.coordinator.door.dialler import (
    DIAL_AGAIN_S,
    DIAL_S,
    DIALLED_KEPT,
    DIALS_AT_ONCE,
    Dialler,
    Place,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as say

LOOK_AGAIN_S = 600.0
"""Pause after a try that succeeded: a router may forget later."""

Tell = Callable[[say.Tried], object]


class MappedPorts:
    """Tries them, for each peer that is here.

    Args:
        dialler: opens connections, so many at once.
        clock: monotonic seconds.
    """

    def __init__(self, dialler: Dialler, clock: Callable[[], float]) -> None:
        self._dialler = dialler
        self._clock = clock
        self._here: dict[PeerId, tuple[str, Tell]] = {}
        self._trying: dict[PeerId, asyncio.Task[None]] = {}
        self._tried_s: dict[PeerId, float] = {}

    def came(self, peer: PeerId, remote: str, tell: Tell) -> None:
        """Note a peer's connection: its address, and how to tell it."""
        self.gone(peer)
        self._here[peer] = remote, tell

    def gone(self, peer: PeerId) -> None:
        """Forget it."""
        self._here.pop(peer, None)
        if (task := self._trying.pop(peer, None)) is not None:
            task.cancel()

    def heard(self, peer: PeerId, places: Iterable[say.Place]) -> None:
        """Take in a peer's places, and try the first mapped one that is where it comes from."""
        remote, tell = self._here.get(peer, ("", None))
        if (task := self._trying.pop(peer, None)) is not None:
            task.cancel()
        place = next((one for one in places if one.kind == "mapped" and one.host == remote), None)
        if place is not None and tell is not None:
            self._trying[peer] = asyncio.create_task(self._try(peer, place, tell))

    async def _try(self, peer: PeerId, place: say.Place, tell: Tell) -> None:
        pause_s = 0.0
        while True:
            again_s = self._tried_s.get(peer, -DIAL_AGAIN_S) + DIAL_AGAIN_S
            await asyncio.sleep(max(pause_s, again_s - self._clock()))
            if self._dialler.num_under_way >= DIALS_AT_ONCE:
                pause_s = DIAL_S
                continue
            self._tried_s.pop(peer, None)
            self._tried_s[peer] = self._clock()
            if len(self._tried_s) > DIALLED_KEPT:
                del self._tried_s[next(iter(self._tried_s))]
            is_open = await self._dialler.reaches(Place(b"", place.host, place.port))
            tell(say.Tried(place.host, place.port, is_open))
            pause_s = LOOK_AGAIN_S if is_open else DIAL_AGAIN_S

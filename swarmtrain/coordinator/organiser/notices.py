"""Notices to the organiser and to the peers that tell what a stalled run waits for.

Only what has stood for a while is said: a peer that blinks, or a round that is about to be planned,
is no news.
"""

import asyncio
import time
from collections.abc import Callable

from swarmtrain.coordinator.shell import Addresses, Shell
from swarmtrain.status import waiting_words
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.chronicle import APART
from swarmtrain_transport.coordinator.status import CoordinatorStatus

STANDS_S = 5.0
"""A reason is said when it has stood for so long: the failure detector's moments are shorter."""

LOOK_S = 1.0


class Notices:
    """Remembers which reason was said last.

    Args:
        tell: hears sentences for the organiser.

    Attributes:
        said: reason that was said last, "" while the run goes on.
        seen_s: seconds since that was here, if that is known.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._text = self.said = ""
        self.seen_s: float | None = None
        self._since_s = 0.0
        self._apart: set[tuple[int, str]] = set()

    def _tell_apart(self, status: CoordinatorStatus) -> None:
        """Tell whose contributions have become unlike the others'."""
        names = {one.peer: one.name for one in status.peers}
        now = {(one.round, one.peer): one.reason for one in status.events if one.event == APART}
        for (number, peer), reason in now.items():
            if (number, peer) not in self._apart:
                self._tell(f"{names.get(peer, peer[:8])}, round {number}: {reason}.")
        self._apart = set(now)

    def look(self, status: CoordinatorStatus, now_s: float, wall_s: float) -> None:
        """Say what has changed, and stands."""
        self._tell_apart(status)
        text = status.waiting_for
        if text != self._text:
            self._text, self._since_s = text, now_s
        stands = not text or now_s - self._since_s >= STANDS_S
        is_news = stands and text != self.said
        if is_news:
            self.said = text
        self.seen_s = status.waiting_seen_s if text == self.said else None
        if not is_news:
            return
        words = waiting_words(text, status.waiting_seen_s, wall_s)
        begins = "The run goes on." if status.round > 0 else "The run begins."
        if status.result:
            begins = "Nobody is waited for any more."
        self._tell(f"Waiting for {words}." if text else begins)


async def watch(
    shell: Shell, notices: Notices, keep: Callable[[], None], others: Callable[[], Addresses]
) -> None:
    """Look, tell peers what the organiser is told and which `others` stand by, and have kept what
    no record holds, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S * max(1.0, shell.num_lines / limits.CROWD_LOOK_PEERS))
        keep()
        status = shell.outlook()
        notices.look(status, shell.now_s(), time.time())
        shell.inform(notices.said, notices.seen_s)
        shell.spread(others())

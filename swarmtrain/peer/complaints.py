"""What others did wrong, counted by reason; of each second the first few are also logged.

A member may send bad frames without end: each is counted, and none of them may fill a disk.
"""

import logging
from collections import Counter
from collections.abc import Callable

LOGGED_PER_S = 10

logger = logging.getLogger(__name__)


class Complaints:
    """The faults of others that one process has met.

    Args:
        clock: seconds.

    Attributes:
        counts: frames that the machine refused, by reason.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._second = -1
        self._logged = 0

    def count(self, peer: bytes, reason: str, detail: str) -> None:
        """An admitted peer sent what the machine refused."""
        self.counts[reason] += 1
        self._log(logging.WARNING, f"The peer {peer.hex()[:8]} sent what was refused: {detail}")

    def mention(self, peer: bytes | None, fault: Exception) -> None:
        """The link refused something, and has counted it."""
        who = f"The peer {peer.hex()[:8]}" if peer else "Somebody unknown"
        self._log(logging.INFO, f"{who} was refused: {getattr(fault, 'detail', fault)}")

    def _log(self, level: int, text: str) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._logged = second, 0
        self._logged += 1
        if self._logged <= LOGGED_PER_S:
            logger.log(level, "%s", text)
        elif self._logged == LOGGED_PER_S + 1:
            logger.log(level, "More is refused; `swarmtrain status --json` counts it.")

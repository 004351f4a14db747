"""Faults of others, counted by reason, and logged seldom enough that no disk fills up."""

import logging
from collections import Counter
from collections.abc import Callable

from swarmtrain.console.repeats import Repeats
from swarmtrain.foundation.errors import cleaned
from swarmtrain_transport.errors import RemoteFault

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
        self._repeats = Repeats(logger, clock)

    def count(self, peer: bytes, reason: str, detail: str) -> None:
        """An admitted peer sent what the machine refused."""
        self.counts[reason] += 1
        said = f"The peer {peer.hex()[:8]} sent what was refused: {cleaned(detail)}"
        self._repeats.say(logging.WARNING, (peer, reason), said)

    def mention(self, peer: bytes | None, fault: RemoteFault) -> None:
        """The link refused something, and has counted it."""
        who = f"The peer {peer.hex()[:8]}" if peer else "A connection"
        said = f"{who} was refused: {cleaned(fault.detail)}"
        self._repeats.say(logging.INFO, (peer, fault.reason), said)

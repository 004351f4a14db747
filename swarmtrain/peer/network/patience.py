"""Patience with a coordinator that does not answer: how long to wait, and what to say meanwhile.

A stranger that never got through may have a wrong address, so it gives up soon and says so. A peer
that was in the run before knows that there is a coordinator: it waits as long as one whose
connection was lost, also when it was itself started anew in between.
"""

import logging
import os
import random
from collections.abc import Callable

from swarmtrain.foundation.errors import cleaned

logger = logging.getLogger(__name__)

FIRST_TRIES = 6
"""Tries of the first connection before it is reported: about 15 s with the pauses below."""

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 15.0
"""Pauses between tries double up to this; each is cut by up to half at random, so that peers do
not all come back in the same instant."""

SOON_ROUNDS = 40
"""Rounds of tries of a run's several coordinators before pauses grow: 15 s."""

SAID_EVERY = 4
"""The 1st, 4th, 16th failure in a row are told, and so on: after a second, minutes, an hour."""


LONG = 16
"""Failures in a row from which on it is said what this peer has: after two minutes or more."""


class AskedToWait(ConnectionError):
    """The coordinator is there, and wants this peer to come back later."""


class Patience:
    """Failures in a row.

    Args:
        host, port: address of the coordinator.
        rng: source of the pauses' jitter.
        is_endless: True to wait from the first try on.
        holding: says what this peer has of the run, and how it gets the rest.

    Attributes:
        where: address that is tried.
        addresses: number of coordinators that are tried in turn; each pause follows on all.
    """

    def __init__(
        self, host: str, port: int, rng: random.Random, *, is_endless: bool,
        holding: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self.where = f"{host}:{port}"
        self.addresses = 1
        self._holding = holding
        self._rng = rng
        self.is_endless = is_endless
        self._due = 1
        self.failed = 0

    def answered(self) -> None:
        """Note that it was reached, so from now on it is worth waiting for."""
        if self.failed:
            logger.info("The coordinator %s answers.", self.where)
        self.failed, self._due, self.is_endless = 0, 1, True

    def failure(self, error: Exception) -> bool:
        """Count a failed try; return True to give up."""
        self.failed += 1
        left = FIRST_TRIES * self.addresses - self.failed
        if not self.is_endless and left <= 0:
            return True
        if self.failed >= self._due:
            self._due = self.failed * SAID_EVERY
            what = "Waiting until it does; Ctrl+C gives up."
            if not self.is_endless:
                what = f"Trying {left} times more; --wait would go on."
            if self.failed >= LONG:
                what = f"{what} {self._holding()}".rstrip()
            how = "asks to wait" if isinstance(error, AskedToWait) else "does not answer"
            logger.warning("The coordinator %s %s (%s). %s", self.where, how, in_words(error), what)
        return False

    def pause_s(self) -> float:
        """Return how long to wait before the next try, seconds."""
        rounds, in_turn = divmod(self.failed, self.addresses)
        if in_turn:
            return 0.0
        # Another coordinator takes over within seconds.
        is_soon = self.addresses > 1 and rounds <= SOON_ROUNDS
        waited = min(rounds, 1) if is_soon else rounds - SOON_ROUNDS * (self.addresses > 1)
        return pause_s(waited, self._rng)


def pause_s(failed: int, rng: random.Random) -> float:
    """A pause after so many failures in a row."""
    longest = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(max(0, failed - 1), 16))
    return longest * (0.5 + 0.5 * rng.random())


def in_words(error: Exception) -> str:
    """Say why a connection did not come about, without a library's own words where there are
    others."""
    if isinstance(error, TimeoutError):
        return "nothing came back in time"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return f"it asks to try later, HTTP {status}"
    return cleaned(str(getattr(error, "strerror", None) or error or type(error).__name__))

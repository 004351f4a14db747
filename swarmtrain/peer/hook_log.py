"""Log lines of the hook: one on joining, at most one for each round, one at the end.

A library is silent unless its program has set logging up, and then says it where the program says.
But somebody who adds three lines to a script wants to see that they do something, and has set up
nothing: there the lines go to stderr, as a progress bar would, until logging is set up after all.
Not here: when something is said, and what becomes of errors.
"""

import logging
import math
import sys
import time
from collections.abc import Callable

from swarmtrain.console.lines import show, stamped
from swarmtrain.console.units import human_bytes
from swarmtrain.peer.training.rounds import RoundReport, in_words

logger = logging.getLogger("swarmtrain")
"""The package's own, so that one name sets the level of all that it says."""

LINES_EVERY_S = 1.0
"""Rounds that end faster, as ddp's do with every step, share a line."""

_NEWS = frozenset({"skipped", "left-out"})
"""Ends of a round that have their line in any case."""


def speak_up() -> None:
    """Show the package's lines on stderr where nobody has set logging up.

    A level that somebody gave the logger `swarmtrain` is kept: WARNING keeps rounds quiet.
    """
    if logger.hasHandlers():
        return
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """The hook's own lines and everybody's warnings, while no one else shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        is_wanted = record.name == logger.name or record.levelno >= logging.WARNING
        if not is_wanted or logging.getLogger().handlers:
            return
        try:
            show(stamped(f"swarmtrain: {self.format(record)}", sys.stderr), sys.stderr)
        except Exception:
            self.handleError(record)


class HookLog:
    """The lines of one membership.

    Args:
        run: name of the run.
        name: name of this peer, as others see it.
        bytes_moved: sent and received so far.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        run: str,
        name: str,
        bytes_moved: Callable[[], tuple[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._name = name
        self._bytes_moved = bytes_moved
        self._clock = clock
        self._round = -1
        self._line_s = -math.inf
        self._since_s = 0.0
        self._since_bytes = (0, 0)

    def joined(self, others: int, op: int) -> None:
        """The run's weights are in the model."""
        self._mark(op)
        peers = "1 other peer" if others == 1 else f"{others or 'no'} other peers"
        logger.info("Joined the run %s as %s: %s, round %d.", self._run, self._name, peers, op)

    def round_ended(self, report: RoundReport, loss: float | None) -> None:
        """A round is over; what is caught up with before joining is no news."""
        now_s = self._clock()
        is_soon = now_s - self._line_s < LINES_EVERY_S
        if self._round < 0 or (is_soon and report.outcome not in _NEWS):
            return
        told = in_words(report)
        more = [f"{report.round - self._round} rounds"] if report.round > self._round + 1 else []
        more += [] if loss is None else [f"loss {loss:.3f}"]
        moved = _moved(self._bytes_moved(), self._since_bytes)
        more.append(f"{moved}, {now_s - self._since_s:.1f} s")
        logger.info("%s.", "; ".join((told[0].upper() + told[1:], *more)))
        self._line_s = now_s
        self._mark(report.round)

    def waiting(self, words: str) -> None:
        """The whole run stands still, and for what; "" when it goes on."""
        if words:
            logger.warning("The run waits for %s.", words)
        else:
            logger.info("The run waits no longer.")

    def left(self, reason: str, op: int, result: str) -> None:
        """Note that it is over for this peer; `result` is what a finished run has come to, else
        ""."""
        end = f"Left the run {self._run} after round {op} ({reason})"
        moved = _moved(self._bytes_moved(), (0, 0))
        logger.info("%s; %s in all.", f"The run is finished: {result}" if result else end, moved)

    def _mark(self, op: int) -> None:
        self._round, self._since_s, self._since_bytes = op, self._clock(), self._bytes_moved()


def _moved(now: tuple[int, int], before: tuple[int, int]) -> str:
    up, down = (after - start for after, start in zip(now, before, strict=True))
    return f"{human_bytes(up)} sent, {human_bytes(down)} received"

"""Log lines about what others do: a kind is written once, then counted, then summed up.

Others may do a thing without end: no disk may fill with what we say of it, and somebody must hear.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

EVERY_S = 30.0
"""Shortest time between two lines of one kind."""

LINES_PER_S = 10
"""Lines of all kinds: whoever causes them chooses how many kinds there are."""

KINDS_MAX = 1024
"""Kinds remembered; the longest quiet one is forgotten."""


class Repeats:
    """Rate limiter for the lines of one logger."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._said: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._second = -math.inf
        self._lines = 0

    def say(self, level: int, kind: Hashable, text: str) -> None:
        """One more of this kind; `text` is written if it is the first for EVERY_S."""
        now_s = self._clock()
        said_s, unsaid = self._said.get(kind, (-math.inf, 0))
        if now_s - said_s < EVERY_S:
            self._said[kind] = (said_s, unsaid + 1)
            return
        self._said[kind] = (now_s, 0)
        self._said.move_to_end(kind)
        if len(self._said) > KINDS_MAX:
            self._said.popitem(last=False)
        if unsaid:
            text += f" ({unsaid} times more in the last {now_s - said_s:.0f} s)"
        self._write(level, text, now_s)

    def _write(self, level: int, text: str, now_s: float) -> None:
        second = math.floor(now_s)
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= LINES_PER_S:
            self._logger.log(level, "%s", text)
        elif self._lines == LINES_PER_S + 1:
            self._logger.log(
                level, "There is more like this; `swarmtrain status --json` counts it."
            )

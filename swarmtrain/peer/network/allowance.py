"""Use of today's data allowance: counted over restarts, in the state directory."""

import json
import math
from collections.abc import Callable
from pathlib import Path

from swarmtrain.console.units import human_bytes
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError

_WRITE_EVERY = 0.01
"""Share of the allowance after which the count is written again: what a crash may forget."""

_UNLIMITED_BYTES = 10**9
"""Stands for the allowance where there is none: a later one counts what was moved before it."""

_FILE_BYTES_MAX = 4096


_FADES = 0.8
"""Share of what a round moved that is expected of the next one at least."""

_RESERVE_BYTES = 2 << 20
"""Left of a day for frames that are on their way and for the goodbye; a quarter of a small one."""


class Allowance:
    """Bytes per calendar day, both directions and both lanes.

    Whoever has less left than a round moves leaves before it: nobody waits for that peer. In the
    middle of one, and of anything else, it leaves when all is used but the reserve.

    Args:
        directory: the peer's state directory.
        daily: bytes per day, 0 for any.
        today: names the current day, for instance ``2031-05-01``.

    Attributes:
        daily: bytes per day; another limit holds from then on.
    """

    def __init__(self, directory: Path, daily: int, today: Callable[[], str]) -> None:
        self._path = directory / "traffic.json"
        self.daily = daily
        self._today = today
        self._day = today()
        self.used, self._round = self._read()
        self._total = 0
        self._written = self.used
        self._began: int | None = None

    def count(self, total: int) -> None:
        """The process has moved so many bytes since it began."""
        day = self._today()
        if day != self._day:
            self._day, self.used, self._written, self._began = day, 0, 0, None
        self.used += total - self._total
        self._total = total
        if self.used - self._written >= (self.daily or _UNLIMITED_BYTES) * _WRITE_EVERY:
            self.save()

    def left(self) -> float:
        """Bytes that may go today."""
        return self.daily - self._reserve - self.used if self.daily else math.inf

    def check(self, *, is_exchanging: bool = False, lacks: int = 0) -> None:
        """Raises UserError SWT-E405 if today's allowance is used up, or no round is left of it.

        Args:
            is_exchanging: true in the middle of a round's exchange.
            lacks: bytes of the run's weights, at least, while the peer does not have them.
        """
        self.count(self._total)  # it may be another day
        if is_exchanging and self._began is None:
            self._began = self.used
        elif self._began is not None and not is_exchanging:
            self._round = max(self.used - self._began, int(_FADES * self._round))
            self._began = None
        is_little = 0 < self.daily <= lacks + self._reserve
        if self.left() > (0 if is_exchanging else self._round) and not is_little:
            return
        began = self.used if self._began is None else self._began
        self._round = max(self._round, self.used - began)
        self.save()
        rest = "" if self.used >= self.daily else ", the rest is for what is on its way"
        moved = f"{human_bytes(self.used)} were moved"
        what = f"Today's {human_bytes(self.daily)} are used up ({moved}{rest})."
        if is_little:
            what = (
                f"{human_bytes(self.daily)} a day are less than it takes to come into this run: its"
                f" weights alone are {human_bytes(lacks)}."
            )
        elif self._round + self._reserve >= self.daily:
            what = (
                f"{human_bytes(self.daily)} a day are less than a round of this run needs: it moves"
                f" about {human_bytes(self._round)}."
            )
        elif self.left() > 0:
            what = (
                f"Of today's {human_bytes(self.daily)} less is left than a round moves ({moved})."
            )
        raise UserError(
            "SWT-E405",
            what,
            "The peer leaves between rounds, so nobody waits for it; later it catches up.",
            "Join again tomorrow with the same state directory, or allow more with"
            " `swarmtrain limits set --daily SIZE`.",
        )

    @property
    def _reserve(self) -> int:
        return min(_RESERVE_BYTES, self.daily // 4)

    def save(self) -> None:
        """Write the count, whole or not at all."""
        said = {"day": self._day, "bytes": self.used, "round": self._round}
        atomic_file.write(self._path, json.dumps(said).encode())
        self._written = self.used

    def _read(self) -> tuple[int, int]:
        """Read today's count of an earlier life, and what a round moved; a file that is none counts
        as nothing."""
        try:
            with self._path.open("rb") as file:
                told = json.loads(file.read(_FILE_BYTES_MAX))
            found = max(0, int(told["bytes"])), max(0, int(told.get("round", 0)))
            return found if told["day"] == self._day else (0, found[1])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
                RecursionError):  # fmt: skip
            return 0, 0

"""Use of today's data allowance: counted over restarts, in the state directory."""

import json
from collections.abc import Callable
from pathlib import Path

from swarmtrain.console.units import human_bytes
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError

_WRITE_EVERY = 0.01
"""Share of the allowance after which the count is written again: what a crash may forget."""

_FILE_BYTES_MAX = 4096


class Allowance:
    """Bytes per calendar day, both directions and both lanes.

    Args:
        directory: the peer's state directory.
        daily: bytes per day.
        today: names the current day, for instance ``2031-05-01``.
    """

    def __init__(self, directory: Path, daily: int, today: Callable[[], str]) -> None:
        self._path = directory / "traffic.json"
        self._daily = daily
        self._today = today
        self._day, self._used = self._read()
        self._total = 0
        self._written = self._used

    def count(self, total: int) -> None:
        """The process has moved so many bytes since it began."""
        day = self._today()
        if day != self._day:
            self._day, self._used, self._written = day, 0, 0
        self._used += total - self._total
        self._total = total
        if self._used - self._written >= self._daily * _WRITE_EVERY:
            self.save()

    def check(self) -> None:
        """Raises UserError SWT-E405 if today's allowance is used up."""
        if self._day == self._today() and self._used >= self._daily:
            raise UserError(
                "SWT-E405",
                f"Today's {human_bytes(self._daily)} are used up"
                f" ({human_bytes(self._used)} were moved).",
                "The peer leaves between rounds, so nobody waits for it; later it catches up.",
                "Join again tomorrow with the same state directory, or allow more with --daily.",
            )

    def save(self) -> None:
        """Write the count, whole or not at all."""
        said = {"day": self._day, "bytes": self._used}
        atomic_file.write(self._path, json.dumps(said).encode())
        self._written = self._used

    def _read(self) -> tuple[str, int]:
        """Read the count that an earlier life made today; a file that is none counts as nothing."""
        today = self._today()
        try:
            with self._path.open("rb") as file:
                told = json.loads(file.read(_FILE_BYTES_MAX))
            if told["day"] == today:
                return today, max(0, int(told["bytes"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return today, 0
        return today, 0

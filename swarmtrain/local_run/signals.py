"""Signals are noted, and a loop looks at them between two events."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted() -> Iterator[list[int]]:
    """While this lasts, SIGINT, SIGTERM and SIGHUP only go onto the list that it gives."""
    numbers: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    old = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield numbers
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

"""Python's search for cycles, for a process that holds much for long.

A full search looks at all that the process holds: with 10 000 peers for 0.5 s, in which nobody is
heard. So what has survived one is set aside and not looked at again, until so many connections have
ended that what they leave behind, which only a search finds, is worth it.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COLLECT_OBJECTS = 50_000
"""New objects after which Python looks for cycles among them. By itself it does so after 700, and
of thousands of peers that took a quarter of the time."""

ENDED_MAX = 2000
"""Ended connections after which all is looked at: each has left some ten KB."""

_FULL = 2


@contextmanager
def seldom_collected() -> Iterator[Callable[[], None]]:
    """Look seldom for cycles; call what it gives for each connection that ends."""
    ended = 0

    def end() -> None:
        nonlocal ended
        ended += 1

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal ended
        if info["generation"] < _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif ended >= ENDED_MAX:
            ended = 0
            gc.unfreeze()

    before = gc.get_threshold()
    gc.set_threshold(COLLECT_OBJECTS, *before[1:])
    gc.callbacks.append(look)
    try:
        yield end
    finally:
        gc.callbacks.remove(look)
        gc.unfreeze()
        gc.set_threshold(*before)

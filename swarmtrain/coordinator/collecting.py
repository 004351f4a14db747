"""Python's search for cycles, for a process that holds much for long.

A full search looks at all that the process holds: with 10 000 peers for 0.5 s, in which nobody is
heard. So what has survived one is set aside and not looked at again, until so many connections have
ended, or so much time has passed, that what they have left behind is worth it. Searches among what
is new come often instead, and each is short.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SEARCHES = 5_000, 1, 1
"""New objects after which Python looks for cycles among them, and how many such searches go before
one among what has survived one, and two. By itself Python does the first after 700 objects, and of
thousands of peers that took a quarter of the time; with ten times as many one takes 0.3 s."""

ENDED_MAX = 2000
"""Ended connections after which all is looked at: each has left some ten KB."""

ALL_S = 600.0
"""Time after which it is in any case: what strangers leave behind was set aside, too, if they were
there just then."""

_FULL = 2


@contextmanager
def seldom_collected(
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], None]]:
    """Look seldom at all that is held; call what it gives for each connection that ends."""
    ended, looked_s = 0, clock()

    def end() -> None:
        nonlocal ended
        ended += 1

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal ended, looked_s
        if info["generation"] < _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif ended >= ENDED_MAX or clock() >= looked_s + ALL_S:
            ended, looked_s = 0, clock()
            gc.unfreeze()

    before = gc.get_threshold()
    gc.set_threshold(*SEARCHES)
    gc.callbacks.append(look)
    try:
        yield end
    finally:
        gc.callbacks.remove(look)
        gc.unfreeze()
        gc.set_threshold(*before)

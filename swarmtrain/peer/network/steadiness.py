"""Notices what ends connections without a word: this machine slept, an address of it is gone, or a
router on the way has forgotten them.

TCP's own probes find out after seconds, a router's lost entry after its timeouts, and a peer that
waits in long pauses does not know that its network is back. So the machine is looked at once a
second, which takes less than a millisecond. A stopped process is not a sleep: its lines stand.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

logger = logging.getLogger(__name__)

LOOK_S = 1.0

SLEPT_S = 3.0
"""A shorter sleep loses no line; steps of the clock, where that is all there is, are smaller."""


LINE_LOOK_S = 0.5

TRY_S = 2.0
"""For another connection to stand."""


@dataclass(frozen=True, slots=True)
class Change:
    """Difference between two looks.

    Attributes:
        slept_s: seconds for which the machine slept, 0 for none.
        gone: addresses that it has no more.
        has_more: True if it has an address that it had not.
        is_forgotten: True if connections lead nowhere any more, although the network is there.
    """

    slept_s: float = 0.0
    gone: frozenset[str] = frozenset()
    has_more: bool = False
    is_forgotten: bool = False

    @property
    def dead(self) -> frozenset[str] | None:
        """Addresses of this machine whose connections have ended with it, None for all."""
        return None if self.slept_s or self.is_forgotten else self.gone

    def __bool__(self) -> bool:
        """True if there is any."""
        return bool(self.slept_s or self.gone or self.has_more or self.is_forgotten)


class Lookout:
    """Compares each look with the one before.

    Args:
        slept_s: seconds of sleep since any moment, as of now.
        here: addresses of this machine.
    """

    def __init__(self, slept_s: float, here: frozenset[str]) -> None:
        self._slept_s, self._here = slept_s, here

    def look(self, slept_s: float, here: frozenset[str]) -> Change:
        """Return what has changed."""
        asleep_s, gone = slept_s - self._slept_s, self._here - here
        has_more = bool(here - self._here)
        self._slept_s, self._here = slept_s, here
        return Change(asleep_s if asleep_s >= SLEPT_S else 0.0, gone, has_more)


async def watch(
    tell: Callable[[Change], None],
    *,
    slept_s: Callable[[], float] | None = None,
    here: Callable[[], frozenset[str]] | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Look again and again, and tell of changes.

    Args:
        tell: hears of each.
        slept_s: see Lookout; None for the system's clocks.
        here: addresses of this machine; None for those that the system names.
        pause: waits for so many seconds.
    """
    slept_s, here = slept_s or _slept_s, here or addresses
    lookout = Lookout(slept_s(), here())
    while True:
        await pause(LOOK_S)
        if change := lookout.look(slept_s(), here()):
            if change.slept_s:
                logger.info("This machine slept for %.0f s; connecting anew.", change.slept_s)
            elif change.gone:
                logger.info("This machine has lost the address %s.", ", ".join(sorted(change.gone)))
            tell(change)


async def outlive(
    is_stuck: Callable[[], bool],
    dial: Callable[[], Awaitable[None]],
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Return once a line is known to be dead while the network is there: nothing answers on it, and
    another connection to its other end stands.

    So a line is not given up while there is nothing better, and the network's return is noticed
    when it happens, where TCP and heartbeats find out after many seconds.

    Args:
        is_stuck: see `tcp.is_stuck`.
        dial: makes another connection to the other end, and closes it; raises OSError if it fails.
        pause: waits for so many seconds.
    """
    while True:
        await pause(LINE_LOOK_S)
        if not is_stuck():
            continue
        with contextlib.suppress(OSError):
            async with asyncio.timeout(TRY_S):
                await dial()
            if is_stuck():
                return


def interfaces() -> list[str]:
    """IP addresses of this machine, interface by interface."""
    try:
        found = psutil.net_if_addrs()
    except OSError:  # some systems keep them to themselves
        return []
    return [
        one.address.partition("%")[0]
        for all_of in found.values()
        for one in all_of
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]


def addresses() -> frozenset[str]:
    """IP addresses of this machine, without those that reach the same cable alone."""
    return frozenset(one for one in interfaces() if not one.startswith(("fe80:", "169.254.")))


def _slept_s() -> float:
    """Seconds by which a clock that counts sleep is ahead of one that does not."""
    counting = time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOTTIME else time.time()
    return counting - time.monotonic()


_HAS_BOOTTIME = hasattr(time, "CLOCK_BOOTTIME")

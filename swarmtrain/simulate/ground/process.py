"""The common part of simulated processes: each lives, may be stopped, and has a clock.

A stopped process (SIGSTOP, a laptop's lid, a long fsync) misses nothing that reached its machine:
messages that came meanwhile are handled in order as soon as it goes on.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from swarmtrain.simulate.ground.clock import SimClock


class Process:
    """Life, clock and backlog of one process.

    Args:
        clock: virtual time.
        offset_s: time that the process's own clock showed when the world began.
        drift: speed of its clock; 1.0 is right.
    """

    def __init__(self, clock: SimClock, offset_s: float = 0.0, drift: float = 1.0) -> None:
        self.clock = clock
        self.is_alive = False
        self._offset_s = offset_s
        self._drift = drift
        self._stopped_until_s = 0.0
        self._backlog: deque[Callable[[], object]] = deque()

    @property
    def now_s(self) -> float:
        """Time as this process sees it."""
        return self._offset_s + self.clock.now_s * self._drift

    def world_s(self, local_s: float) -> float:
        """The world's time at which this process's clock shows `local_s`."""
        return (local_s - self._offset_s) / self._drift

    @property
    def is_stopped(self) -> bool:
        """True if it does nothing now although it lives."""
        return self.clock.now_s < self._stopped_until_s

    def stop(self, seconds: float) -> None:
        """Do nothing for so long; a second stop cannot end the first one early."""
        self._stopped_until_s = max(self._stopped_until_s, self.clock.now_s + seconds)
        self.clock.at(self._stopped_until_s, self._go_on)

    def hear(self, event: Callable[..., object], *args: object) -> None:
        """Let the process hear of an event, now or when it goes on; nothing reaches a dead one."""
        if self.is_alive:
            if self._backlog or self.is_stopped:
                self._backlog.append(partial(event, *args))
            else:
                event(*args)

    def die(self) -> None:
        """Nothing of it happens afterwards."""
        self.is_alive = False
        self._backlog.clear()

    def _go_on(self) -> None:
        while self._backlog and self.is_alive and not self.is_stopped:
            self._backlog.popleft()()

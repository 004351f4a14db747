"""Virtual time: a queue of things that happen at a moment. Same calls, same order, same bits."""

from collections.abc import Callable
from heapq import heappop, heappush


class SimClock:
    """Runs events in order of time; events of one moment in the order they were planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0

    @property
    def happened(self) -> int:
        """Number of events that have been run."""
        return self._number - len(self._queue)

    def at(self, time_s: float, event: Callable[[], object]) -> None:
        """Plan an event; one in the past happens now."""
        self._number += 1
        heappush(self._queue, (time_s if time_s > self.now_s else self.now_s, self._number, event))

    def after(self, delay_s: float, event: Callable[[], object]) -> None:
        """Plan an event relative to now."""
        self.at(self.now_s + delay_s, event)

    def step(self, until_s: float) -> bool:
        """Run the next event if it is due by `until_s`; False if there is none."""
        if not self._queue or self._queue[0][0] > until_s:
            return False
        self.now_s, _, event = heappop(self._queue)
        event()
        return True

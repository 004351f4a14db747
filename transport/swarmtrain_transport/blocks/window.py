"""Window of requests under way to one holder: its rate times its delay, and a few more.

A request's time is compared with the shortest one seen. The rest of it was spent waiting in a
queue; so of `size` requests under way, size * (1 - shortest / took) were waiting. With few of them
the window grows, with many it shrinks (the idea of Brakmo and Peterson, TCP Vegas, 1995). A fast
holder far away is thus asked for much at once, and nobody's link is filled with requests that only
wait there.
"""

import math

_QUEUED_FEW = 1.5
_QUEUED_MANY = 4.0


class Window:
    """The window to one holder.

    Args:
        smallest: where it starts, and never less.
        largest: never more.

    Attributes:
        usual_s: what a request took lately, 0 before the first answer.
        is_full: whether more would have been asked if there had been room; set by the owner.
    """

    def __init__(self, smallest: int, largest: int) -> None:
        self.usual_s = 0.0
        self.is_full = False
        self._smallest = smallest
        self._largest = largest
        self._size = smallest
        self._shortest_s = math.inf

    @property
    def size(self) -> int:
        """Requests that may be under way."""
        return self._size

    def answered(self, took_s: float) -> None:
        """A request was answered after so many seconds."""
        took_s = max(took_s, 1e-6)
        self._shortest_s = min(self._shortest_s, took_s)
        self.usual_s = 0.75 * self.usual_s + 0.25 * took_s if self.usual_s else took_s
        queued = self._size * (1 - self._shortest_s / took_s)
        if queued < _QUEUED_FEW and self.is_full:
            self._size = min(self._size + 1, self._largest)
        elif queued > _QUEUED_MANY:
            self._size = max(self._size - 1, self._smallest)

    def restart(self) -> None:
        """Nothing came for too long: begin again with few."""
        self._size = self._smallest

"""Rates of a link: what it was measured to carry, and what its owner allows it to carry.

Pure: bytes are counted and time is told by others. A rate says something of a link only while the
link was the limit, not the waiting for somebody else. So what counts of an exchange is the pace at
which its fastest bytes moved, and of several exchanges the best: a lower bound that rises as soon
as the link is asked for more, and that is forgotten after RATE_KEEP_OPS.
"""

from collections import deque

from swarmtrain_transport import limits


class RateMeter:
    """Bytes per second of one direction of a link, from a counter that is read now and then.

    Args:
        total_bytes: the counter now.
        now_s: the time.
    """

    def __init__(self, total_bytes: int, now_s: float) -> None:
        self._from_bytes = total_bytes
        self._from_s = now_s
        self._windows: list[tuple[float, int]] = []
        self._bests: deque[float] = deque(maxlen=limits.RATE_KEEP_OPS)

    @property
    def bytes_per_s(self) -> int:
        """The rate that the link is known to carry; 0 until something was measured."""
        return int(max((*self._bests, self._best()), default=0.0))

    def counted(self, total_bytes: int, now_s: float) -> None:
        """The counter was read. Readings that are close together make one window."""
        moved, passed_s = total_bytes - self._from_bytes, now_s - self._from_s
        if passed_s < limits.RATE_WINDOW_S or moved < limits.RATE_WINDOW_BYTES:
            return
        self._windows.append((moved / passed_s, moved))
        self._from_bytes, self._from_s = total_bytes, now_s

    def restart(self, total_bytes: int, now_s: float) -> None:
        """Bytes begin to move now: the idle time before is no part of a window."""
        self._from_bytes, self._from_s = total_bytes, now_s

    def settle(self, total_bytes: int, now_s: float) -> None:
        """An exchange has ended: its best counts from now on, the oldest one's no more."""
        self.counted(total_bytes, now_s)
        self.restart(total_bytes, now_s)
        best = self._best()
        if best:
            self._bests.append(best)
        self._windows.clear()

    def _best(self) -> float:
        """The pace that a quarter of the bytes since the last `settle` kept or beat.

        Not the fastest window: acknowledgements that were held up arrive together.
        """
        if len(self._windows) < limits.RATE_WINDOWS_MIN:
            return 0.0
        total = sum(moved for _, moved in self._windows)
        passed = 0
        for rate, moved in sorted(self._windows, reverse=True):
            passed += moved
            if passed >= total * limits.RATE_FASTEST:
                return rate
        return 0.0


class LinkRates:
    """Both directions of one peer's link, as PROGRESS and HELLO tell them.

    Args:
        up_cap: bytes per second that the peer's owner allows, 0 without a cap.
        down_cap: cap on what comes, likewise.
    """

    def __init__(self, up_cap: int = 0, down_cap: int = 0) -> None:
        self._caps = up_cap, down_cap
        self._meters: tuple[RateMeter, RateMeter] | None = None
        self._op: int | None = None

    def cap(self, up: int, down: int) -> None:
        """Change the caps."""
        self._caps = up, down

    @property
    def up_bytes_per_s(self) -> int:
        """Measured and within the cap; the cap itself before a measurement; 0 if neither."""
        return self._told(0)

    @property
    def down_bytes_per_s(self) -> int:
        """See `up_bytes_per_s`."""
        return self._told(1)

    def counted(self, up_bytes: int, down_bytes: int, op: int | None, now_s: float) -> None:
        """The link's counters were read.

        Args:
            up_bytes: moved since the link was opened.
            down_bytes: bytes received since then.
            op: the exchange under way, if any.
            now_s: the time.
        """
        totals = up_bytes, down_bytes
        if self._meters is None:
            self._meters = RateMeter(up_bytes, now_s), RateMeter(down_bytes, now_s)
        for meter, total in zip(self._meters, totals, strict=True):
            if self._op is not None and op != self._op:
                meter.settle(total, now_s)
            elif self._op is None and op is not None:
                meter.restart(total, now_s)
            else:
                meter.counted(total, now_s)
        self._op = op

    def _told(self, direction: int) -> int:
        cap = self._caps[direction]
        measured = self._meters[direction].bytes_per_s if self._meters is not None else 0
        return min(measured or cap, cap or measured)

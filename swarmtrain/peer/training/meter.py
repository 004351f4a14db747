"""Meters of a training peer: loss and speed."""

import math
from collections.abc import Callable


class Meter:
    """Loss and tokens per second, smoothed over the last steps; waiting does not count.

    Args:
        clock: monotonic seconds.

    Attributes:
        loss: nats per byte, 0 before the first step.
        rate: tokens per second, 0 before the second one.
        tokens: tokens of all steps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.loss = 0.0
        self.rate = 0.0
        self.tokens = 0
        self._clock = clock
        self._last_s: float | None = None
        self._losses: tuple[float, int] = (0.0, 0)

    def begin_round(self) -> None:
        """Forget what was made so far: it is of no round that comes."""
        self._losses = (0.0, 0)

    def end_round(self) -> float | None:
        """The mean loss of the steps since a round began, and begin the next; None if nobody knows
        it."""
        total, count = self._losses
        self.begin_round()
        return total / count if count else None

    def count(self, loss: float | None, tokens: int) -> None:
        """One step was made; `loss` is None where nobody knows it."""
        now_s = self._clock()
        self.tokens += tokens
        if loss is not None:
            self._losses = (self._losses[0] + loss, self._losses[1] + 1)
            is_known = self.loss != 0.0 and math.isfinite(self.loss)  # NaN would stay for ever
            self.loss = 0.9 * self.loss + 0.1 * loss if is_known else loss
        if self._last_s is not None and now_s > self._last_s:
            rate = tokens / (now_s - self._last_s)
            self.rate = rate if self.rate == 0.0 else 0.9 * self.rate + 0.1 * rate
        self._last_s = now_s


class Pace:
    """Measures how fast this peer makes inner steps, by what the steps take alone: not exchanges,
    results that are applied, or waiting. Older rounds count half as much as the one after them.

    Attributes:
        steps_per_s: inner steps per second up to the last round's end, 0 before the first.
    """

    def __init__(self) -> None:
        self.steps_per_s = 0.0
        self._since_s: float | None = None
        self._steps = 0.0
        self._seconds = 0.0

    def begin(self, now_s: float) -> None:
        """An inner step begins."""
        self._since_s = now_s

    def made(self, now_s: float) -> None:
        """An inner step is made; one whose begin was not seen is not counted."""
        if self._since_s is not None:
            self._seconds += now_s - self._since_s
            self._steps += 1
        self._since_s = None

    def end_round(self) -> float:
        """The speed so far; 0 where nothing could be measured yet."""
        if self._seconds > 0:
            self.steps_per_s = self._steps / self._seconds
        self._steps /= 2
        self._seconds /= 2
        return self.steps_per_s

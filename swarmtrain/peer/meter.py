"""What a training peer shows of itself: loss and speed."""

from collections.abc import Callable


class Meter:
    """Loss and tokens per second, smoothed over the last steps; waiting does not count.

    Args:
        clock: monotonic seconds.

    Attributes:
        loss: nats per byte, 0 before the first step.
        rate: tokens per second, 0 before the second one.
        tokens: of all steps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.loss = 0.0
        self.rate = 0.0
        self.tokens = 0
        self._clock = clock
        self._last_s: float | None = None

    def count(self, loss: float | None, tokens: int) -> None:
        """One step was made; `loss` is None where nobody knows it."""
        now_s = self._clock()
        self.tokens += tokens
        if loss is not None:
            self.loss = loss if self.loss == 0.0 else 0.9 * self.loss + 0.1 * loss
        if self._last_s is not None and now_s > self._last_s:
            rate = tokens / (now_s - self._last_s)
            self.rate = rate if self.rate == 0.0 else 0.9 * self.rate + 0.1 * rate
        self._last_s = now_s

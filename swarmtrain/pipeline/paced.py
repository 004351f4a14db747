"""A trainer as slow as that of a smaller machine, for rehearsals on one machine."""

import random
import time
from collections.abc import Callable
from typing import Any

from swarmtrain.pipeline.evaluation import Anchors
from swarmtrain.pipeline.places import Parcel, Read
from swarmtrain.pipeline.stage_trainer import StageTrainer
from swarmtrain_transport.pipeline.peer.requests import RunBackward, RunForward, RunJudged

_JITTER = 0.3
"""Passes of a machine that others use as well differ by about so much."""


class PacedTrainer(StageTrainer):
    """Sleeps after each pass until it has taken its time: a forward pass a unit for each stage, a
    backward pass two, the second of them after the input's gradient is handed on.

    Args:
        unit_s: mean duration.
        seed: seed of the differences between passes.
        others: see StageTrainer.
        sleep: pauses for so many seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *others: Any,
        unit_s: float,
        seed: int,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        **more: Any,
    ) -> None:
        super().__init__(*others, **more)
        self._unit_s, self._rng = unit_s, random.Random(seed)
        self._sleep, self._clock = sleep, clock
        self._num = 0  # stages of the pass under way

    def forward(self, request: RunForward, given: Parcel | Read) -> Parcel:
        """See StageTrainer."""
        began_s = self._clock()
        try:
            return super().forward(request, given)
        finally:
            self._last(began_s, len(request.stages))

    def judge(
        self, request: RunJudged, given: Parcel | Read, labels: Parcel | None, anchors: Anchors
    ) -> Parcel | float:
        """See StageTrainer."""
        began_s = self._clock()
        try:
            return super().judge(request, given, labels, anchors)
        finally:
            self._last(began_s, max(self.steps) + 1 - request.stage)

    def begin_backward(
        self, request: RunBackward, given: Parcel | Read, answer: Parcel
    ) -> Parcel | None:
        """See StageTrainer."""
        began_s = self._clock()
        try:
            return super().begin_backward(request, given, answer)
        finally:
            self._last(began_s, len(request.stages))

    def end_backward(self) -> None:
        """See StageTrainer."""
        began_s = self._clock()
        super().end_backward()
        self._last(began_s, self._num)

    def _last(self, began_s: float, num: int) -> None:
        """Sleep until a pass through so many stages has taken its time."""
        self._num = num
        unit_s = self._unit_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        left_s = began_s + unit_s * num - self._clock()
        if left_s > 0:
            self._sleep(left_s)

"""A step of a pipeline's round while it is under way; the whole round where steps are free.

It knows whom it waits for and how long, and the size that was told of its gradient. Decisions are
`rounds`'.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_high, median_low

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.wire.route import Process, Span


def whole_norm(squares: Iterable[float]) -> float:
    """The norm of a gradient from the squared norms of its parts, added in their order.

    >>> whole_norm([9.0, 16.0])
    5.0
    """
    total = 0.0
    for square in squares:  # in this order: sum() may have another last bit
        total += square
    return math.sqrt(total)


@dataclass(slots=True)
class StepUnderWay:
    """A step, as far as the coordinator has heard of it.

    Attributes:
        awaited: Sources that have not drained.
        began_s: Time at which they were told of it.
        more: Sources that were told to make more than at first.
        took_s: Seconds of each source that has drained.
        drained_s: Time at which each source has drained, or was waited for no longer.
        weighed_s: Likewise of members that were asked for the gradient's size.
        lost: Number of micro-batches that did not come back.
        losers: Sources that have lost some of theirs.
        left: True once a member has left.
        unweighed: Members that have not told the size of its gradient; None before they are asked.
        asked_s: Time at which they were asked.
        squares: Squared norms of the gradient by stage and member.
    """

    awaited: set[Process]
    began_s: float
    more: set[Process] = field(default_factory=set)
    took_s: list[float] = field(default_factory=list)
    drained_s: dict[PeerId, float] = field(default_factory=dict)
    weighed_s: dict[PeerId, float] = field(default_factory=dict)
    lost: int = 0
    losers: set[Process] = field(default_factory=set)
    left: bool = False
    unweighed: dict[Process, Span] | None = None
    asked_s: float = 0.0
    squares: dict[int, dict[Process, float]] = field(default_factory=dict)

    def drain_s(self, share: int) -> float:
        """Time by which a source with this share is to have drained: each micro-batch is given up
        at its age at last; long before that if most others have drained."""
        least_s = limits.MICRO_BATCH_S * (share + 1)
        if len(self.took_s) >= len(self.awaited):
            others_s = limits.STRAGGLER * median_low(self.took_s)
            least_s = min(least_s, max(2 * limits.MICRO_BATCH_S, others_s))
        if len(self.took_s) > len(self.awaited):  # of three, one that says so at once is no measure
            middle_s = median_high(self.took_s)
            more_s = max((limits.STRAGGLER - 1) * middle_s, 2 * limits.MICRO_BATCH_LEAST_S)
            least_s = min(least_s, middle_s + more_s)
        return self.began_s + least_s

    @property
    def whole_norm(self) -> float:
        """The norm of the step's whole gradient. A stage has the low median of its members'
        squares: no single one of several chooses how far the others step."""
        return whole_norm([median_low(stage.values()) for _, stage in sorted(self.squares.items())])

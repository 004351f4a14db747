"""The parts that a simulated peer sends: T2 of protocol.md, within the credit that it was told."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, unpack_credit

Report = Callable[[str, str], None]
"""(invariant, story)."""

_PATIENCE_S = 2 * limits.NUDGE_S
"""An older part may be held for lost, and its credit used again."""


@dataclass(slots=True)
class _Lately:
    """Parts of one slice that were sent lately: when, of how many bytes, and their sum."""

    sent: deque[tuple[float, int]] = field(default_factory=deque)
    num_bytes: int = 0

    def add(self, now_s: float, num_bytes: int) -> None:
        """Count one more, and forget those that may be lost."""
        self.sent.append((now_s, num_bytes))
        self.num_bytes += num_bytes
        while now_s >= self.sent[0][0] + _PATIENCE_S:
            self.num_bytes -= self.sent.popleft()[1]


class WatchedCredit:
    """One process's parts on their way to the owners.

    Args:
        report: hears of what does not hold.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: Counter[tuple[int, PeerId]] = Counter()
        self._sent: dict[tuple[int, PeerId, int, int], _Lately] = {}

    def hear(self, owner: PeerId, frame: Frame) -> None:
        """Note the credit that an owner tells; it is cumulative."""
        if frame.kind not in (FrameKind.RANGES, FrameKind.CREDIT):
            return
        try:
            if frame.kind is FrameKind.CREDIT:
                told = unpack_credit(frame.body)
            else:
                told = Ranges.unpack(frame.body).credit_bytes
        except RemoteFault:
            return
        line = (frame.plan_id, owner)
        self._told[line] = max(self._told[line], told)

    def send(self, owner: PeerId, frame: Frame, now_s: float) -> None:
        """Check a part: with those of its slice that were sent lately it is within the credit."""
        if frame.kind is not FrameKind.PART:
            return
        line = (frame.plan_id, owner)
        key = (*line, frame.slice_index, frame.attempt)
        if (lately := self._sent.get(key)) is None:
            lately = self._sent[key] = _Lately()
        lately.add(now_s, len(frame.body))
        # PLAN itself is every first owner's invitation for so much.
        told = max(self._told[line], 0 if frame.attempt else limits.UNINVITED_BYTES)
        if lately.num_bytes > told:
            story = f"{lately.num_bytes} bytes are under way, with credit for {told}"
            self._report("T2", story)

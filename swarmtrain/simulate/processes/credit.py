"""The parts that a simulated peer sends: T2 of protocol.md, within the credit that it was told."""

from collections import Counter
from collections.abc import Callable

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, unpack_credit

Report = Callable[[str, str], None]
"""(invariant, story)."""

_PATIENCE_S = 2 * limits.NUDGE_S
"""An older part may be held for lost, and its credit used again."""


class WatchedCredit:
    """One process's parts on their way to the owners.

    Args:
        report: hears of what does not hold.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: Counter[tuple[int, PeerId]] = Counter()
        self._sent: dict[tuple[int, PeerId, int, int], list[tuple[float, int]]] = {}

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
        sent = self._sent.setdefault((*line, frame.slice_index, frame.attempt), [])
        sent.append((now_s, len(frame.body)))
        lately = sum(size for sent_s, size in sent if now_s < sent_s + _PATIENCE_S)
        # PLAN itself is every first owner's invitation for so much.
        told = max(self._told[line], 0 if frame.attempt else limits.UNINVITED_BYTES)
        if lately > told:
            self._report("T2", f"{lately} bytes are under way, with credit for {told}")

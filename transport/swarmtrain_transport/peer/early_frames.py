"""Frames that came before the PLAN that they belong to.

An owner may see PLAN before a contributor does; its invitation must not be lost. The newest few
of each peer are kept, so that nobody fills the place of the others; what is not kept is repeated.
"""

from collections import Counter

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind

_FRAMES_MAX = 4
_BYTES_MAX = 64 << 10
"""Invitations of one peer, and the longest of them: half a million chunks."""


class EarlyFrames:
    """Invitations whose plan is not known yet.

    Args:
        ignored: counter of useless frames: ``stale``, of another plan.
    """

    def __init__(self, ignored: Counter[str]) -> None:
        self._ignored = ignored
        self._frames: list[tuple[PeerId, Frame]] = []

    def keep(self, peer: PeerId, frame: Frame) -> None:
        """Keep an invitation; other frames are of no use before their plan."""
        if frame.kind is not FrameKind.RANGES or len(frame.body) > _BYTES_MAX:
            self._ignored["stale"] += 1
            return
        same = [item for item in self._frames if item[0] == peer]
        if len(same) >= _FRAMES_MAX:
            self._frames.remove(same[0])
        self._frames.append((peer, frame))

    def take(self, plan_id: int) -> list[tuple[PeerId, Frame]]:
        """Take the frames of this plan, in order of arrival. Others stay: they may be of another
        op."""
        found = [item for item in self._frames if item[1].plan_id == plan_id]
        self._frames = [item for item in self._frames if item[1].plan_id != plan_id]
        return found

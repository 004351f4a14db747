"""Frames that came before the PLAN that they belong to.

An owner may see PLAN before a contributor does, and a contributor before an owner: neither the
invitation nor the first parts, which need none, must be lost. Of invitations the newest few of each
peer are kept, so that nobody fills the place of the others. Parts of all peers share a bound;
beyond it the newest of whoever has most there goes. What is not kept is sent again, and is nobody's
fault.
"""

from collections import Counter, defaultdict, deque

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind

_FRAMES_MAX = 4
_BYTES_MAX = 64 << 10
"""Invitations of one peer, and the longest of them: half a million chunks."""


class EarlyFrames:
    """Invitations and parts whose plan is not known yet.

    Args:
        ignored: counter of useless frames: ``stale``, of another plan.
    """

    def __init__(self, ignored: Counter[str]) -> None:
        self._ignored = ignored
        self._frames: list[tuple[PeerId, Frame]] = []
        self._parts: defaultdict[PeerId, deque[tuple[float, Frame]]] = defaultdict(deque)
        self._bytes: Counter[PeerId] = Counter()

    def keep(self, peer: PeerId, frame: Frame, now_s: float) -> None:
        """Keep an invitation or a part; other frames are of no use before their plan."""
        if frame.kind is FrameKind.PART:
            self._keep_part(peer, frame, now_s)
            return
        if frame.kind is not FrameKind.RANGES or len(frame.body) > _BYTES_MAX:
            self._ignored["stale"] += 1
            return
        same = [item for item in self._frames if item[0] == peer]
        if len(same) >= _FRAMES_MAX:
            self._frames.remove(same[0])
        self._frames.append((peer, frame))

    def _keep_part(self, peer: PeerId, frame: Frame, now_s: float) -> None:
        self.age(now_s)
        self._parts[peer].append((now_s, frame))
        self._bytes[peer] += _weight(frame)
        while self._bytes.total() > limits.EARLY_BYTES:
            most = max(self._bytes, key=lambda one: (self._bytes[one], one == peer))
            self._drop(most, self._parts[most].pop()[1])

    def age(self, now_s: float) -> None:
        """Drop parts that no PLAN has come for."""
        for peer, parts in list(self._parts.items()):
            while parts and parts[0][0] <= now_s - limits.EARLY_S:
                self._drop(peer, parts.popleft()[1])

    def _drop(self, peer: PeerId, frame: Frame) -> None:
        self._ignored["stale"] += 1
        self._bytes[peer] -= _weight(frame)
        if not self._parts[peer]:
            del self._parts[peer], self._bytes[peer]

    def take(self, plan_id: int) -> list[tuple[PeerId, Frame]]:
        """Take the frames of this plan, each peer's in order of arrival. Others stay: they may be
        of another op."""
        found = [item for item in self._frames if item[1].plan_id == plan_id]
        self._frames = [item for item in self._frames if item[1].plan_id != plan_id]
        for peer, parts in list(self._parts.items()):
            found += [(peer, frame) for _, frame in parts if frame.plan_id == plan_id]
            left = deque(item for item in parts if item[1].plan_id != plan_id)
            if len(left) < len(parts):
                del self._parts[peer], self._bytes[peer]
                if left:
                    self._parts[peer] = left
                    self._bytes[peer] = sum(_weight(frame) for _, frame in left)
        return found


def _weight(frame: Frame) -> int:
    """Return the bytes that a part takes here."""
    return len(frame.body) + limits.EARLY_FRAME_BYTES

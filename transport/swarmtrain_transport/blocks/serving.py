"""Answering GET: results at once, pieces of the state in their turn and at a bounded rate.

A joiner must not slow the exchange of the peers that it takes the state from. So while an op is
under way, pieces for joiners leave at a small share of the measured uplink; between ops at a little
more than all of it, so that little is left in the sockets when the next op begins. Joiners take
turns, piece by piece. Requests beyond a joiner's queue are dropped; it asks again.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.state_download import tag_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted

_EARLY_S = 0.02
"""A piece may leave so long before its time, or a late timer would cost rate."""


class Serving:
    """Requests of others that are not answered yet.

    Args:
        shelves: blobs of each group.

    Attributes:
        queues: requests not served yet, by joiner.
        owed_bytes: bytes that must have had time to leave before more is given.
    """

    def __init__(self, shelves: Sequence[Blobs]) -> None:
        self.shelves = shelves
        self.queues: OrderedDict[PeerId, deque[Wanted]] = OrderedDict()
        self.owed_bytes = 0.0
        self._rate = math.inf
        self._counted_s = 0.0

    def asked(self, peer: PeerId, body: Buffer, run_tag: int, now_s: float) -> Frame | None:
        """A GET came: the answer, or None if it is given in its turn.

        Raises:
            RemoteFault: reason ``length``: it does not name a blob or a piece.
        """
        wanted = Wanted.unpack(body)
        blobs = self._with(wanted.digest)
        size = blobs.size(wanted.digest) if blobs is not None else None
        if blobs is None or size is None or wanted.start + wanted.length > size:
            return Frame(FrameKind.MISSING, run_tag, body=wanted.digest)
        blobs.asked_for(wanted.digest, now_s)
        is_small = size <= limits.STATE_PIECE_BYTES or blobs.is_result(wanted.digest)
        if not wanted.length and is_small:
            return self._frame(wanted, run_tag)
        queue = self.queues.setdefault(peer, deque())
        if len(queue) < limits.JOINER_QUEUE and wanted not in queue:
            queue.append(wanted)
        return None

    def due(
        self, run_tag: int, uplink_bytes_per_s: int, *, in_op: bool, now_s: float
    ) -> list[tuple[PeerId, Frame]]:
        """Pieces whose turn has come.

        Args:
            run_tag: fence of the run's frames.
            uplink_bytes_per_s: measured rate, 0 if it is not known.
            in_op: True if our own exchange is under way.
            now_s: the time.
        """
        self._pay(_rate_for_joiners(uplink_bytes_per_s, in_op=in_op), now_s)
        frames: list[tuple[PeerId, Frame]] = []
        while self.queues and self.owed_bytes <= self._rate * _EARLY_S:
            peer, queue = next(iter(self.queues.items()))
            wanted = queue.popleft()
            self.queues.move_to_end(peer)
            if not queue:
                del self.queues[peer]
            frame = self._frame(wanted, run_tag)
            frames.append((peer, frame))
            if self._rate < math.inf:
                self.owed_bytes += len(frame.body)
        return frames

    def forget(self, peer: PeerId) -> None:
        """This peer is gone."""
        self.queues.pop(peer, None)

    def wakeups(self) -> list[float]:
        """List when `due` has something to give."""
        return [self._counted_s + self.owed_bytes / self._rate] if self.queues else []

    def _pay(self, rate: float, now_s: float) -> None:
        """Time passed at the old rate; from now on the new one holds. Idle time earns nothing."""
        paid = (now_s - self._counted_s) * self._rate if self._rate < math.inf else math.inf
        self.owed_bytes = max(0.0, self.owed_bytes - paid)
        self._counted_s, self._rate = now_s, rate

    def _with(self, digest: bytes) -> Blobs | None:
        """Find the group's store that has this blob."""
        return next((blobs for blobs in self.shelves if digest in blobs), None)

    def _frame(self, wanted: Wanted, run_tag: int) -> Frame:
        blobs = self._with(wanted.digest)
        if blobs is not None and not wanted.length:
            found = blobs.get(wanted.digest)
            if found is not None:
                return Frame(FrameKind.BLOB, run_tag, body=found)
        piece = (
            blobs.piece(wanted.digest, wanted.start, wanted.length) if blobs is not None else None
        )
        if piece is None:
            return Frame(FrameKind.MISSING, run_tag, body=wanted.digest)
        tag = tag_of(wanted.digest)
        return Frame(FrameKind.PIECE, run_tag, chunk=wanted.start, set_id=tag, body=piece)


def _rate_for_joiners(uplink_bytes_per_s: int, *, in_op: bool) -> float:
    """Bytes per second; between ops there is no limit as long as the uplink's rate is unknown."""
    if in_op:
        return max(limits.JOINER_SHARE * uplink_bytes_per_s, limits.JOINER_BYTES_PER_S_MIN)
    if not uplink_bytes_per_s:
        return math.inf
    return max(limits.JOINER_HEADROOM * uplink_bytes_per_s, limits.JOINER_BYTES_PER_S_MIN)

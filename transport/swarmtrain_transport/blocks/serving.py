"""Answering GET: results at once, pieces of the state in their turn and at a bounded rate.

A joiner must not slow the exchange of the peers that it takes the state from. So while an op is
under way, pieces for joiners leave at a small share of the measured uplink; between ops at a little
more than all of it, so that little is left in the sockets when the next op begins. Where the uplink
is thin, or was not measured yet, a piece is given once the one before has left: what a dozen
joiners ask for at once may take a thin line a minute, and an op that begins meanwhile would wait
behind it. Every second piece goes to the joiner that came first, until it has had a whole state,
and the others take turns: who has it gives it on, so that hundreds have it after a few doublings;
and everybody hears something soon. Requests beyond a joiner's queue are dropped; it asks again. So
are those of one that has not asked again for long, or gives to an op: hundreds may ask the first
who holds a state, and their pieces would leave for minutes after they have it from others.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.state_download import tag_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted

_EARLY_S = 0.02
"""A piece may leave so long before its time, or a late timer would cost rate."""

_KEPT_S = 10 * limits.EVICT_S
"""Time for which requests are kept after the joiner's last one, and after the last piece for it. It
asks others in between: of hundreds, one donor after the other for two minutes."""

_LOOK_SHARE = 1 / 8
"""Pause between two looks whether a piece has left, of the time that it has taken so far."""


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
        self._heard_s: dict[PeerId, float] = {}  # the last request, or piece for it
        self._turns: dict[PeerId, int] = {}  # bytes left of each one's turn, in their order
        self._is_for_all = True
        self._rate = math.inf
        self._counted_s = 0.0
        self._last: tuple[PeerId, int, float] | None = None
        self._is_held = False
        self._seen_bytes_per_s = 0.0

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
        self._heard_s[peer] = now_s
        self._turns.setdefault(peer, 0)
        queue = self.queues.setdefault(peer, deque())
        if len(queue) < limits.JOINER_QUEUE and wanted not in queue:
            queue.append(wanted)
        return None

    def due(
        self,
        run_tag: int,
        uplink_bytes_per_s: int,
        *,
        in_op: bool,
        now_s: float,
        is_leaving: Callable[[PeerId], bool] | None = None,
    ) -> list[tuple[PeerId, Frame]]:
        """Pieces whose turn has come.

        Args:
            run_tag: fence of the run's frames.
            uplink_bytes_per_s: measured rate, 0 if it is not known.
            in_op: True if our own exchange is under way.
            now_s: the time.
            is_leaving: tells if a piece that was given for a joiner has not left yet; None where
                nobody can tell.
        """
        is_thin = limits.JOINER_HEADROOM * uplink_bytes_per_s < limits.JOINER_BYTES_PER_S_MIN
        one_by_one = is_leaving if is_thin else None
        waits = one_by_one is not None and self._waits(one_by_one, now_s)
        seen = 0.0 if uplink_bytes_per_s else self._seen_bytes_per_s
        self._pay(_rate_for_joiners(uplink_bytes_per_s, seen, in_op=in_op), now_s)
        frames: list[tuple[PeerId, Frame]] = []
        if not waits:
            self._drop_stale(now_s)
        while not waits and self.queues and self.owed_bytes <= self._rate * _EARLY_S:
            # Whoever has not taken its last piece yet does not get another: nobody's turn is kept
            # for one that takes nothing.
            self._is_for_all = not self._is_for_all
            line = self.queues if self._is_for_all else self._turns
            waiting = (one for one in line if one in self.queues)
            free = (one for one in waiting if one_by_one is None or not one_by_one(one))
            peer = next(free, None)
            if peer is None:
                waits = True
                break
            queue = self.queues[peer]
            wanted = queue.popleft()
            self.queues.move_to_end(peer)
            if not queue:
                del self.queues[peer]
            self._heard_s[peer] = now_s
            frame = self._frame(wanted, run_tag)
            self._given(peer, wanted.digest, len(frame.body))
            frames.append((peer, frame))
            if self._rate < math.inf:
                self.owed_bytes += len(frame.body)
            if one_by_one is not None and frame.kind is FrameKind.PIECE:
                self._last = peer, len(frame.body), now_s
                waits = True
        self._is_held = waits and bool(self.queues)
        return frames

    def have_state(self, peers: AbstractSet[PeerId], blobs: Blobs) -> None:
        """These give to an op of a group: pieces of its state that they asked us for have come from
        others, and would now be in the way of ours."""
        for peer in peers & self.queues.keys():
            queue = self.queues[peer]
            for wanted in [*queue]:
                if wanted.digest in blobs and not blobs.is_result(wanted.digest):
                    queue.remove(wanted)
            if not queue:
                del self.queues[peer]

    def forget(self, peer: PeerId) -> None:
        """This peer is gone."""
        for of_peer in (self.queues, self._heard_s, self._turns):
            of_peer.pop(peer, None)

    def wakeups(self) -> list[float]:
        """List when `due` has something to give, or to look again."""
        if not self.queues:
            return []
        paid_s = self._counted_s + self.owed_bytes / self._rate
        if not self._is_held:
            return [paid_s]
        since_s = self._last[2] if self._last is not None else self._counted_s
        pause_s = max(limits.OUT_LOOK_S, (self._counted_s - since_s) * _LOOK_SHARE)
        return [max(paid_s, self._counted_s + pause_s)]

    def _given(self, peer: PeerId, digest: bytes, num_bytes: int) -> None:
        """A piece is given: whoever has had as much as the whole state comes last from now on."""
        left = self._turns[peer]
        if not left:
            blobs = self._with(digest)
            left = blobs.snapshot_bytes(digest) if blobs is not None else 0
        num_bytes = max(num_bytes, limits.STATE_PIECE_BYTES)  # or bytes one by one took for ever
        if left > num_bytes:
            self._turns[peer] = left - num_bytes
        else:
            del self._turns[peer]
            self._turns[peer] = 0

    def _drop_stale(self, now_s: float) -> None:
        """Let go of joiners that have turned to others."""
        for peer in [one for one, at_s in self._heard_s.items() if now_s > at_s + _KEPT_S]:
            self.forget(peer)

    def _waits(self, is_leaving: Callable[[PeerId], bool], now_s: float) -> bool:
        """Return True while the piece that was given last has not left, for a turn's time at most.
        The time that it took is a measure of the uplink, if it was looked at all the while."""
        if self._last is None:
            return False
        peer, size, since_s = self._last
        passed_s = now_s - since_s
        if is_leaving(peer) and passed_s < limits.PIECE_TURN_S:
            return True
        if self._is_held and passed_s > 0:
            self._seen_bytes_per_s = size / passed_s
        self._last = None
        return False

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


def _rate_for_joiners(uplink_bytes_per_s: int, seen_bytes_per_s: float, *, in_op: bool) -> float:
    """Bytes per second; between ops there is no limit as long as the uplink's rate is unknown. In
    an op, half of the uplink at most, whatever the least is; what single pieces have shown of it
    tells whether it is thin, and nothing else."""
    least = float(limits.JOINER_BYTES_PER_S_MIN)
    if in_op:
        known = uplink_bytes_per_s or seen_bytes_per_s
        least = min(least, known / 2) if known else least
        return max(limits.JOINER_SHARE * uplink_bytes_per_s, least)
    if not uplink_bytes_per_s:
        return math.inf
    return max(limits.JOINER_HEADROOM * uplink_bytes_per_s, least)

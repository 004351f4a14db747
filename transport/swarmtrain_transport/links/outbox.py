"""The stage before the link: the owner's cap, and a queue that keeps the link's own queue short.

Pure: counters and time are arguments, and the caller hands the frames over.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.wire.frames import Frame, FrameKind


class TokenBucket:
    """A cap on bytes, or on anything else, per second. An excess is a debt that time pays.

    So a frame larger than the burst still goes, and the next one waits for it.

    Args:
        per_s: the cap, 0 for none.
        now_s: the time.
        at_once: bytes that may go after a quiet time; None for those that CAP_BURST_S allows.
    """

    def __init__(self, per_s: float, now_s: float, at_once: float | None = None) -> None:
        self._rate = per_s
        self._burst = per_s * limits.CAP_BURST_S if at_once is None else at_once
        self._tokens = self._burst
        self._counted_s = now_s

    def change(self, per_s: float, now_s: float) -> None:
        """Go on with another cap, which pays a debt of the old one."""
        self.is_open(now_s)
        self._rate, self._burst = per_s, per_s * limits.CAP_BURST_S
        self._tokens = min(self._tokens, self._burst)

    @property
    def is_capped(self) -> bool:
        """True if there is a cap."""
        return self._rate > 0

    def is_open(self, now_s: float) -> bool:
        """Return True if something may go now."""
        if not self.is_capped:
            self._counted_s = now_s
            return True
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate)
        self._counted_s = now_s
        return self._tokens > 0

    def spend(self, count: float) -> None:
        """Take so many bytes away: they went."""
        if self.is_capped:
            self._tokens -= count

    @property
    def opens_s(self) -> float:
        """Time at which something may go again."""
        if not self.is_capped:
            return self._counted_s
        return self._counted_s + max(0.0, limits.CAP_PAUSE_S - self._tokens / self._rate)


_HOPS = frozenset({FrameKind.FORWARD, FrameKind.GRADIENT})
"""Frames between two stages of a model: whoever waits for one may have nothing else to do."""


@dataclass(slots=True)
class _Flight:
    """A frame that was handed over, and what the link made of it."""

    frame: Frame
    size: int


@dataclass(slots=True)
class _Line:
    """Frames and bytes that wait to go to one peer."""

    frames: deque[Frame] = field(default_factory=deque)
    hops: deque[Frame] = field(default_factory=deque)
    flying: deque[_Flight] = field(default_factory=deque)
    doubtful: list[Frame] = field(default_factory=list)
    stands: bool = False
    landed: int = 0
    queued: int = 0
    size: int = 0
    put: int = 0
    handed: int = 0
    acked: int = 0
    told: int = 0
    moved_s: float = -math.inf
    seen: int = 0
    looked: int = 0
    paced: int = 0
    best: float = 0.0
    window: float = limits.OUT_LINE_BYTES
    turn: int = 0

    @property
    def under_way(self) -> int:
        return self.handed - self.acked

    def has_on_its_way(self, frame: Frame) -> bool:
        """Return True if a frame with the same body was put and is not known to have arrived."""
        flying = (flight.frame for flight in self.flying)
        return any(earlier.body is frame.body for earlier in (*self.frames, *flying))

    def land(self) -> None:
        """Take acknowledged bytes off those under way."""
        while self.flying and self.landed + self.flying[0].size <= self.acked:
            self.landed += self.flying.popleft().size

    def lose(self) -> None:
        """Wait no more for what was handed over. It may have to go again, if it went to a
        connection that stood."""
        self.looked += self.under_way
        self.paced += self.under_way
        self.acked = self.landed = self.handed
        if self.stands:
            self.doubtful += [one.frame for one in self.flying if one.frame.kind not in _HOPS]
        self.flying.clear()

    def repeat(self, plan_ids: Collection[int] | None) -> None:
        """Put what the last connection has lost before all that waits."""
        lost = [frame for frame in self.doubtful if _is_of(frame, plan_ids)]
        self.doubtful.clear()
        self.frames.extendleft(reversed(lost))
        num_bytes = sum(len(frame.body) for frame in lost)
        self.queued, self.put = self.queued + num_bytes, self.put + num_bytes

    def acked_since_pace(self) -> int:
        """Bytes acknowledged since paces were asked for."""
        count, self.paced = self.acked - self.paced, self.acked
        return count

    def acked_since(self) -> int:
        """Bytes acknowledged since this was last asked."""
        count, self.looked = self.acked - self.looked, self.acked
        return count


class Outbox:
    """Queue of bulk frames before the link: little waits in the link, where nothing can overtake
    it. Frames between stages of a model go first, and leave a share to all else."""

    def __init__(self, cap: TokenBucket | None = None) -> None:
        self._cap = cap
        self._lines: dict[bytes, _Line] = {}
        self.widths: dict[bytes, int] = {}
        self._window = 0.0
        self._lead = 0
        self._is_held = self._is_told = False
        self._turns = 0
        self._looked_s = self._paced_s = -math.inf
        self._moved: deque[tuple[int, float]] = deque(maxlen=limits.OUT_PACE_LOOKS)
        self._best = 0.0
        self._asked_s = -math.inf
        self._plan_ids: Collection[int] | None = None

    def put(self, peer: bytes, frame: Frame) -> None:
        """This is to go to that peer, after what was put for it before.

        An answer that is on its way already, as a result that was not asked for, goes once.
        """
        line = self._lines.setdefault(peer, _Line())
        line.size = max(line.size, len(frame.body))
        if frame.kind in _HOPS:
            line.hops.append(frame)
            return
        if frame.kind is FrameKind.BLOB and line.has_on_its_way(frame):
            return
        line.frames.append(frame)
        line.queued += len(frame.body)
        line.put += len(frame.body)

    def forget(self, peer: bytes) -> None:
        """Send nothing there any more."""
        self._lines.pop(peer, None)

    def keep_only(self, plan_ids: Collection[int]) -> None:
        """Parts and results of other plans than these are of no use to anybody any more."""
        self._plan_ids = plan_ids
        for line in self._lines.values():
            line.frames = deque(frame for frame in line.frames if _is_of(frame, plan_ids))
            line.doubtful = [frame for frame in line.doubtful if _is_of(frame, plan_ids)]
            line.queued = sum(len(frame.body) for frame in line.frames)
            line.put = line.queued

    def receivers(self) -> list[bytes]:
        """Return the peers for whom something waits here."""
        return [peer for peer, line in self._lines.items() if line.frames or line.hops]

    @property
    def is_empty(self) -> bool:
        """True if nothing waits here."""
        return not any(line.frames or line.hops for line in self._lines.values())

    def waiting(self, acked: Mapping[bytes, int] | None, now_s: float) -> dict[bytes, int]:
        """Bytes per peer that wait here, but for those between stages, or are not known to have
        arrived; `acked` and `now_s` as for `due`."""
        self._hear(acked)
        self._give_up(now_s)
        found = {peer: line.queued + line.under_way for peer, line in self._lines.items()}
        return {peer: count for peer, count in found.items() if count}

    def paces(self, bytes_per_s: int, now_s: float) -> dict[bytes, float]:
        """Share the link among those to whom bulk is under way: bytes per second to each at most.

        Flows that share a link take it as they find it, on far ways unevenly for seconds, and a sum
        waits for the slowest of them. So each gets an even share; one that has moved little gets
        four times that, and the others the rest of its share (max-min fairness; Bertsekas and
        Gallager, Data Networks, 6.5.2).

        Args:
            bytes_per_s: known rate of our link, 0 if it is not known: then nobody is held back.
            now_s: the time; `waiting` was asked at it.
        """
        passed_s, self._paced_s = max(1e-3, now_s - self._paced_s), now_s
        busy = {peer: line for peer, line in self._lines.items() if line.frames or line.flying}
        total = 0
        for line in busy.values():
            moved = line.acked_since_pace()
            line.best = max(moved / passed_s, limits.OUT_PACE_KEEP * line.best)
            total += moved
        self._moved.append((total, passed_s))
        window_s = sum(seconds for _, seconds in self._moved)
        recent = sum(count for count, _ in self._moved) / window_s
        self._best = max(recent, limits.OUT_PACE_KEEP * self._best)
        if not bytes_per_s or not busy:
            return {}
        left = limits.OUT_PACE_ROOM * max(bytes_per_s, self._best)
        least = limits.OUT_PACE_LEAST * left / len(busy)
        most = {p: limits.OUT_PACE_GROWTH * line.best or math.inf for p, line in busy.items()}
        paces: dict[bytes, float] = {}
        for peer in sorted(busy, key=lambda one: most[one]):
            share = min(most[peer], left / (len(busy) - len(paces)))
            left -= share
            paces[peer] = max(share, least)
        return paces

    def is_leaving(self, peer: bytes) -> bool:
        """Return True if a piece of a state for this peer waited here, or was not known to have
        arrived, when acknowledgements were told last."""
        line = self._lines.get(peer)
        if line is None:
            return False
        flying = (flight.frame for flight in line.flying)
        return any(frame.kind is FrameKind.PIECE for frame in (*line.frames, *flying))

    @property
    def next_wakeup_s(self) -> float:
        """Time at which `due` may have something to give."""
        if self.is_empty:
            return math.inf
        waiting = [line for line in self._lines.values() if line.frames or line.hops]
        is_lost = self._is_told and not any(line.stands for line in waiting)
        times = limits.OUT_LOOKS_LOST if is_lost else 1
        soon_s = self._asked_s + times * limits.OUT_LOOK_S
        if self._cap is not None:
            return max(soon_s, self._cap.opens_s)
        return soon_s

    def due(
        self,
        acked: Mapping[bytes, int] | None,
        bytes_per_s: int,
        now_s: float,
        most: float = math.inf,
    ) -> list[tuple[bytes, Frame]]:
        """Hand over the frames that may go now.

        Args:
            acked: bytes that each peer has acknowledged since its connection was made; what is for
                others waits until they have one. None where the system does not tell: then nothing
                but the cap holds frames back.
            bytes_per_s: known rate of our link, 0 if it is not known.
            now_s: the time.
            most: bytes after which nothing more is handed over.
        """
        self._asked_s = now_s
        self._is_told = acked is not None
        self._hear(acked)
        self._give_up(now_s)
        is_windowed = acked is not None and bytes_per_s > 0
        if is_windowed:
            self._adapt(bytes_per_s, now_s)
        frames: list[tuple[bytes, Frame]] = []
        self._is_held = False
        while most > 0 and (self._cap is None or self._cap.is_open(now_s)):
            open_lines = self._open_lines(is_told=acked is not None, is_windowed=is_windowed)
            hops = {peer: line for peer, line in open_lines.items() if line.hops}
            bulk = {peer: line for peer, line in open_lines.items() if line.frames}
            if hops and (self._lead <= 0 or not bulk):
                peer = min(hops, key=lambda one: hops[one].turn)
                frame = hops[peer].hops.popleft()
                self._lead = self._lead + len(frame.body) if bulk else 0
            elif bulk:
                peer = _next(bulk)
                frame = self._take(bulk[peer])
            else:
                break
            self._hand_over(open_lines[peer], frame)
            frames.append((peer, frame))
            most -= len(frame.body)
        return frames

    def sent(self, peer: bytes, frame: Frame, num_bytes: int) -> None:
        """Note the size on the wire of a frame that `due` gave: TCP acknowledges that, not the
        body.

        Without it bodies that compress would seem to be under way for ever.

        Args:
            peer: receiver.
            frame: the frame.
            num_bytes: header and body as they go on the wire; 0 if the link refused it.
        """
        line = self._lines.get(peer)
        flying = line.flying if line is not None else ()
        for flight in reversed(flying):
            if line is not None and flight.frame is frame:
                more, flight.size = num_bytes - flight.size, num_bytes
                line.handed += more
                line.acked = min(line.acked, line.handed)
                line.told, line.looked = min(line.told, line.acked), min(line.looked, line.acked)
                line.paced = min(line.paced, line.acked)
                if self._cap is not None:
                    self._cap.spend(more)
                return

    def _hear(self, acked: Mapping[bytes, int] | None) -> None:
        for peer, line in self._lines.items():
            count = acked.get(peer, -1) if acked is not None else -1
            if count < line.seen:
                # No connection, or a new one: what the old one has lost will not be acknowledged.
                line.lose()
                if count >= 0:
                    line.repeat(self._plan_ids)
                line.seen = max(0, count)
            else:
                if not line.stands:
                    line.repeat(self._plan_ids)
                elif count > line.seen:
                    line.doubtful.clear()  # it keeps the order, and so has brought them
                # Encryption and framing are acknowledged too: never more than was handed over.
                line.acked = min(line.handed, line.acked + count - line.seen)
                line.seen = count
            line.stands = count >= 0
            line.land()

    def _give_up(self, now_s: float) -> None:
        """Wait no more for bytes that have stood still for OUT_STUCK_S: they were lost with a
        connection that was made anew, however the counts of the two may look. A receiver that
        misses them asks again."""
        for line in self._lines.values():
            if not line.flying or line.acked > line.told:
                line.moved_s = now_s
            elif now_s >= line.moved_s + limits.OUT_STUCK_S:
                line.lose()
                line.moved_s = now_s
            line.told = line.acked

    def _adapt(self, bytes_per_s: int, now_s: float) -> None:
        """Windows follow what is acknowledged, looked at every OUT_WINDOW_S / 2."""
        least = max(limits.OUT_WINDOW_BYTES, bytes_per_s * limits.OUT_WINDOW_S)
        # Flows beside each other are slow each, and known is what fewer of them have carried.
        least = max(least, sum(self._least(peer) for peer in self._lines if self.widths))
        self._window = max(self._window, least)
        passed_s = now_s - self._looked_s
        if passed_s < limits.OUT_WINDOW_S / 2:
            return
        self._looked_s = now_s
        total = 0.0
        for peer, line in self._lines.items():
            rate = line.acked_since() / passed_s
            total += rate
            line.window = max(self._least(peer), 2 * rate * limits.OUT_WINDOW_S)
        if self._is_held and total < limits.OUT_BUSY * bytes_per_s:
            self._window = min(2 * self._window, limits.OUT_WINDOW_BYTES_MAX)
        else:
            self._window = max(least, self._window / 2)

    def _least(self, peer: bytes) -> int:
        """Bytes that may be under way to a peer in any case. To each of several flows two frames:
        whichever has brought one first takes the next."""
        width = self.widths.get(peer, 1)
        size = max(limits.FLOW_FRAME_BYTES, self._lines[peer].size)
        return limits.OUT_LINE_BYTES if width == 1 else 2 * width * size

    def _open_lines(self, *, is_told: bool, is_windowed: bool) -> dict[bytes, _Line]:
        """Lines with something that may go now."""
        waiting = {
            peer: line
            for peer, line in self._lines.items()
            if (line.frames or line.hops) and (line.stands or not is_told)
        }
        if is_windowed:
            waiting = {p: line for p, line in waiting.items() if line.under_way < line.window}
            under_way = sum(line.under_way for line in self._lines.values())
            if waiting and under_way >= self._window:
                self._is_held = True
                return {}
        return waiting

    def _take(self, line: _Line) -> Frame:
        frame = line.frames.popleft()
        line.queued -= len(frame.body)
        if not line.frames:
            line.put = 0
        self._lead = max(0, self._lead) - limits.OUT_HOPS * len(frame.body)
        return frame

    def _hand_over(self, line: _Line, frame: Frame) -> None:
        size = len(frame.body)
        line.handed += size
        line.flying.append(_Flight(frame, size))
        self._turns += 1
        line.turn = self._turns
        if len(line.flying) == 1:
            line.moved_s = self._asked_s
        if self._cap is not None:
            self._cap.spend(size)


def _is_of(frame: Frame, plan_ids: Collection[int] | None) -> bool:
    """Return True unless it is a part, sum or result of another plan than these."""
    is_of_plan = frame.kind in (FrameKind.PART, FrameKind.SUM, FrameKind.RESULT)
    return plan_ids is None or not is_of_plan or frame.plan_id in plan_ids


def _next(waiting: Mapping[bytes, _Line]) -> bytes:
    """The peer whose share has most left; of equal ones whoever was served longest ago."""
    return max(
        waiting,
        key=lambda peer: (waiting[peer].queued / max(1, waiting[peer].put), -waiting[peer].turn),
    )

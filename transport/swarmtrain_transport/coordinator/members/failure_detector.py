"""Failure detector: one peer's line of life, as the coordinator sees it, late or gone."""

import math
from dataclasses import dataclass

from swarmtrain_transport import limits


@dataclass(slots=True)
class LifeLine:
    """Evidence about one peer.

    Attributes:
        heard_s: time of its last message (or of the start of this term).
        closed_s: time when its control connection closed, None while it is open.
        awaited_s: time from which an acknowledgement of records is awaited, None while none is.
        idle_s: time from which it has moved no bytes although it owes parts, None while it does.
        idle_limit_s: longest time for which it may do so.
        unreached_s: time from which on most other peers cannot reach it, None while they can.
        patience_s: silence after which it is suspected.
        called_s: time at which an op has called for it: its silence counts from then on.
    """

    heard_s: float
    closed_s: float | None = None
    awaited_s: float | None = None
    idle_s: float | None = None
    idle_limit_s: float = limits.IDLE_S
    unreached_s: float | None = None
    patience_s: float = limits.SUSPECT_S
    called_s: float = -math.inf

    def called(self, now_s: float) -> None:
        """A PLAN names the peer, which speaks more often from now on."""
        if self.patience_s > limits.SUSPECT_S:
            self.patience_s, self.called_s = limits.SUSPECT_S, now_s

    def heard(self, now_s: float) -> None:
        """A message came in."""
        self.heard_s = now_s
        self.closed_s = None

    def moved(self, now_s: float, bytes_per_s: float, *, is_idle: bool) -> None:
        """The peer says whether it has moved bytes.

        Args:
            now_s: the time.
            bytes_per_s: measured rate of its uplink, 0 if it is not known.
            is_idle: True if it has moved none, and owes parts.
        """
        if not is_idle:
            self.idle_s = None
        elif self.idle_s is None:
            chunk_s = limits.CHUNK_VALUES / bytes_per_s if bytes_per_s > 0 else 0.0
            self.idle_s = now_s
            self.idle_limit_s = max(limits.IDLE_S, limits.IDLE_CHUNKS * chunk_s)

    def closed(self, now_s: float) -> None:
        """The control connection closed."""
        if self.closed_s is None:
            self.closed_s = now_s

    def pardon(self, now_s: float) -> None:
        """Nobody listened until now: that was not the peer's silence."""
        self.heard_s = now_s
        if self.closed_s is not None:
            self.closed_s = now_s
        if self.awaited_s is not None:
            self.awaited_s = now_s
        self.idle_s = None

    @property
    def suspect_at_s(self) -> float:
        """From this moment on the peer counts as suspected."""
        # `silent_at_s`, which would be a call for each peer at every message.
        moment_s = max(self.heard_s, self.called_s) + self.patience_s
        if self.closed_s is not None:
            moment_s = min(moment_s, self.closed_s + limits.SUSPECT_CLOSED_S)
        if self.awaited_s is not None:
            moment_s = min(moment_s, self.awaited_s + self.patience_s)
        if self.idle_s is not None:
            moment_s = min(moment_s, self.idle_s + self.idle_limit_s)
        if self.unreached_s is not None:
            moment_s = min(moment_s, self.unreached_s)
        return moment_s

    @property
    def silent_at_s(self) -> float:
        """Time from which on the peer is silent: it has no word in decisions."""
        return max(self.heard_s, self.called_s) + self.patience_s

    @property
    def away_at_s(self) -> float:
        """From this moment on the rounds of a pipeline go on without the peer."""
        silent_s = self.heard_s + limits.HOP_SILENCE_S
        closed_s = math.inf if self.closed_s is None else self.closed_s + limits.AWAY_CLOSED_S
        unreached_s = math.inf if self.unreached_s is None else self.unreached_s
        return min(silent_s, closed_s, unreached_s)

    @property
    def evict_at_s(self) -> float:
        """From this moment on the peer is evicted."""
        return self.heard_s + limits.EVICT_S

    def is_alive(self, now_s: float) -> bool:
        """Return True if the peer takes part in decisions."""
        return now_s < self.suspect_at_s

    def fault(self, now_s: float) -> str:
        """Say why the peer is suspected, in the words of FREEZE's exclusions."""
        if now_s >= self.silent_at_s or self.closed_s is not None:
            return "lost"
        if self.awaited_s is not None and now_s >= self.awaited_s + self.patience_s:
            return "deaf"
        if self.unreached_s is not None:
            return "unreachable"
        return "idle" if self.idle_s is not None else "lost"

    def is_gone(self, now_s: float) -> bool:
        """Return True if the peer leaves the roster."""
        return now_s >= self.evict_at_s

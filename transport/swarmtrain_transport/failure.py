"""Who is late, who is gone: one peer's line of life, as the coordinator sees it.

Intuition: a heartbeat that the application itself sends proves that the machine runs; a closed
connection is stronger evidence than silence, but a home router may only have blinked. So there
are two steps. A *suspected* peer is left out of decisions and relieved of its slices, which costs
it one op; only after long silence is it *evicted* from the roster. Both are functions of the time
of the last message, so the same inputs give the same verdict in production and in replay.
"""

from dataclasses import dataclass

from swarmtrain_transport import limits


@dataclass(slots=True)
class LifeLine:
    """Evidence about one peer.

    Attributes:
        heard_s: time of its last message (or of the start of this term).
        closed_s: when its control connection closed, None while it is open.
    """

    heard_s: float
    closed_s: float | None = None

    def heard(self, now_s: float) -> None:
        """A message came in."""
        self.heard_s = now_s
        self.closed_s = None

    def closed(self, now_s: float) -> None:
        """The control connection closed."""
        if self.closed_s is None:
            self.closed_s = now_s

    def pardon(self, now_s: float) -> None:
        """Nobody listened until now: that was not the peer's silence."""
        self.heard_s = now_s
        if self.closed_s is not None:
            self.closed_s = now_s

    @property
    def suspect_at_s(self) -> float:
        """From this moment on the peer counts as suspected."""
        silence = self.heard_s + limits.SUSPECT_S
        if self.closed_s is None:
            return silence
        return min(silence, self.closed_s + limits.SUSPECT_CLOSED_S)

    @property
    def evict_at_s(self) -> float:
        """From this moment on the peer is evicted."""
        return self.heard_s + limits.EVICT_S

    def is_alive(self, now_s: float) -> bool:
        """Whether the peer takes part in decisions."""
        return now_s < self.suspect_at_s

    def is_gone(self, now_s: float) -> bool:
        """Whether the peer leaves the roster."""
        return now_s >= self.evict_at_s

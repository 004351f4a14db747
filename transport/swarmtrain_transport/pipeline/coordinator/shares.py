"""How many micro-batches each source makes of a round, so that all are done together.

A source that comes in the midst of a round gets as many as go into the time that the round still
has. Without that a round in which a fast source is replaced would wait for the slow ones alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_high, median_low

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.wire.route import Process


@dataclass(slots=True)
class Shares:
    """Shares of the round that is under way, or of its step.

    Attributes:
        given: to each source of the round.
    """

    given: dict[Process, int] = field(default_factory=dict)
    _paces: dict[Process, float] = field(default_factory=dict)
    _began_s: dict[Process, float] = field(default_factory=dict)
    _usual: int = 0
    _ends_s: float = -math.inf

    def divide(self, sources: Iterable[Process], usual: int, now_s: float) -> None:
        """A round begins: share its micro-batches out, of which a source makes so many on average.

        By what each source brought to its end in a second of the last round, by the coordinator's
        own clock and as far as the middle source allows; one that has shown nothing counts as the
        middle one.
        """
        self._usual = usual
        names = sorted(sources)
        self._began_s = dict.fromkeys(names, now_s)
        known = self._known(names)
        middle = median_low(known) if known else math.inf
        if middle == math.inf:
            self.given, self._ends_s = dict.fromkeys(names, usual), -math.inf
            return
        least, most = middle / limits.PACE_SPREAD, middle * limits.PACE_SPREAD
        weights = {one: min(max(self._paces.get(one, middle), least), most) for one in names}
        total, whole = usual * len(names), sum(weights.values())
        parts = {one: total * weight / whole for one, weight in weights.items()}
        self.given = {one: max(1, int(part)) for one, part in parts.items()}
        by_rest = sorted(parts, key=lambda one: (self.given[one] - parts[one], one))
        for one in by_rest[: max(0, total - sum(self.given.values()))]:
            self.given[one] += 1
        self._ends_s = now_s + total / whole

    def again(self, now_s: float) -> None:
        """The next step of the round begins."""
        self._began_s = dict.fromkeys(self.given, now_s)

    def come(self, process: Process, now_s: float) -> int:
        """A source comes in the midst of the round; its share, which may be nothing. It counts as
        the middle one of those who have shown their pace lately."""
        known, left_s = self._known(self._paces), self._ends_s - now_s
        if not known or left_s <= 0 or process in self.given:
            return 0
        share = min(int(median_high(known) * left_s), self._usual)
        if share:
            self.given[process], self._began_s[process] = share, now_s
        return share

    def drained(self, process: Process, whole: int, now_s: float) -> float:
        """A source has made its share, of which so many came back; the seconds that it took."""
        took_s = now_s - self._began_s[process]
        self._paces[process] = whole / took_s if took_s > 0 else math.inf
        return took_s

    def give_up(self, process: Process) -> None:
        """A source has not drained in time: it makes nothing more of this round."""
        del self.given[process]
        self._paces.pop(process, None)

    def forget(self, process: Process) -> None:
        """A source is gone for good."""
        self._paces.pop(process, None)

    def _known(self, sources: Iterable[Process]) -> list[float]:
        return [pace for one in sources if (pace := self._paces.get(one)) and pace < math.inf]

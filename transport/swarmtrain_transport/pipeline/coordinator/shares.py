"""Shares of a round: the micro-batches that each source makes, so that all are done together.

A source that comes in the midst of a round gets as many as go into the time that the round still
has. Without that a round in which a fast source is replaced would wait for the slow ones alone.

A round keeps its size: what a source that is gone had not made yet, by its pace, is dealt anew to
those that are here. What it had made counts where it was counted: to make that again costs the
stages behind it as much, and the longer a round is the more of it dies with the next peer. It is
dealt once one of the sources has nothing left to make: until then whoever comes in the place of the
dead may take its part. A round deals no more anew than it began with, so it ends however many come
and die.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from statistics import median_high, median_low

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.wire.route import Process


@dataclass(slots=True)
class Shares:
    """Shares of the round that is under way, or of its step.

    Attributes:
        given: micro-batches given to each source of the round or of the step, away or not.
        size: micro-batches that those who are here are to make in all.
    """

    given: dict[Process, int] = field(default_factory=dict)
    size: int = 0
    _first: dict[Process, int] = field(default_factory=dict)
    _paces: dict[Process, float] = field(default_factory=dict)
    _began_s: dict[Process, float] = field(default_factory=dict)
    _usual: int = 0
    _ends_s: float = -math.inf
    _to_deal: int = 0
    _left_behind: dict[Process, int] = field(default_factory=dict)

    @property
    def sources(self) -> Set[Process]:
        """Sources of the round that have not been given up."""
        return self._first.keys()

    def divide(self, sources: Iterable[Process], usual: int, now_s: float) -> None:
        """A round begins: share its micro-batches out, of which a source makes so many on average.

        By what each source brought to its end in a second of the last round, by the coordinator's
        own clock and as far as the middle source allows; one that has shown nothing counts as the
        middle one.
        """
        names = sorted(sources)
        self._usual, self._ends_s = usual, -math.inf
        self._began_s = dict.fromkeys(names, now_s)
        paces, total = self._bounded(names), usual * len(names)
        whole = sum(paces.values())
        self.given = _rounded({one: total * pace / whole for one, pace in paces.items()}, total, 1)
        self._first, self.size = dict(self.given), sum(self.given.values())
        self._to_deal = self.size
        self._left_behind.clear()
        if self._known(names):
            self._ends_s = now_s + total / whole

    def again(self, present: Collection[Process], now_s: float) -> None:
        """The next step of the round begins, with those of its sources that are present: they make
        as many as all of them."""
        first = {one: share for one, share in self._first.items() if one in present}
        whole = sum(first.values())
        parts = {one: self.size * share / whole for one, share in first.items()}
        self.given = _rounded(parts, self.size, 1)
        self._began_s = dict.fromkeys(self.given, now_s)

    def come(self, process: Process, present: Iterable[Process], now_s: float) -> int:
        """A source comes in the midst of the round; its share, which may be nothing. It counts as
        the middle one of those who have shown their pace lately. If it makes more than is missing,
        the round becomes larger."""
        known, left_s = self._known(self._paces), self._ends_s - now_s
        if not known or left_s <= 0 or process in self.given:
            return 0
        share = min(int(median_high(known) * left_s), self._usual)
        if share:
            self.given[process], self._began_s[process] = share, now_s
            self.size = max(self.size, self.size - self._missing(present))
        return share

    def deal(
        self, present: Iterable[Process], able: Collection[Process], busy: Collection[Process],
        now_s: float,
    ) -> dict[Process, int]:  # fmt: skip
        """Deal what is missing of the round to those of its sources that are able to make it, so
        that all are done together. Returns how many each of them makes in addition.

        Args:
            present: sources that are here.
            able: those of them that may be asked.
            busy: those that have not drained.
            now_s: the time.
        """
        missing = min(self._missing(present), self._to_deal)
        if missing <= 0:
            return {}
        paces = self._bounded(sorted(able))
        free_s = dict.fromkeys(paces, now_s)
        for one in paces.keys() & set(busy):
            free_s[one] = max(now_s, self._began_s[one] + self.given[one] / paces[one])
        self._ends_s = _level(free_s, paces, missing)
        parts = {one: pace * max(0.0, self._ends_s - free_s[one]) for one, pace in paces.items()}
        more = {one: count for one, count in _rounded(parts, missing, 0).items() if count}
        for one, count in more.items():
            self.given[one] = self.given.get(one, 0) + count
            self._began_s.setdefault(one, now_s)
        self._to_deal -= missing
        return more

    def drained(self, process: Process, whole: int, now_s: float) -> float:
        """A source has made its share, of which so many came back; the seconds that it took."""
        if process in self._left_behind:
            self._left_behind[process] = self.given[process]
        took_s = now_s - self._began_s[process]
        self._paces[process] = whole / took_s if took_s > 0 else math.inf
        return took_s

    def give_up(self, process: Process) -> None:
        """A source has not drained in time: it makes nothing more of this round, nor does anybody
        else in its place, as nobody knows what is missing."""
        self._first.pop(process, None)
        self.size -= self.given.pop(process, 0)
        self._paces.pop(process, None)

    def left(self, process: Process, is_done: bool, now_s: float) -> None:
        """A source is gone, or away: note how many it has made of its share, all if it is done."""
        share = self.given.get(process, 0)
        if share and not is_done:
            pace = sum(self._known([process]))  # nothing where it has shown none
            share = min(share, int(pace * (now_s - self._began_s[process])))
        self._left_behind[process] = share

    def forget(self, process: Process) -> None:
        """A source is gone for good."""
        self._paces.pop(process, None)

    def _missing(self, present: Iterable[Process]) -> int:
        here = set(present)
        gone = sum(count for one, count in self._left_behind.items() if one not in here)
        return self.size - gone - sum(self.given.get(one, 0) for one in here)

    def _known(self, sources: Iterable[Process]) -> list[float]:
        return [pace for one in sources if (pace := self._paces.get(one)) and pace < math.inf]

    def _bounded(self, sources: Collection[Process]) -> dict[Process, float]:
        """The pace of each, as far as the middle one allows; 1 where nobody has shown any."""
        known = self._known(sources)
        if not known:
            return dict.fromkeys(sources, 1.0)
        middle = median_low(known)
        least, most = middle / limits.PACE_SPREAD, middle * limits.PACE_SPREAD
        return {one: min(max(self._paces.get(one, middle), least), most) for one in sources}


def _rounded(parts: Mapping[Process, float], total: int, least: int) -> dict[Process, int]:
    """Whole numbers near the parts, of the same sum where each may have so few."""
    given = {one: max(least, int(part)) for one, part in parts.items()}
    by_rest = sorted(parts, key=lambda one: (given[one] - parts[one], one))
    for one in by_rest[: max(0, total - sum(given.values()))]:
        given[one] += 1
    return given


def _level(free_s: Mapping[Process, float], paces: Mapping[Process, float], count: int) -> float:
    """The time at which so many are made, by sources that are free from then on."""
    pace = made = 0.0
    for one in sorted(free_s, key=lambda one: (free_s[one], one)):
        if pace and made + count <= pace * free_s[one]:
            break
        pace += paces[one]
        made += paces[one] * free_s[one]
    return (made + count) / pace

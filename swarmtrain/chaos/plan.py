"""The plan of faults: what is broken, when, and for how long, drawn from a seed.

Pure, so the same seed means the same plan on every machine; how far the run has come when a deed
falls due is another matter. Two rules: so many peers stay untouched that rounds can be committed,
and the last part of the time is calm, so that everybody can catch up before states are compared.
"""

import random
from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    """Deeds against a run. Data links are those by which others reach the peer, its control link is
    the one to the coordinator."""

    KILL = "kill"
    STOP = "stop"
    LEAVE = "leave"
    CUT_DATA = "cut-data"
    CUT_CONTROL = "cut-control"
    CUT_ALL = "cut-all"
    MUTE_DATA = "mute-data"
    MUTE_UP = "mute-up"
    MUTE_DOWN = "mute-down"
    GARBLE = "garble-data"
    RESTART = "restart-coordinator"
    STOP_COORDINATOR = "stop-coordinator"
    NEWCOMER = "newcomer"


COORDINATORS = frozenset({Deed.RESTART, Deed.STOP_COORDINATOR})
"""Deeds against the coordinator."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deed.

    Attributes:
        at_s: seconds after all founders hold the first state.
        victim: name of the peer, "" for the coordinator.
        lasts_s: seconds after which it is mended; 0 for what needs no mending.
    """

    at_s: float
    deed: Deed
    victim: str
    lasts_s: float

    @property
    def mended_s(self) -> float:
        """Time of the mend, counted as `at_s` is."""
        return self.at_s + self.lasts_s


_WEIGHTS = {
    Deed.KILL: 4, Deed.STOP: 4, Deed.LEAVE: 2, Deed.CUT_DATA: 2, Deed.CUT_CONTROL: 2,
    Deed.CUT_ALL: 2, Deed.MUTE_DATA: 2, Deed.MUTE_UP: 1, Deed.MUTE_DOWN: 1, Deed.GARBLE: 2,
    Deed.RESTART: 3, Deed.STOP_COORDINATOR: 2, Deed.NEWCOMER: 1,
}  # fmt: skip
"""Chances of each deed to be drawn, relative to the others."""

_PROCESS_S = 6.0
"""A process that is started anew needs about so long until it takes part."""

_BREATH_S = 2.0
"""From a mend until the same peer may be the next victim."""

_GAPS_S = (0.5, 5.0)
"""From one deed to the next."""

_SHORT_S = (0.3, 8.0)
_LONG_S = (15.0, 40.0)
"""Absences: most are ridden out, long ones end in eviction (30 s of silence)."""

_LONG_SHARE = 0.15
_LONG_FROM_S = 120.0
"""In a shorter plan a long absence would be all there is."""

_COORDINATOR_AWAY_MAX_S = 6.0

_NEWCOMERS_MAX = 2

_CALM_SHARE = 0.2
_CALM_MAX_S = 40.0


def calm_from_s(seconds: float) -> float:
    """Return from when on nothing is broken any more, and all is mended.

    Args:
        seconds: length of the whole plan.
    """
    return seconds - min(_CALM_MAX_S, _CALM_SHARE * seconds)


def draw_plan(
    seed: int,
    seconds: float,
    founders: tuple[str, ...],
    newcomers: tuple[str, ...],
    min_contributors: int,
) -> tuple[Step, ...]:
    """All deeds in the order of their times.

    Args:
        seed: seed of every choice.
        seconds: time from the first state to the end.
        newcomers: names of peers that may come later, at most two of them do.
        min_contributors: number of peers that are always untouched.
    """
    draw = _Draw(
        random.Random(seed), calm_from_s(seconds), seconds >= _LONG_FROM_S,
        list(newcomers[:_NEWCOMERS_MAX]), min_contributors, dict.fromkeys(founders, 0.0),
    )  # fmt: skip
    return tuple(draw.steps())


@dataclass(slots=True)
class _Draw:
    """One plan in the making; peers are free again at these times."""

    _rng: random.Random
    _calm_s: float
    _has_long: bool
    _newcomers: list[str]
    _min: int
    _free_s: dict[str, float]
    _coordinator_free_s: float = 0.0

    def steps(self) -> list[Step]:
        """The plan."""
        found: list[Step] = []
        now_s = self._rng.uniform(*_GAPS_S)
        while now_s < self._calm_s:
            step = self._step(now_s)
            if step is not None:
                found.append(step)
            now_s += self._rng.uniform(*_GAPS_S)
        return found

    def _step(self, now_s: float) -> Step | None:
        """Return the deed that happens now, None if nothing may."""
        deed = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        lasts_s = self._lasts_s(deed, now_s)
        if deed in COORDINATORS:
            if now_s < self._coordinator_free_s:
                return None
            starts_s = _PROCESS_S if deed is Deed.RESTART else _BREATH_S
            self._coordinator_free_s = now_s + lasts_s + starts_s
            return Step(now_s, deed, "", lasts_s)
        if deed is Deed.NEWCOMER:
            if not self._newcomers or now_s + _PROCESS_S > self._calm_s:
                return None
            name = self._newcomers.pop(0)
            self._free_s[name] = now_s + _PROCESS_S + _BREATH_S
            return Step(now_s, deed, name, 0.0)
        return self._against_a_peer(deed, now_s, lasts_s)

    def _against_a_peer(self, deed: Deed, now_s: float, lasts_s: float) -> Step | None:
        free = [name for name, free_s in self._free_s.items() if free_s <= now_s]
        if len(free) <= self._min:
            return None
        victim = self._rng.choice(free)
        starts = _PROCESS_S if deed in (Deed.KILL, Deed.LEAVE) else 0.0
        self._free_s[victim] = now_s + lasts_s + starts + _BREATH_S
        return Step(now_s, deed, victim, lasts_s)

    def _lasts_s(self, deed: Deed, now_s: float) -> float:
        """Drawn for every deed alike, so that a plan's later choices do not depend on earlier
        refusals; never beyond the beginning of the calm."""
        is_long = self._rng.random() < _LONG_SHARE and self._has_long
        lasts_s = self._rng.uniform(*(_LONG_S if is_long else _SHORT_S))
        if deed in COORDINATORS:
            lasts_s = min(lasts_s, _COORDINATOR_AWAY_MAX_S)
        return min(lasts_s, self._calm_s - now_s)

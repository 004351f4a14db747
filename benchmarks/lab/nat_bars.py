"""Ways that peers behind routers should meet by, beside those they met by: pure, without a net.

A direction is sender to receiver. A way is a word of `swarmtrain status`: dialled, turned, punched
or relayed; "none" where the coordinator knows of no way, "?" where it says nothing of ways.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("none", "cone", "restricted", "symmetric", "mapped")
"""Kinds of routers that natlab.sh makes."""

ROUNDS = 3
"""Rounds with both in them that a pair shall make."""

UNTOLD, NO_WAY = "?", "none"

DIRECT, PUNCHED, RELAYED = ("dialled", "turned"), ("punched",), ("relayed",)

_OPEN = ("none", "cone", "mapped")
"""A stranger's connection comes through, or does once a port is mapped."""

_HEADINGS = ("pair", "there", "back", "asked", "first round", "rounds", "roots", "")


def pairs_of(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Return all pairs, either order being the same, a kind with itself included.

    Raises:
        ValueError: a kind is none that natlab.sh makes.
    """
    kinds = list(dict.fromkeys(kinds))
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"no kind of router: {kind}; there are {', '.join(KINDS)}")
    return list(itertools.combinations_with_replacement(kinds, 2))


def asked(one: str, other: str, family: int = 4) -> tuple[str, ...]:
    """Return the ways that are good enough between two kinds, in either direction.

    Args:
        one: kind of a router.
        other: kind of the other router.
        family: 6 where routers have no ports to give: they only filter.
    """
    if one in _OPEN or other in _OPEN:
        return DIRECT
    if family == 6 or (one, other) == ("restricted", "restricted"):
        return PUNCHED
    if one == other:
        return RELAYED
    # Ports of the symmetric one cannot be foreseen; whoever gets through all the same is no worse.
    return PUNCHED + RELAYED


def asked_words(ways: Sequence[str]) -> str:
    """Say what is asked as the issue does."""
    return "direct" if tuple(ways) == DIRECT else " or ".join(ways)


@dataclass(slots=True)
class Row:
    """One pair of peers, and how they met.

    Attributes:
        kinds: kinds of their routers.
        asked: ways that are good enough.
        there: way from the first to the second.
        back: way from the second to the first.
        first_s: seconds from when both were in the run until the first round of both; None without.
        rounds: number of rounds with both in them.
        roots_differ: rounds after which their state roots differed.
        failed: what went wrong besides, in words; "" if nothing did.
    """

    kinds: tuple[str, str]
    asked: tuple[str, ...]
    there: str = UNTOLD
    back: str = UNTOLD
    first_s: float | None = None
    rounds: int = 0
    roots_differ: list[int] = field(default_factory=list)
    failed: str = ""

    @property
    def verdict(self) -> str:
        """Return "met", or why not."""
        if self.failed:
            return self.failed
        if not self.rounds:
            return "no way"
        if self.rounds < ROUNDS:
            return "too few rounds"
        if self.roots_differ:
            return "roots differ"
        if UNTOLD in (self.there, self.back):
            return "trained; the ways are not told"
        return "met" if {self.there, self.back} <= set(self.asked) else "missed"

    @property
    def holds(self) -> bool:
        """True if the bar is met."""
        return self.verdict == "met"

    def as_json(self) -> dict[str, Any]:
        """Return the row for programs."""
        return {
            "kinds": list(self.kinds), "there": self.there, "back": self.back,
            "asked": asked_words(self.asked), "first_s": self.first_s, "rounds": self.rounds,
            "roots_equal": bool(self.rounds) and not self.roots_differ, "verdict": self.verdict,
            "holds": self.holds,
        }  # fmt: skip


def table(rows: Iterable[Row]) -> list[str]:
    """Return the rows as aligned lines under headings."""
    cells = [_HEADINGS]
    for row in rows:
        roots = "differ" if row.roots_differ else "equal" if row.rounds else "-"
        seconds = "-" if row.first_s is None else f"{row.first_s:.1f} s"
        cells.append((
            " - ".join(row.kinds), row.there, row.back, asked_words(row.asked), seconds,
            str(row.rounds), roots, row.verdict,
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of a scenario beside its bar; without a bar it is only told.

    Attributes:
        name: name of the figure.
        found: the figure, in words.
        bar: bar in words, "" for none.
        holds: True if the bar is met.
    """

    name: str
    found: str
    bar: str = ""
    holds: bool = True

    @property
    def line(self) -> str:
        """The fact as a line for people."""
        if not self.bar:
            return f"{self.name}: {self.found}"
        return f"{self.name}: {self.found} (asked: {self.bar}), {'met' if self.holds else 'missed'}"

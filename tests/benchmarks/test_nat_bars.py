"""Ways asked of peers behind routers, and how those that were found are told."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

LAB = Path(__file__).resolve().parents[2] / "benchmarks" / "lab"


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(LAB))
    monkeypatch.delitem(sys.modules, "nat_bars", raising=False)
    return importlib.import_module("nat_bars")


def test_four_kinds_make_ten_pairs(bars: ModuleType) -> None:
    pairs = bars.pairs_of(["cone", "restricted", "symmetric", "none"])
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == 10
    assert ("symmetric", "symmetric") in pairs
    assert bars.pairs_of(["cone", "cone"]) == [("cone", "cone")]


def test_a_kind_that_no_router_is_of_is_refused(bars: ModuleType) -> None:
    with pytest.raises(ValueError, match="no kind of router: moat; there are none, cone"):
        bars.pairs_of(["cone", "moat"])


@pytest.mark.parametrize("shut", ["restricted", "symmetric"])
@pytest.mark.parametrize("open_", ["none", "cone", "mapped"])
def test_one_open_end_is_enough_to_meet_directly(bars: ModuleType, open_: str, shut: str) -> None:
    for kinds in ((open_, shut), (shut, open_), (open_, open_)):
        assert bars.asked_words(bars.asked(*kinds)) == "direct"


def test_two_shut_ends_punch_where_ports_can_be_foreseen(bars: ModuleType) -> None:
    assert bars.asked("restricted", "restricted") == ("punched",)
    assert bars.asked("symmetric", "symmetric") == ("relayed",)
    assert bars.asked_words(bars.asked("symmetric", "restricted")) == "punched or relayed"
    # Without ports to give out, one router filters as the other does.
    assert bars.asked("symmetric", "symmetric", family=6) == ("punched",)


def row(bars: ModuleType, **facts: object) -> object:
    whole = {"there": "dialled", "back": "turned", "first_s": 3.21, "rounds": 3}
    return bars.Row(("none", "restricted"), bars.DIRECT, **(whole | facts))


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({}, "met"),
        ({"back": "relayed"}, "missed"),
        ({"back": "none"}, "missed"),
        ({"there": "?", "back": "?"}, "trained; the ways are not told"),
        ({"rounds": 0, "first_s": None}, "no way"),
        ({"rounds": 2}, "too few rounds"),
        ({"roots_differ": [2]}, "roots differ"),
        ({"failed": "p0 ended with exit status 4"}, "p0 ended with exit status 4"),
    ],
)
def test_only_what_was_seen_is_met(
    bars: ModuleType, facts: dict[str, object], verdict: str
) -> None:
    judged = row(bars, **facts)
    assert judged.verdict == verdict
    assert judged.holds == (verdict == "met") == judged.as_json()["holds"]


def test_a_table_shows_each_direction_beside_what_is_asked(bars: ModuleType) -> None:
    lines = bars.table([row(bars), row(bars, rounds=0, first_s=None, there="none")])
    assert [line.split("  ")[0] for line in lines] == ["pair", *["none - restricted"] * 2]
    assert " ".join(lines[1].split()) == "none - restricted dialled turned direct 3.2 s 3 equal met"
    assert " ".join(lines[2].split()) == "none - restricted none turned direct - 0 - no way"
    assert len({line.index("turned") for line in lines[1:]} | {lines[0].index("back")}) == 1


def test_a_fact_without_a_bar_is_only_told(bars: ModuleType) -> None:
    assert bars.Fact("faults", "3 x move").line == "faults: 3 x move"
    missed = bars.Fact("rounds", "1", "3 in 90 s", holds=False)
    assert missed.line == "rounds: 1 (asked: 3 in 90 s), missed"

"""The lab's table: which rows count, and each bar beside what was measured."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LAB = Path(__file__).resolve().parents[2] / "benchmarks" / "lab"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the lab by name; they import each other as a script's neighbours do."""
    monkeypatch.syspath_prepend(str(LAB))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == LAB:
            del sys.modules[name]


def exchange(block: str, system: str, t: float, mode: str = "int8", **more: Any) -> dict[str, Any]:
    row = {
        "block": block, "command": f"bench {system} {block} {mode}", "system": system,
        "mode": mode, "t": t, "t_min": t, "t_max": t, "ratio": None, "tx_mb": 1.0, "cpu_s": 0.1,
        "err": 0.01, "date": "2026-11-21 12:00", "revision": "abc", "machine": "m", "tcp": "bbr",
    }  # fmt: skip
    return row | more


def verdicts(report: ModuleType, rows: list[dict[str, Any]]) -> list[str]:
    text = report.markdown(report.newest(rows), {})
    return [line.split(" | ")[-1].strip(" |") for line in text.splitlines() if " x" in line]


def test_a_bar_that_is_missed_is_shown_as_missed(lab: Any) -> None:
    report = lab("report")
    gloo = exchange("100-4", "gloo", 5.0, "fp32")
    quick = exchange("100-4", "swarmtrain", 1.0, ratio=1.05)
    slow = exchange("100-4", "swarmtrain", 2.0, ratio=1.40)
    assert verdicts(report, [gloo, quick]) == ["met"]
    assert verdicts(report, [gloo, slow]) == ["**missed**"]
    text = report.markdown(report.newest([slow]), {"100-4": [slow["command"]]})
    assert "at most 1.10 of the limit of its own bytes | 1.40 | **missed** |" in text


def test_the_newest_row_of_a_command_counts_unless_it_failed(lab: Any) -> None:
    report = lab("report")
    first, second = (exchange("100-4", "gloo", t, "fp32") for t in (5.0, 6.0))
    broken = {**first, "failed": "wrong result"}
    assert report.newest([first, second])[first["command"]]["t"] == 6.0
    assert "failed" not in report.newest([first, broken])[first["command"]]
    assert report.newest([broken, first])[first["command"]]["t"] == 5.0


def test_a_row_that_was_cut_off_in_writing_is_left_out(lab: Any, tmp_path: Path) -> None:
    table = lab("table")
    whole = exchange("100-4", "gloo", 5.0, "fp32")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:40])
    assert table.read(path) == [whole]
    assert table.read(tmp_path / "none") == []


def test_every_block_has_a_title_and_commands_that_parse(lab: Any) -> None:
    table, report = lab("table"), lab("report")
    assert list(table.BLOCKS) == list(report.TITLES)
    for commands in table.BLOCKS.values():
        for command in commands:
            tool, *words = command.split()
            table.TOOLS[tool].arguments(words)

"""The pipelines' benchmarks: what they compare, and that nothing is left of them."""

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmtrain.foundation.events import RoundEnded
from swarmtrain.plan.forecast import parse_peers
from tests.plan.test_forecast import config_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PREFIX = f"nt{os.getpid() % 1000}"


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    monkeypatch.setenv("LAB_NET", PREFIX)
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "lab"))
    path, known = list(sys.path), set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "pipelines"))
    yield importlib.import_module
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if BENCHMARKS in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


def test_states_are_compared_where_two_peers_tell_of_one(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    churn = load("churn")
    for name, roots in (("p00", ("aa", "bb")), ("p01", ("aa", "cc")), ("p10-1", ("dd",))):
        told = (
            RoundEnded(round, "merged", 2, root, stage=int(name[1]))
            for round, root in enumerate(roots, start=1)
        )
        lines = [msgspec.json.encode(event) for event in told]
        (tmp_path / f"{name}.out").write_bytes(b"\n".join([*lines, b'{"event": "rou']))
    assert churn.roots(tmp_path) == (2, 1)


def test_everybody_is_killed_before_anybody_a_second_time(load: Callable[[str], Any]) -> None:
    drawn = load("churn").victims(0)
    assert len(set(itertools.islice(drawn, 6))) == len(set(itertools.islice(drawn, 6))) == 6


def test_a_run_that_fails_leaves_neither_process_nor_namespace(
    load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    links = load("links")
    seen: dict[str, Any] = {}

    def fail(run: Any, name: str, program: Any, *words: str) -> None:
        seen["inside"] = namespaces()
        seen["process"] = run.processes[name] = subprocess.Popen(
            [*run.hosts[name].words, "sleep", "60"], process_group=run.guard.pid
        )
        raise RuntimeError("no coordinator")

    monkeypatch.setattr(links.Run, "_start", fail)
    options = links.options_of(["--net", "0:0", "--timeout", "20"])
    try:
        with pytest.raises(RuntimeError, match="no coordinator"):
            links.links(options, tmp_path)
    except SystemExit:
        pytest.skip("this machine allows no network namespaces")
    assert all(f"{PREFIX}-p{index}" in seen["inside"] for index in range(4))
    assert seen["process"].poll() is not None
    assert PREFIX not in namespaces()


def test_peers_of_one_speed_spread_until_no_move_helps(load: Callable[[str], Any]) -> None:
    spreading = load("spreading").spreading
    peers = parse_peers("7*laptop@fibre")
    found = spreading(config_of(), peers, (5, 1, 1))
    assert found.moves and sum(found.end) == 7 and found.end[0] == 5 - found.moves
    assert spreading(config_of(), peers, found.end).moves == 0

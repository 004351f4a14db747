"""The pipelines' benchmark of links: nothing is left of its net, whatever ends it."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PREFIX = f"nt{os.getpid() % 1000}"


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    monkeypatch.setenv("LAB_NET", PREFIX)
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "lab"))
    path, known = list(sys.path), set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "pipelines"))
    yield importlib.import_module("links")
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if BENCHMARKS in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


def test_a_run_that_fails_leaves_neither_process_nor_namespace(
    links: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

"""Rig of the pipelines' benchmarks: the processes of a run in stages, and how a figure is told."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from swarmtrain import status
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig

STAGES = 3

POLL_S = 0.1

RUN_FILE = """\
[run]
name = "pipelines"
rounds = {rounds}
[model]
layers = {layers}
width = {width}
heads = {heads}
context = {context}
[inner]
batch = {batch}
[outer]
inner_steps = {steps}
[exchange]
start_peers = {peers}
[pipeline]
stages = {stages}
"""


class Run:
    """The processes of one run, which end with this one whatever happens.

    Args:
        folder: an empty one.
        deadline_s: monotonic; everything is over by then.
        settings: of the run file.
    """

    def __init__(self, folder: Path, deadline_s: float, **settings: int) -> None:
        self.folder, self.deadline_s = folder, deadline_s
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        path = folder / "run.toml"
        path.write_text(RUN_FILE.format(**settings, stages=STAGES))
        self.config: RunConfig = config_file.load(path)
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "swarmtrain.demo.guard"], stdin=subprocess.PIPE, process_group=0
        )

    def __enter__(self) -> "Run":
        with ExitStack() as on_failure:
            on_failure.push(self)
            self._start("up", "up", f"{self.folder}/run.toml", "--listen", "127.0.0.1:0")
            while not (self.folder / "up.out").read_text().strip():
                self.check()
                time.sleep(POLL_S)
            on_failure.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """The guard ends its group, itself included."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        for process in (*self.processes.values(), self.guard):
            process.wait()

    def join(self, name: str, *words: str) -> None:
        """Start a peer."""
        self._start(
            name, "join", "--invite-file", f"{self.folder}/up.out", "--name", name, "--yes",
            "--listen", "127.0.0.1:0", *words,
        )  # fmt: skip

    def _start(self, name: str, *words: str) -> None:
        out, log = (self.folder / f"{name}.{kind}" for kind in ("out", "log"))
        with out.open("wb") as said, log.open("wb") as told:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "swarmtrain", *words,
                 "--state-dir", str(self.folder / name)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=told,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, process_group=self.guard.pid,
            )  # fmt: skip

    def check(self) -> None:
        """Raise if something has gone wrong, or takes longer."""
        late = time.monotonic() > self.deadline_s
        for name, process in self.processes.items():
            if late or process.poll():
                said = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-5:]
                print(f"{name} ({process.returncode}):", *said, sep="\n  ", file=sys.stderr)
        if late or any(process.poll() for process in self.processes.values()):
            raise RuntimeError("the run was not over in time" if late else "a process has failed")

    def watch(self) -> Iterator[dict[str, Any]]:
        """The coordinator's status again and again, until the run is over."""
        while any(process.poll() is None for process in self.processes.values()):
            self.check()
            try:
                yield status.ask(self.folder / "up")
            except status.NotRunning:
                yield {}  # it writes its last words, or peers do
            time.sleep(POLL_S)

    def cpu_s(self) -> float:
        """CPU seconds of all processes so far."""
        words = [self.told(name, "stat").rpartition(")")[2].split() for name in self.processes]
        return sum(int(word) for one in words for word in one[11:13]) / os.sysconf("SC_CLK_TCK")

    def told(self, name: str, file: str) -> str:
        """A file of /proc about a process; "" once it has ended."""
        try:
            return Path(f"/proc/{self.processes[name].pid}/{file}").read_text()
        except OSError:
            return ""


def parser_of(words: str) -> argparse.ArgumentParser:
    """Options that every figure has. A script adds its own."""
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds; then it has failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def told(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Path], dict[str, Any]],
    row: Callable[[str, Any], str] = "{}: {:.6g}".format,
) -> int:
    """Measure in a folder of its own, print, and return the exit status: 0 where the bar holds.

    Args:
        options: of the command line.
        measure: gives the figures, "holds" among them.
        row: a figure as a line for people.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="swarmtrain-pipelines-") as folder:
        figures = measure(options, Path(folder))
    if options.json:
        print(json.dumps(figures))
    else:
        print(*(row(name, value) for name, value in figures.items()), sep="\n")
    return 0 if figures["holds"] else 1

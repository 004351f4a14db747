"""Rig of the pipelines' benchmarks: the processes of a run in stages, and how a figure is told."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

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
micro_batch = {micro_batch}
activations = "{activations}"
"""

DEFAULTS: dict[str, int | str] = {"activations": "int8", "stages": STAGES, "micro_batch": 0}

SWARMTRAIN = ("-m", "swarmtrain")


class Host(NamedTuple):
    """Where a process runs.

    Attributes:
        words: of a command that runs another one there.
        ip: at which it listens.
    """

    words: tuple[str, ...] = ()
    ip: str = "127.0.0.1"


HERE = Host()

PASSES = 3
"""Of a micro-batch through a stage: one forward, and a backward pass takes two."""


class Run:
    """The processes of one run, which end with this one whatever happens.

    Args:
        folder: an empty one.
        deadline_s: monotonic; everything is over by then.
        hosts: of processes by their names, where they run elsewhere; the coordinator's is "up".
        settings: of the run file.
    """

    def __init__(
        self, folder: Path, deadline_s: float, hosts: Mapping[str, Host] | None = None,
        **settings: int | str,
    ) -> None:  # fmt: skip
        self.folder, self.deadline_s, self.hosts = folder, deadline_s, hosts or {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ticks: dict[str, int] = {}
        path = folder / "run.toml"
        path.write_text(RUN_FILE.format(**DEFAULTS | settings))
        self.config: RunConfig = config_file.load(path)
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "swarmtrain.local_run.guard"],
            stdin=subprocess.PIPE,
            process_group=0,
        )

    def __enter__(self) -> "Run":
        with ExitStack() as on_failure:
            on_failure.push(self)
            self._start("up", SWARMTRAIN, "up", f"{self.folder}/run.toml", "--linger", "0")
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

    def join(self, name: str, *words: str, program: Sequence[str] = SWARMTRAIN) -> None:
        """Start a peer."""
        invite = ("--invite-file", f"{self.folder}/up.out", "--name", name, "--yes")
        self._start(name, program, "join", *invite, *words)

    def join_paced(self, pass_s: float, *words: str, program: Sequence[str] = SWARMTRAIN) -> None:
        """Start two peers of each stage, of which one takes so long for a pass, the other twice."""
        for stage in range(STAGES):
            for index, each_s in enumerate((pass_s, 2 * pass_s)):
                paced = ("--span", str(stage), "--pass-seconds", str(each_s))
                self.join(f"p{stage}{index}", *paced, *words, program=program)

    def kill(self, name: str) -> None:
        """End a peer as a power cut would; nobody waits for it any more."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def _start(self, name: str, program: Sequence[str], *words: str) -> None:
        host = self.hosts.get(name, HERE)
        out, log = (self.folder / f"{name}.{kind}" for kind in ("out", "log"))
        with out.open("wb") as said, log.open("wb") as told:
            self.processes[name] = subprocess.Popen(
                [*host.words, sys.executable, *program, *words,
                 "--listen", f"{host.ip}:0", "--state-dir", str(self.folder / name)],
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
        """CPU seconds of all processes so far, as far as they were looked at."""
        for name in self.processes:
            if words := self.told(name, "stat").rpartition(")")[2].split():
                self._ticks[name] = sum(map(int, words[11:13]))
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def told(self, name: str, file: str) -> str:
        """A file of /proc about a process; "" once it has ended."""
        try:
            return Path(f"/proc/{self.processes[name].pid}/{file}").read_text()
        except OSError:
            return ""


class Diary:
    """Rounds of a run as its coordinator books them.

    Args:
        run: that is watched.

    Attributes:
        booked: what the run had counted at the end of each round, and when.
        exchanges_s: seconds from a round's books to its result.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.booked: list[dict[str, float]] = []
        self.exchanges_s: list[float] = []

    def note(self, view: dict[str, Any]) -> None:
        """Look at the coordinator's status."""
        now_s, pipeline = time.monotonic(), view.get("pipeline", {})
        if len(self.exchanges_s) < len(self.booked) <= view.get("committed", 0):
            self.exchanges_s.append(now_s - self.booked[-1]["at_s"])
        if pipeline.get("made", 0) > (self.booked[-1]["made"] if self.booked else 0):
            counts = {name: pipeline[name] for name in ("made", "whole", "lost", "redone")}
            self.booked.append({"at_s": now_s, "cpu_s": self._run.cpu_s(), **counts})

    def between(self, first: int, last: int) -> dict[str, float]:
        """Figures from the end of one round to that of another."""
        began, ended = self.booked[first], self.booked[last]
        spent = {name: ended[name] - began[name] for name in began}
        rate, config = spent["whole"] / spent["at_s"], self._run.config
        return {
            "micro_batches": spent["whole"], "seconds": spent["at_s"], "micro_batches_per_s": rate,
            "tokens_per_s": rate * config.pipeline.micro_batch * config.model.context,
            "lost": spent["lost"], "redone": spent["redone"],
            "cores_busy": spent["cpu_s"] / spent["at_s"],
        }  # fmt: skip


def machine() -> dict[str, Any]:
    """Cores and load of the machine, which others may use as well."""
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0]}


def parser_of(words: str, timeout_s: float = 900.0) -> argparse.ArgumentParser:
    """Options that every figure has. A script adds its own."""
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--timeout", type=float, default=timeout_s, help="seconds of a run; then it has failed"
    )
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

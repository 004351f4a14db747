"""A model in stages as it runs: micro-batches a second by what its peers allow, and their memory.

    python benchmarks/pipelines.py speed  [--pass-seconds 0.1] [--rounds 3] [--steps 20] [--json]
    python benchmarks/pipelines.py memory [--layers 12] [--width 640] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond a bar. Linux only: it reads
/proc. `speed`: three stages of two peers each, one twice as fast as the other; peers sleep until a
pass has taken its time, so that the machine need not have six cores. `memory`: a peer of each stage
and a full replica in one run, beside a full replica of next to no model.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from swarmtrain import status
from swarmtrain.config import file as config_file
from swarmtrain.config.built_in import num_values_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import stage_parameters
from swarmtrain.pipeline.costs import slots_of, stage_needs

STAGES = 3
SPEED_BAR = 0.90
MEMORY_BAR = 1.15
"""Of the full replica's memory by the number of stages; inputs and activations are beside it."""

WARMUP_ROUNDS = 3
PASSES = 3
"""Of a micro-batch through a stage: one forward, and a backward pass takes two."""

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


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Micro-batches that all stages have counted, by the clock and by what peers allow."""
    rounds = WARMUP_ROUNDS + options.rounds
    passes_s = (options.pass_seconds, 2 * options.pass_seconds)
    allowed = sum(1 / (PASSES * pass_s) for pass_s in passes_s)
    books: list[dict[str, float]] = []
    exchanges_s: list[float] = []
    with Run(
        folder, time.monotonic() + options.timeout, rounds=rounds, steps=options.steps,
        layers=4, width=32, heads=2, context=32, batch=12, peers=2 * STAGES,
    ) as run:  # fmt: skip
        for stage in range(STAGES):
            for index, pass_s in enumerate(passes_s):
                words = ("--span", str(stage), "--pass-seconds", str(pass_s))
                run.join(f"p{stage}{index}", *words)
        for view in run.watch():
            now_s, pipeline = time.monotonic(), view.get("pipeline", {})
            if len(exchanges_s) < len(books) and view.get("committed", 0) >= len(books):
                exchanges_s.append(now_s - books[-1]["at_s"])
            if pipeline.get("made", 0) > (books[-1]["made"] if books else 0):
                counts = {name: pipeline[name] for name in ("made", "whole", "lost", "redone")}
                books.append({"at_s": now_s, "cpu_s": run.cpu_s(), **counts})
    if len(books) < rounds:
        raise RuntimeError(f"{len(books)} rounds were seen of {rounds}")
    first, last = books[WARMUP_ROUNDS - 1], books[-1]
    spent = {name: last[name] - first[name] for name in first}
    exchange_s = sum(exchanges_s[WARMUP_ROUNDS - 1 : len(books) - 1])
    rate = spent["whole"] / spent["at_s"]
    return {
        "micro_batches": spent["whole"], "seconds": spent["at_s"],
        "micro_batches_per_s": rate, "allowed_per_s": allowed, "ratio": rate / allowed,
        "tokens_per_s": rate * run.config.pipeline.micro_batch * run.config.model.context,
        "exchange_seconds": exchange_s,
        "ratio_between_exchanges": spent["whole"] / (spent["at_s"] - exchange_s) / allowed,
        "lost": spent["lost"], "redone": spent["redone"],
        "cores_busy": spent["cpu_s"] / spent["at_s"], "cores": os.cpu_count(),
        "load": os.getloadavg()[0], "bar": SPEED_BAR, "holds": rate / allowed >= SPEED_BAR,
    }  # fmt: skip


def peaks(folder: Path, deadline_s: float, spans: list[str], **settings: int) -> tuple[Run, Any]:
    """A short run's peers and the most memory that each has had, in bytes."""
    folder.mkdir()
    highest: dict[str, int] = {}
    with Run(folder, deadline_s, **settings, context=64, batch=6, steps=2, rounds=2,
             peers=len(spans)) as run:  # fmt: skip
        for span in spans:
            run.join(span, "--span", span)
        for _ in run.watch():
            for span in spans:
                _, found, rest = run.told(span, "status").partition("VmHWM:")
                if found:
                    highest[span] = 1024 * int(rest.split()[0])
    return run, highest


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peak memory of a peer of each stage by that of a full replica."""
    deadline_s, whole = time.monotonic() + options.timeout, f"0-{STAGES - 1}"
    _, small = peaks(folder / "idle", deadline_s, [whole], layers=3, width=32, heads=2)
    spans = [*map(str, range(STAGES)), whole]
    run, highest = peaks(
        folder / "model", deadline_s, spans, layers=options.layers, width=options.width, heads=10
    )
    idle, full = small[whole], highest[whole] - small[whole]
    stages: dict[str, dict[str, float]] = {}
    for stage, need in enumerate(stage_needs(run.config)):
        held, beside = highest[str(stage)] - idle, slots_of(run.config) * need.input_bytes
        room = MEMORY_BAR / STAGES * full + beside + need.pass_bytes
        stages[f"stage {stage}"] = {"bytes": held, "of_full": held / full, "room": room}
    return {
        "parameters": sum(num_values_of(found) for found in stage_parameters(run.config)),
        "idle_bytes": idle, "full_bytes": full, "stages": stages,
        "holds": all(one["bytes"] <= one["room"] for one in stages.values()),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=("speed", "memory"))
    parser.add_argument("--pass-seconds", type=float, default=0.1, help="of a fast peer's pass")
    parser.add_argument("--rounds", type=int, default=3, help="after those that warm up")
    parser.add_argument("--steps", type=int, default=20, help="of each peer in a round")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=640, help="a multiple of 20")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds; then it has failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="swarmtrain-pipelines-") as folder:
        figures = {"speed": speed, "memory": memory}[options.figure](options, Path(folder))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.pop("stages", {}).items():
            print(f"{name}: {value['bytes'] / 1e6:.0f} MB of {value['room'] / 1e6:.0f} MB allowed")
        print(*(f"{name}: {value:.6g}" for name, value in figures.items()), sep="\n")
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

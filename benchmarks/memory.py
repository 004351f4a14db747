"""Host memory of a peer beyond its model and optimizer, phase by phase, in vectors of the model.

    python benchmarks/memory.py [--strategy diloco] [--kind hook] [--json]

A vector is the model's values as float32. Two peers train some rounds on loopback; the second one
downloads the state, leaves after two rounds and comes back from its checkpoint. In each phase the
most resident memory counts that was seen every few milliseconds (RssAnon, Linux alone), less what
the process had before it made its model, less parameters, gradients and inner optimizer state as
they lie in memory then. Pages of files are not in it: the system takes them back when it likes.
During inner steps the memory between two steps counts: activations are the model's own. Exit
status 1 above the bar.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from figures import parser_of, resident

BAR_VECTORS = 4.5

LOOK_S = 0.003

ROUNDS = 4
STAYS_ROUNDS = 2
"""Rounds after which the second peer leaves, to come back."""

RUN_FILE = """\
[run]
name = "memory"
rounds = {rounds}
[model]
{model}
[data]
{data}
[inner]
batch = 1
[outer]
strategy = "{strategy}"
inner_steps = {steps}
[exchange]
codec = "{codec}"
start_peers = 2
min_contributors = 2
wait_ready_s = 120.0
deadline_floor_s = 120.0
deadline_cap_s = 240.0
[checkpoint]
every_rounds = 1
"""
BUILT_IN = "layers = {layers}\nwidth = {width}\nheads = 8\ncontext = 32"


class Meter:
    """Peak memory of this process by phases.

    Attributes:
        peaks: bytes by the name of a phase, beyond what was there at `begin` and `owned`.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._stack = ["start"]
        self._base = self._most = 0
        self.owned: Callable[[], int] = lambda: 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self._most = max(self._most, resident())
            time.sleep(LOOK_S)

    def begin(self) -> None:
        """What is here now is the interpreter's and its libraries'."""
        self._base = self._most = resident()

    def _note(self) -> None:
        now = resident()
        phase = self._stack[-1]
        most = now if phase == "inner steps" else max(now, self._most)
        found = most - self._base - self.owned()
        self.peaks[phase] = max(self.peaks.get(phase, 0), found)
        self._most = 0

    def switch(self, phase: str) -> None:
        """The phase that lasts until another one begins."""
        self._note()
        self._stack[-1] = phase

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """A phase inside another one."""
        self._note()
        self._stack.append(phase)
        try:
            yield
        finally:
            self._note()
            self._stack.pop()

    def wrap(self, owner: Any, name: str, phase: str, *, then: str = "") -> None:
        """Let a method be a phase of its own, and another one begin after it."""
        inner = getattr(owner, name)

        def timed(*args: Any, **words: Any) -> Any:
            with self.within(phase):
                found = inner(*args, **words)
            if then:
                self.switch(then)
            return found

        setattr(owner, name, timed)


def watch(meter: Meter) -> None:
    """Let the phases of a peer be seen."""
    from swarmtrain.peer.training.driver import Driver
    from swarmtrain.peer.training.saves import Saves
    from swarmtrain.peer.training.session import Session

    meter.wrap(Session, "attach", "begin", then="download")
    meter.wrap(Driver, "load", "load", then="inner steps")
    meter.wrap(Driver, "contribute", "begin_op", then="exchange")
    meter.wrap(Driver, "end_op", "end_op", then="inner steps")
    meter.wrap(Saves, "save", "checkpoint")
    meter.wrap(Session, "_evaluate", "evaluation")


def train(options: argparse.Namespace) -> dict[str, float]:
    """One peer's life in this process, and its peaks in vectors."""
    import torch

    torch.set_num_threads(1)
    meter = Meter()
    values = 0

    def own(model: torch.nn.Module, optimizer_of: Callable[[], torch.optim.Optimizer]) -> None:
        nonlocal values
        values = sum(one.numel() for one in model.parameters())

        def owned() -> int:
            state = (one for each in optimizer_of().state.values() for one in each.values())
            tensors = [one for one in state if isinstance(one, torch.Tensor)]
            tensors += model.parameters()
            tensors += [one.grad for one in model.parameters() if one.grad is not None]
            return sum(one.numel() * one.element_size() for one in tensors)

        meter.owned = owned

    (_hook if options.kind == "hook" else _command)(options, meter, own)
    meter.switch("end")
    meter.peaks.pop("start", None)
    return {phase: peak / (4 * values) for phase, peak in meter.peaks.items()}


def _hook(options: argparse.Namespace, meter: Meter, own: Callable[..., None]) -> None:
    import torch
    from torch import nn

    import swarmtrain
    import swarmtrain.peer.training.session

    _warm(nn.Linear(64, 64), torch)
    watch(meter)
    meter.begin()
    layers = [nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers)]
    model = nn.Sequential(*layers).to(getattr(torch, options.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    own(model, lambda: optimizer)
    place = {"state_dir": options.folder / options.name, "name": options.name, "strict": True}
    with swarmtrain.join(model, optimizer, options.invite, **place) as swarm:
        while not swarm.should_stop and swarm.round < options.stays:
            loss = model(torch.randn(1, options.width, dtype=layers[0].weight.dtype)).square()
            loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def _warm(model: Any, torch: Any) -> None:
    """Whatever torch loads for a first step is no peer's."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(1, 64)).sum().backward()
    optimizer.step()


def _command(options: argparse.Namespace, meter: Meter, own: Callable[..., None]) -> None:
    import torch

    from swarmtrain.config.options import Endpoint, JoinOptions
    from swarmtrain.foundation.events import RoundEnded
    from swarmtrain.peer import run
    from swarmtrain_transport.credentials.invite import Invite

    _warm(torch.nn.Linear(64, 64), torch)
    watch(meter)
    make, entered = run.BuiltinTrainer.__init__, run._Peer.__init__
    peers: list[Any] = []

    def made(trainer: Any, *args: Any, **words: Any) -> None:
        meter.begin()
        make(trainer, *args, **words)
        own(trainer.model, lambda: trainer._optimizer)

    def heard(event: object) -> None:
        if isinstance(event, RoundEnded) and event.round >= options.stays:
            peers[0].request_stop()

    def enter(peer: Any, *args: Any, **words: Any) -> None:
        peers.append(peer)
        entered(peer, *args, **words)

    asked = JoinOptions(
        invite=Invite.parse(options.invite), name=options.name, listen=Endpoint("127.0.0.1", 0),
        state_dirs=(options.folder / options.name,), json_events=True,
    )  # fmt: skip
    with (
        patch.object(run.BuiltinTrainer, "__init__", made),
        patch.object(run._Peer, "__init__", enter),
    ):
        run.run_peer(asked, say=lambda line: print(line, file=sys.stderr), emit=heard)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The run: a coordinator and two peers, the second of which comes twice."""
    with tempfile.TemporaryDirectory(prefix="swarmtrain-memory-") as name:
        folder, is_hook = Path(name), options.kind == "hook"
        (folder / "run.toml").write_text(RUN_FILE.format(
            rounds=ROUNDS, strategy=options.strategy, codec=options.codec, steps=options.steps,
            model='kind = "custom"' if is_hook else BUILT_IN.format(**vars(options)),
            data='source = "own"' if is_hook else "",
        ) + options.more.replace("\\n", "\n"))  # fmt: skip
        started: list[subprocess.Popen[bytes]] = []

        def start(out: str, *words: str) -> subprocess.Popen[bytes]:
            with (
                (folder / f"{out}.out").open("wb") as told,
                (folder / f"{out}.log").open("wb") as log,
            ):
                command = [sys.executable, *words]
                started.append(subprocess.Popen(command, stdout=told, stderr=log))
            return started[-1]

        def peer(out: str, who: str, stays: int) -> subprocess.Popen[bytes]:
            words = vars(options) | {"name": who, "folder": name, "stays": stays, "invite": invite}
            del words["json"]
            return start(out, __file__, *(f"--{key}={value}" for key, value in words.items()))

        deadline_s = time.monotonic() + options.timeout
        try:
            start("up", "-m", "swarmtrain", "up", f"{name}/run.toml", "--state-dir", f"{name}/up",
                  "--listen", "127.0.0.1:0")  # fmt: skip
            while not (invite := (folder / "up.out").read_text().strip()):
                time.sleep(0.1)
            lives = {
                "first": peer("first", "a", ROUNDS),
                "newcomer": peer("newcomer", "b", STAYS_ROUNDS),
            }
            _ended(lives["newcomer"], deadline_s, folder / "newcomer.log")
            lives["come back"] = peer("come back", "b", ROUNDS)
            for life in ("first", "come back"):
                _ended(lives[life], deadline_s, folder / f"{life}.log")
            found = {life: json.loads((folder / f"{life}.out").read_text()) for life in lives}
        finally:
            for process in started:
                process.kill()
                process.wait()
    phases = list(dict.fromkeys(phase for one in found.values() for phase in one))
    peaks = {phase: max(one.get(phase, 0.0) for one in found.values()) for phase in phases}
    return {"strategy": options.strategy, "kind": options.kind, "lives": found, "peaks": peaks,
            "peak": max(peaks.values()), "bar": BAR_VECTORS}  # fmt: skip


def _ended(process: subprocess.Popen[bytes], deadline_s: float, log: Path) -> None:
    if process.wait(timeout=max(1.0, deadline_s - time.monotonic())):
        sys.exit(f"a peer has failed:\n{log.read_text(errors='replace')[-3000:]}")


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--kind", choices=("hook", "command"), default="hook")
    parser.add_argument("--strategy", default="diloco")
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=2048, help="of hook: layers x width^2 values")
    parser.add_argument("--steps", type=int, default=4, help="inner steps of a round")
    parser.add_argument("--dtype", default="float32", help="of a hook's parameters")
    parser.add_argument("--more", default="", help="lines for the run file")
    parser.add_argument("--timeout", type=float, default=600.0)
    for hidden in ("--name", "--invite"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stays", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.invite:
        os.environ.pop("SWARMTRAIN_INVITE", None)
        print(json.dumps(train(options)))
        return 0
    found = measure(options)
    if options.json:
        print(json.dumps(found))
    else:
        for phase, peak in found["peaks"].items():
            lives = "  ".join(
                f"{life} {one.get(phase, 0):.2f}" for life, one in found["lives"].items()
            )
            print(f"{phase:12} {peak:5.2f} vectors   ({lives})")
        print(f"peak {found['peak']:.2f} vectors of float32 (bar {BAR_VECTORS})")
    return 0 if found["peak"] <= BAR_VECTORS else 1


if __name__ == "__main__":
    sys.exit(main())

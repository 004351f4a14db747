"""A peer of training.py: it trains by a strategy, and tells what its time goes to.

An inner step is a pause of a drawn length in which a part of the weights changes, so that two cores
do not measure their own lack of cores; with REAL=1 rank 0 computes its steps, on a core of its own.
A step ends with the optimizer's, before the swarm's hook; what comes after it is the swarm's. Each
so many steps as a round has are one line of RUN_DIR/told-RANK.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import lab_peer
import swarm_lab
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import swarmtrain
from swarmtrain.config import file as config_file
from swarmtrain.models.build import build_model

RANK = lab_peer.RANK
STEPS, STEP_S = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
IS_REAL = bool(int(os.environ["REAL"])) and RANK == 0
TRAINING_CORE = 0
PIECE = 1 << 20


class Paused:
    """Steps that take their time and no processor: a share of the weights changes in each, all in a
    round, otherwise at every peer and in every step."""

    def __init__(self, model: nn.Module) -> None:
        self._flat = [each.detach().view(-1) for each in model.parameters()]
        self._noise = torch.Generator().manual_seed(RANK)
        self._chance = random.Random(RANK)
        self._made = 0

    def __call__(self) -> None:
        end_s = time.perf_counter() + STEP_S * self._chance.uniform(0.95, 1.05)
        noise = torch.randn(PIECE, generator=self._noise) * 1e-3
        pieces = [piece for each in self._flat for piece in each.split(PIECE)]
        for piece in pieces[self._made % STEPS :: STEPS]:
            piece += noise[: len(piece)]
        self._made += 1
        time.sleep(max(0.0, end_s - time.perf_counter()))


class Computed:
    """Steps that are made, each of one example of noise."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._chance = model, torch.Generator().manual_seed(RANK)

    def __call__(self) -> None:
        ids = torch.randint(256, (1, 129), generator=self._chance)
        logits: Tensor = self._model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 256), ids[:, 1:].reshape(-1))
        loss.backward()


class Window:
    """Sums over as many steps as a round has."""

    def __init__(self) -> None:
        self.inner_s = self.outer_s = self.computes_s = self.queued_s = 0.0
        self.steps: list[tuple[float, float, bool]] = []

    def told(self) -> dict[str, Any]:
        return {
            "inner_s": self.inner_s, "outer_s": self.outer_s, "computes_s": self.computes_s,
            "queued_s": self.queued_s, "round": swarm.round, "steps": self.steps,
        }  # fmt: skip


coordinator = None
if RANK == 0:
    coordinator = swarm_lab.start_coordinator([
        "-m", "swarmtrain", "up", str(lab_peer.RUN_DIR / "run.toml"),
        "--listen", f"{lab_peer.IP0}:0", "--state-dir", str(lab_peer.RUN_DIR / "coordinator"),
    ])  # fmt: skip
model = build_model(config_file.load(lab_peer.RUN_DIR / "model.toml"), seed=7)
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
if IS_REAL:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
step = Computed(model) if IS_REAL else Paused(model)
ended = (0.0, 0.0, 0.0)


def clocks() -> tuple[float, float, float]:
    """Seconds by the clock, those that this thread computed, and those that it could have if there
    had been a core."""
    queued_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter(), time.thread_time(), queued_ns / 1e9


def step_ends(*_: object) -> None:
    """The optimizer's part of the step is done: the swarm's begins."""
    global ended
    ended = clocks()


optimizer.register_step_post_hook(step_ends)  # hooks run in the order in which they were registered
invite = swarm_lab.invite()
lab_peer.barrier({"at": "loaded"})
with (
    swarmtrain.join(
        model, optimizer, invite, name=f"rank-{RANK}", listen=f"{lab_peer.IP}:0",
        state_dir=lab_peer.RUN_DIR / f"peer-{RANK}", strict=True,
    ) as swarm,
    Path(lab_peer.RUN_DIR / f"told-{RANK}").open("a") as told,
):  # fmt: skip
    session = swarm._session  # type: ignore[attr-defined]

    def is_exchanging() -> bool:
        """True if what was given has no outcome yet, as far as it is heard between two steps."""
        return session.driver.is_waiting and not session.machine._outcomes

    if IS_REAL:
        os.sched_setaffinity(0, {TRAINING_CORE})  # this thread's alone; the others stay
    while not swarm.should_stop:
        window = Window()
        for _ in range(STEPS):
            began = clocks()
            was_exchanging = is_exchanging()
            step()
            optimizer.step()
            if was_exchanging == is_exchanging():
                whole, computed, queued = (
                    end - begin for end, begin in zip(ended, began, strict=True)
                )
                window.steps.append((whole - queued, computed, was_exchanging))
            now = clocks()
            window.inner_s += ended[0] - began[0]
            window.outer_s += now[0] - ended[0]
            window.computes_s += now[1] - ended[1]
            window.queued_s += now[2] - ended[2]
            optimizer.zero_grad()
        told.write(json.dumps(window.told()) + "\n")
        told.flush()

"""A peer that trains a vector of NUMEL values by a strategy: MODE is its name, such as noloco.

One round is one inner step that costs next to nothing, and the exchange that follows it: from the
optimizer's step to the outcome in the weights. Rank 0's machine runs the coordinator too. Nobody
knows a true mean here, so the error that is reported is 0.
"""

import os
import time

import lab_peer
import swarm_lab
import torch
from torch import nn

import swarmtrain

RUN_FILE = """
[run]
name = "lab"
rounds = {rounds}
[model]
kind = "custom"
[data]
source = "own"
[outer]
strategy = "{strategy}"
inner_steps = 1
[exchange]
start_peers = {peers}
min_contributors = {peers}
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(7)
        self.weights = nn.Parameter(torch.randn(lab_peer.NUMEL, generator=chance) * 0.02)


def change(model: Model, chance: torch.Generator) -> None:
    """Move all weights, otherwise at every peer and in every round."""
    noise = torch.randn(1 << 20, generator=chance) * 1e-3
    with torch.no_grad():
        for piece in model.weights.split(len(noise)):
            piece += noise[: len(piece)]


rounds = lab_peer.WARM + lab_peer.REPS
coordinator = None
if lab_peer.RANK == 0:
    run_file = lab_peer.RUN_DIR / "run.toml"
    run_file.write_text(
        RUN_FILE.format(rounds=rounds, strategy=lab_peer.MODE, peers=lab_peer.WORLD)
    )
    coordinator = swarm_lab.start_coordinator([
        "-m", "swarmtrain", "up", str(run_file),
        "--listen", f"{lab_peer.IP0}:0", "--state-dir", str(lab_peer.RUN_DIR / "coordinator"),
    ])  # fmt: skip
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
chance = torch.Generator().manual_seed(lab_peer.RANK)
told = []
with swarmtrain.join(
    model, optimizer, swarm_lab.invite(), name=f"rank-{lab_peer.RANK}",
    listen=f"{lab_peer.IP}:0", state_dir=lab_peer.RUN_DIR / f"peer-{lab_peer.RANK}", strict=True,
) as swarm:  # fmt: skip
    for index in range(rounds):
        change(model, chance)
        lab_peer.barrier({"at": f"start{index}"})
        sent, cpu, start = lab_peer.wire_bytes()[0], lab_peer.cpu_seconds(), time.perf_counter()
        before = swarm.round
        while swarm.round == before and not swarm.should_stop:
            optimizer.step()
        seconds, cpu = time.perf_counter() - start, lab_peer.cpu_seconds() - cpu
        lab_peer.barrier({"at": f"end{index}"})
        if index >= lab_peer.WARM:
            tx = lab_peer.wire_bytes()[0] - sent
            told.append({"t": seconds, "cpu": cpu, "tx": tx, "err": 0.0})
    lab_peer.barrier({"at": "done", "rounds": told})
if coordinator is not None:
    coordinator.terminate()
    coordinator.wait()
os._exit(0)

"""A peer of joining.py: it trains a model of NUMEL values, as far as its links can tell.

Its inner steps are pauses in which the weights change a little, so that links and not two cores
are what is measured. Donors begin with the same weights; the joiner, the last rank, with others,
so it must fetch the run's. What happens stands in RUN_DIR/told-RANK, one JSON object per line.
"""

import json
import os
import time
from typing import Any

import lab_peer
import swarm_lab
import torch
from torch import nn

import swarmtrain
from swarmtrain.peer.storage import PeerStorage

RANK, WORLD, NUMEL = lab_peer.RANK, lab_peer.WORLD, lab_peer.NUMEL
INNER_S, STEPS = float(os.environ["INNER_S"]), int(os.environ["STEPS"])
IS_JOINER = RANK == WORLD - 1


def tell(event: str, **more: Any) -> None:
    told = {"event": event, "s": time.monotonic(), "rx": lab_peer.wire_bytes()[1], **more}
    with (lab_peer.RUN_DIR / f"told-{RANK}").open("a") as file:
        file.write(json.dumps(told) + "\n")


def tell_of(kind: type, name: str, event: str) -> None:
    """Tell when a method of the product is called, and go on as usual."""
    method = getattr(kind, name)

    def noted(self: Any, *args: Any) -> Any:
        tell(event)
        return method(self, *args)

    setattr(kind, name, noted)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(7)
        weights = torch.randn(NUMEL, generator=chance) * 0.02
        self.weights = nn.Parameter(weights.neg_() if IS_JOINER else weights)


def learn() -> None:
    """A tenth of the weights changes, by another noise each time: a state that repeats itself would
    be compressed on the wire."""
    noise = torch.randn(PIECE, generator=chance) * 1e-3
    with torch.no_grad():
        for piece in model.weights.split(PIECE)[step % STEPS :: STEPS]:
            piece += noise[: len(piece)]


PIECE = 1 << 20
chance = torch.Generator().manual_seed(RANK)
step = 0
coordinator = None
if RANK == 0:
    coordinator = swarm_lab.start_coordinator([
        "-m", "swarmtrain", "up", str(lab_peer.RUN_DIR / "run.toml"),
        "--listen", f"{lab_peer.IP0}:0", "--state-dir", str(lab_peer.RUN_DIR / "coordinator"),
    ])  # fmt: skip
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
tell_of(PeerStorage, "begin_download", "download")
tell_of(PeerStorage, "keep_chunk", "chunk")
invite = swarm_lab.invite()
lab_peer.barrier({"at": "loaded"})
tell("join")
with swarmtrain.join(
    model, optimizer, invite, name=f"rank-{RANK}", listen=f"{lab_peer.IP}:0",
    state_dir=lab_peer.RUN_DIR / f"peer-{RANK}", strict=True,
) as swarm:  # fmt: skip
    tell("in", round=swarm.round)
    while not swarm.should_stop:
        time.sleep(INNER_S / STEPS)
        step += 1
        learn()
        before, began_s = swarm.round, time.monotonic()
        optimizer.step()
        if swarm.round != before:
            exchange_s = time.monotonic() - began_s
            tell("round", round=swarm.round, exchange_s=exchange_s, root=swarm.state_root)

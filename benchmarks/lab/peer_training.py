"""A peer of joining.py: it trains a model of NUMEL values, as far as its links can tell.

Its inner steps are pauses in which the weights change a little, so that links and not two cores
are what is measured. Donors begin with the same weights; the joiner, the last rank, with others,
so it must fetch the run's. What happens stands in RUN_DIR/told-RANK, one JSON object per line.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import lab_peer
import swarm_lab
import torch
from torch import nn

import swarmtrain
from swarmtrain.peer import membership
from swarmtrain.peer.disk import storage
from swarmtrain.peer.disk.group_storage import GroupStorage
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.wire.records import BodyReader, Commit, Plan, Record

RANK, WORLD, NUMEL = lab_peer.RANK, lab_peer.WORLD, lab_peer.NUMEL
INNER_S, STEPS = float(os.environ["INNER_S"]), int(os.environ["STEPS"])
IS_JOINER = RANK == WORLD - 1


reader = BodyReader()
planned_s: dict[int, float] = {}
exchange_s: dict[int, float] = {}


def tell(event: str, **more: Any) -> None:
    told = {"event": event, "s": time.monotonic(), "rx": lab_peer.wire_bytes()[1], **more}
    with (lab_peer.RUN_DIR / f"told-{RANK}").open("a") as file:
        file.write(json.dumps(told) + "\n")


class Download(GroupStorage):
    """Tells what is kept of a state, as it comes."""

    def begin_download(self, manifest: StateManifest) -> None:
        tell("download", op=max(planned_s, default=0))
        super().begin_download(manifest)

    def keep_chunk(self, digest: bytes, data: bytes) -> None:
        tell("chunk", digest=digest.hex(), num_bytes=len(data))
        super().keep_chunk(digest, data)


class Storage(PeerStorage):
    """Tells how long exchanges take."""

    def append_records(self, records: Sequence[Record]) -> None:
        for body in map(reader.read, records):
            if isinstance(body, Plan):
                planned_s[body.op] = time.monotonic()
            elif isinstance(body, Commit) and body.op in planned_s:
                exchange_s[body.op] = time.monotonic() - planned_s[body.op]
        super().append_records(records)


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
storage.GroupStorage = Download  # type: ignore[misc]
membership.PeerStorage = Storage  # type: ignore[misc]
invite = swarm_lab.invite()
lab_peer.barrier({"at": "loaded"})
tell("join")
with swarmtrain.join(
    model, optimizer, invite, name=f"rank-{RANK}", listen=f"{lab_peer.IP}:0",
    state_dir=lab_peer.RUN_DIR / f"peer-{RANK}", strict=True,
) as swarm:  # fmt: skip
    tell("in", round=swarm.round, root=swarm.state_root)
    while not swarm.should_stop:
        time.sleep(INNER_S / STEPS)
        step += 1
        learn()
        before, began_s = swarm.round, time.monotonic()
        optimizer.step()
        if swarm.round != before:
            tell(
                "round", round=swarm.round, root=swarm.state_root,
                exchange_s=exchange_s.get(swarm.round, 0.0),
                merging_s=time.monotonic() - began_s,
            )  # fmt: skip

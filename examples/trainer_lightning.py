"""A Lightning Trainer; with an invite in the environment it is a peer of a run.

    pip install 'swarmtrain[lightning]'
    python examples/trainer_lightning.py                   # alone
    swarmtrain up examples/custom_run.toml                 # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/trainer_lightning.py NAME     # once per peer

It learns a function from noisy samples. Every peer has samples of its own; all end with one model.
"""

import os
import sys
import zlib

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from swarmtrain.errors import UserError, render
from swarmtrain.integrations.lightning import SwarmCallback

STEPS = 1000


class Learner(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def samples(name: str, count: int = 4096) -> TensorDataset:
    chance = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.rand(count, 2, generator=chance) * 4 - 2
    noise = 0.1 * torch.randn(count, 1, generator=chance)
    return TensorDataset(x, torch.sin(x[:, :1]) * x[:, 1:] + noise)


def build(*callbacks: L.Callback, **settings: object) -> L.Trainer:
    L.seed_everything(0, verbose=False)
    given = {
        "max_steps": STEPS, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_model_summary": False,
        # Lightning does not ask torchrun how many processes there are.
        "devices": int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", 1)),
    }  # fmt: skip
    return L.Trainer(callbacks=list(callbacks), **{**given, **settings})


def main(name: str) -> None:
    torch.set_num_threads(1)
    callback = SwarmCallback(name=name)
    trainer = build(callback)
    trainer.fit(Learner(), DataLoader(samples(name), batch_size=64, shuffle=True))
    print(f"loss at the end {trainer.callback_metrics['loss']:.4f}")
    if callback.swarm.round:
        print(f"round {callback.swarm.round}  state root {callback.swarm.state_root}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except UserError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_status)

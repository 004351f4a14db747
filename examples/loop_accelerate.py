"""A loop with accelerate; with an invite in the environment it is a peer of a run.

    pip install 'swarmtrain[hf]'
    python examples/loop_accelerate.py                     # alone
    swarmtrain up examples/custom_run.toml                 # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/loop_accelerate.py NAME       # once per peer

It learns a function from noisy samples, with gradients accumulated over two batches. Every peer has
samples of its own; all end with one model.
"""

import sys
import zlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from swarmtrain.errors import UserError, render
from swarmtrain.integrations.accelerate import join

PASSES = 16


def samples(name: str, count: int = 4096) -> TensorDataset:
    chance = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.rand(count, 2, generator=chance) * 4 - 2
    noise = 0.1 * torch.randn(count, 1, generator=chance)
    return TensorDataset(x, torch.sin(x[:, :1]) * x[:, 1:] + noise)


def main(name: str) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(samples(name), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    with join(accelerator, model, optimizer, loader, name=name) as swarm:
        for number in range(PASSES):
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                swarm.log(loss=loss)
                if swarm.should_stop:
                    break
            print(f"pass {number:2}  loss {loss.item():.4f}", flush=True)
            if swarm.should_stop:
                break

    print(f"loss at the end {loss.item():.4f}")
    if swarm.round:
        print(f"round {swarm.round}  state root {swarm.state_root}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except UserError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_status)

"""A plain PyTorch loop; with an invite in the environment the same loop is a peer of a run.

    python examples/plain_loop.py                         # alone
    swarmtrain up examples/custom_run.toml                # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/plain_loop.py NAME      # once per peer

It learns a function from noisy samples. Every peer draws its own samples, all end with one model.
"""

import sys

import torch
from torch import nn

import swarmtrain
from swarmtrain.errors import UserError, render

STEPS = 1000


def main(name: str) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with swarmtrain.join(model, optimizer, name=name, samples_per_step=64) as swarm:  # 1
        chance = torch.Generator().manual_seed(swarm.seed)  # other data for each peer
        for step in range(STEPS):
            x = torch.rand(64, 2, generator=chance) * 4 - 2
            y = torch.sin(x[:, :1]) * x[:, 1:] + 0.1 * torch.randn(64, 1, generator=chance)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            swarm.log(loss=loss)  # 2, to be seen by others
            if step % 50 == 0:
                print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
            if swarm.should_stop:  # 3, the run is over
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

"""A model that several processes share (FSDP2) in a plain loop; with an invite they are one peer.

    torchrun --nproc-per-node 2 examples/torchrun_fsdp.py           # alone
    swarmtrain up examples/custom_run.toml                          # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' torchrun --nproc-per-node 2 --max-restarts 3 \\
        examples/torchrun_fsdp.py NAME                              # one peer of two processes
    SWARMTRAIN_INVITE='swarm://...' python examples/plain_loop.py   # beside it, a plain one

The model and the data are those of examples/plain_loop.py. For --max-restarts set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, see docs/torchrun.md.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import swarmtrain
from swarmtrain.errors import UserError, render

STEPS = 1000


def main(name: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if device.type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    fully_shard(model, mesh=init_device_mesh(device.type, (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with swarmtrain.join(model, optimizer, name=name, samples_per_step=64 * size) as swarm:
        chance = torch.Generator().manual_seed(swarm.seed + rank)  # other data for each peer
        for step in range(STEPS):
            x = torch.rand(64, 2, generator=chance) * 4 - 2
            y = torch.sin(x[:, :1]) * x[:, 1:] + 0.1 * torch.randn(64, 1, generator=chance)
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            swarm.log(loss=loss)
            if rank == 0 and step % 50 == 0:
                print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
            if swarm.should_stop:
                break

    if swarm.round:
        print(f"rank {rank}  round {swarm.round}  state root {swarm.state_root}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except UserError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_status)

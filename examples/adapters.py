"""A frozen model with low-rank adapters: the adapters alone are trained and exchanged.

    python examples/adapters.py                           # alone
    swarmtrain up examples/adapters_run.toml              # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/adapters.py NAME        # once per peer

What has `requires_grad` is exchanged, everything else stays where it is. Here that is 2 562 of
135 171 values: with int8 a peer gives 2.7 KB in a round, where the whole model has 139 KB, a 50th.
The frozen part never travels and nobody compares it: every peer must bring the same one. Here all
make it from one seed; otherwise it is a file that all have.

It learns a function from noisy samples. Every peer draws its own samples, all end with the same
adapters, which is what one would save: `{n: p for n, p in ... if p.requires_grad}`.
"""

import sys

import torch
from torch import Tensor, nn

import swarmtrain
from swarmtrain.errors import UserError, render

STEPS = 1000
WIDTH = 256
RANK = 2


class Adapted(nn.Module):
    """A frozen linear layer plus B A, of which B begins with zero, so that nothing changes yet."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Linear(frozen.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.b(self.a(x))


def build() -> nn.Sequential:
    """The same frozen model at every peer; all begin with the adapters of the run's first one."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    first, second, third = (layer.requires_grad_(False) for layer in layers)
    head = Adapted(nn.Linear(WIDTH, 1))
    return nn.Sequential(
        first, nn.Tanh(), Adapted(second), nn.Tanh(), Adapted(third), nn.Tanh(), head
    )


def loss_of(model: nn.Module, chance: torch.Generator) -> Tensor:
    x = torch.rand(64, 2, generator=chance) * 4 - 2
    y = torch.sin(x[:, :1]) * x[:, 1:] + 0.1 * torch.randn(64, 1, generator=chance)
    return nn.functional.mse_loss(model(x), y)


def main(name: str) -> None:
    torch.set_num_threads(1)
    model = build()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    values = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters())
    print(f"{values[0]} of {values[1]} values are exchanged", flush=True)

    with swarmtrain.join(model, optimizer, name=name, samples_per_step=64) as swarm:
        chance = torch.Generator().manual_seed(swarm.seed)  # other data for each peer
        for step in range(STEPS):
            loss = loss_of(model, chance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            swarm.log(loss=loss)
            if step % 50 == 0:
                print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
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

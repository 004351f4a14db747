"""Torch's AdamW without its ties to torch's compiler: the same bits, and none of it is loaded."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from swarmtrain_optimizers.inner.uncompiled import AdamW

ROOTS = Path(__file__).resolve().parents[2]

STEPS = """
import sys
sys.path[:0] = {roots}
import torch
from swarmtrain.config.settings import InnerSection
from swarmtrain.inner_optimizer import make_optimizer
for name in ("adamw", "accum_adamw", "muon"):
    model = torch.nn.Linear(4, 4)
    optimizer = make_optimizer(model, InnerSection(optimizer=name))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def stepped(kind: type[torch.optim.AdamW]) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Linear(9, 5)
    optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 9)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert torch.is_grad_enabled()
    return model


def test_it_makes_the_steps_of_torchs_own() -> None:
    ours, theirs = (stepped(kind).state_dict() for kind in (AdamW, torch.optim.AdamW))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_no_inner_step_of_ours_loads_torchs_compiler() -> None:
    roots = [str(ROOTS / folder) for folder in (".", "transport", "optimizers")]
    command = [sys.executable, "-c", STEPS.format(roots=roots)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"

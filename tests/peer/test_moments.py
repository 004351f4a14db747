"""Weights that became NaN are healed by the run's, and stay so: moments of them are forgotten."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.moments import Moments
from swarmtrain_optimizers.inner.muon import Muon, muon_groups
from tests.peer.test_trainer import trainer

torch.set_num_threads(1)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        loss = torch.stack([parameter.float().square().sum() for parameter in trained]).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_only_what_is_not_finite_is_forgotten():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    moments = Moments(optimizer)
    stepped(model, optimizer)
    kept = optimizer.state[model.weight]["exp_avg"].clone()
    assert moments.forget_broken() == 0 and len(optimizer.state) == 2
    with torch.no_grad():
        model.bias[1] = torch.inf
    assert moments.forget_broken() == 1
    assert list(optimizer.state) == [model.weight]
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], kept)


def test_of_weights_that_stay_nothing_is_forgotten():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    moments = Moments(optimizer)
    stepped(model, optimizer)
    with torch.no_grad():
        model.bias[1] = torch.inf
    assert moments.forget_broken([model.weight]) == 0 and len(optimizer.state) == 2
    assert moments.forget_broken([model.bias]) == 1 and list(optimizer.state) == [model.weight]


def test_the_built_in_trainer_learns_on_after_a_nan_with_a_small_rate_at_first():
    peer = trainer()
    for _ in range(10):
        peer.inner_step()
    good, rate = peer.read_weights(), peer.rate()
    peer.write_weights(torch.full_like(good, torch.nan))
    assert not torch.isfinite(torch.tensor(peer.inner_step()))
    peer.write_weights(good)
    assert peer.rate() < rate / 2
    losses = [peer.inner_step() for _ in range(20)]
    assert torch.isfinite(peer.read_weights()).all() and losses[-1] < losses[0]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "AdamW fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "AdamW amsgrad": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    "SGD momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5),
    "Adadelta": lambda model: torch.optim.Adadelta(model.parameters()),
    "Adamax": lambda model: torch.optim.Adamax(model.parameters(), lr=0.01),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.01),
    "RAdam": lambda model: torch.optim.RAdam(model.parameters(), lr=0.01),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),
    "ASGD": lambda model: torch.optim.ASGD(model.parameters(), lr=0.01),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.01),
    "LBFGS": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2),
    "Muon": lambda model: Muon(muon_groups(model.named_parameters(), weight_decay=0.1), lr=0.01),
}


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_goes_on_downhill_after_a_nan(name: str, steps_before: int):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS[name](model)
    for _ in range(steps_before):  # as where a loop's checkpoint was loaded before it joined
        stepped(model, optimizer)
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    good = weights.read_weights()
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    stepped(model, optimizer)
    weights.write_weights(good)
    for _ in range(40):
        stepped(model, optimizer)
    now = weights.read_weights()
    assert torch.isfinite(now).all()
    for part in slice(0, 6), slice(6, 8):  # the matrix, which was broken, and the bias
        assert now[part].square().sum() < good[part].square().sum()


def test_a_step_after_a_nan_is_as_large_as_the_first_was_whatever_was_stepped_before():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    stepped(model, optimizer)
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    good = weights.read_weights()
    weights.write_weights(torch.full_like(good, torch.nan))
    weights.write_weights(good)
    stepped(model, optimizer)
    moved = (weights.read_weights() - good).abs()[:8]
    assert torch.allclose(moved, torch.full((8,), 0.01), rtol=1e-3)


class Averaging(torch.optim.Optimizer):
    """Keeps a second copy of the weights, which it makes in its first step and never counts."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            copy = self.state[parameter].setdefault("copy", parameter.detach().clone())
            parameter.data = copy


def test_a_copy_of_weights_is_made_again_and_never_zero():
    model = nn.Linear(3, 2)
    optimizer = Averaging(model.parameters())
    optimizer.step()
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    good = weights.read_weights()
    weights.write_weights(torch.full_like(good, torch.nan))
    weights.write_weights(good)
    optimizer.step()
    assert torch.equal(weights.read_weights(), good)


def test_a_moment_that_is_infinite_is_forgotten_though_its_weight_is_finite():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    good = weights.read_weights()
    (model.weight.sum() * 1e25).backward()
    optimizer.step()
    assert torch.isfinite(model.weight).all()
    assert torch.isinf(optimizer.state[model.weight]["exp_avg_sq"]).all()
    weights.write_weights(good)
    stepped(model, optimizer)
    moved = weights.read_weights()[:6] - good[:6]
    assert torch.allclose(moved.abs(), torch.full((6,), 0.01), rtol=1e-3)


def test_a_large_memory_that_is_finite_is_kept():
    """The sum is not finite: then each value is looked at."""
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.full((4,), 3e38)
    assert Moments(optimizer).forget_broken() == 0
    assert optimizer.state[parameter]


def test_counts_begin_again_where_memory_stays_in_its_place():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adagrad([parameter])
    moments = Moments(optimizer)
    state: dict[str, Any] = optimizer.state[parameter]
    held = state["sum"]
    state["sum"].fill_(torch.nan)
    state["step"] += 7
    assert moments.forget_broken() == 1
    assert state["sum"] is held and not held.any() and float(state["step"]) == 0


@pytest.mark.parametrize("kind", ["float8", "meta", "nan"])
def test_what_is_frozen_is_nobodys_affair(kind: str):
    model = nn.Linear(3, 2)
    frozen = {
        "float8": torch.ones(4).to(torch.float8_e4m3fn),
        "meta": torch.empty(4, device="meta"),
        "nan": torch.full((4,), torch.nan),
    }[kind]
    model.base = nn.Parameter(frozen, requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    stepped(model, optimizer)
    kept = optimizer.state[model.weight]
    weights.write_weights(weights.read_weights())
    assert optimizer.state[model.weight] is kept

"""Weights that became NaN are healed by the run's, and stay so: moments of them are forgotten."""

import torch
from torch import nn

from swarmtrain.peer.model_weights import ModelWeights
from swarmtrain.peer.moments import forget_broken
from swarmtrain.tensors import Layout
from tests.peer.test_trainer import trainer

torch.set_num_threads(1)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()


def test_only_what_is_not_finite_is_forgotten():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    kept = optimizer.state[model.weight]["exp_avg"].clone()
    assert forget_broken(optimizer) == 0 and len(optimizer.state) == 2
    with torch.no_grad():
        model.bias[1] = torch.inf
    assert forget_broken(optimizer) == 1
    assert list(optimizer.state) == [model.weight]
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], kept)


def test_somebody_elses_loop_goes_on_after_a_nan():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = ModelWeights(model, Layout.of(model, 16), optimizer)
    good = weights.read_weights()
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    stepped(model, optimizer)
    weights.write_weights(good)
    stepped(model, optimizer)
    assert torch.isfinite(weights.read_weights()).all()


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

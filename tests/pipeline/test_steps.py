"""Steps of one stage: divisors, clipping, and what is dropped."""

import pytest
import torch
from torch import nn

from swarmtrain.config.settings import InnerSection
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_transport.pipeline.coordinator.step_under_way import whole_norm

INNER = InnerSection(lr=0.1, weight_decay=0.0)


def stage() -> tuple[nn.Linear, StageSteps]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2, bias=False)
    return module, StageSteps(module, INNER)


def add(module: nn.Linear, value: float) -> None:
    gradient = torch.full((2, 3), value)
    module.weight.grad = gradient if module.weight.grad is None else module.weight.grad + gradient


def test_a_step_divides_by_the_tokens_that_counted() -> None:
    module, steps = stage()
    for value, tokens in ((2.0, 4), (4.0, 8)):
        add(module, value)
        steps.count(tokens)
    assert steps.close() == pytest.approx(6 * 0.5**2)
    assert torch.equal(module.weight.grad, torch.full((2, 3), 0.5))


def test_a_short_last_step_divides_by_the_nominal_number() -> None:
    module, steps = stage()
    add(module, 2.0)
    steps.count(4)
    steps.close(nominal_tokens=8)
    assert torch.equal(module.weight.grad, torch.full((2, 3), 0.25))


def test_what_was_voided_changes_neither_weights_nor_moments() -> None:
    module, steps = stage()
    before = module.weight.detach().clone()
    add(module, 2.0)
    steps.count(4)
    steps.close()
    steps.void()
    assert steps.num_tokens == 0 and module.weight.grad is None
    assert torch.equal(module.weight, before) and not steps.optimizer.state
    other, undisturbed = stage()
    for one, its in ((module, steps), (other, undisturbed)):
        add(one, 1.0)
        its.count(1)
        its.close()
        its.step(rate=0.1)
    assert torch.equal(module.weight, other.weight)


def test_a_step_takes_the_rate_of_the_runs_clock_and_begins_anew() -> None:
    module, steps = stage()
    before = module.weight.detach().clone()
    add(module, 1.0)
    steps.count(1)
    steps.close()
    steps.step(rate=0.25, factor=0.5)
    assert torch.allclose(before - module.weight, torch.tensor(0.25))
    assert steps.num_tokens == 0 and module.weight.grad is None


def test_a_stage_where_nothing_counted_does_not_move() -> None:
    module, steps = stage()
    before = module.weight.detach().clone()
    assert steps.close(nominal_tokens=8) == 0.0
    steps.step(rate=0.1)
    assert torch.equal(module.weight, before)


def test_clipping_is_torchs_own() -> None:
    for size in (0.1, 0.99, 3.0, 1e6):
        module, steps = stage()
        add(module, size)
        norm = whole_norm([steps.close()])
        expected = module.weight.grad.clone()
        other = nn.Parameter(torch.zeros(2, 3))
        other.grad = expected.clone()
        nn.utils.clip_grad_norm_([other], 1.0)
        clipped = expected * clip_factor(norm, 1.0)
        assert torch.allclose(clipped, other.grad, rtol=1e-5, atol=0)

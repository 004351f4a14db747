"""AccumAdamW against its formulas in float64, and against AdamW."""

import copy
import math

import numpy as np
import pytest
import torch

from swarmtrain_optimizers.inner.accum_adamw import AccumAdamW

torch.set_num_threads(1)
LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.95), 1e-8, 0.1


def randn(seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(parameter: torch.Tensor, every: int) -> AccumAdamW:
    return AccumAdamW([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, every=every)


def stepped(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, seed: int) -> None:
    parameter.grad = randn(seed, parameter.dtype)
    optimizer.step()


@pytest.mark.parametrize("every", [1, 3, 4])
def test_steps_are_the_papers(every: int) -> None:
    parameter = randn(0).requires_grad_()
    optimizer = made(parameter, every)
    theta = parameter.detach().numpy().copy()
    m = v = gathered = np.zeros_like(theta)
    for step in range(1, 14):
        stepped(optimizer, parameter, step)
        g = randn(step).numpy()
        gathered = gathered + g / every
        updates = math.ceil(step / every)
        m1 = (BETAS[0] * m + (1 - BETAS[0]) * g) / (1 - BETAS[0] ** updates)
        v1 = (BETAS[1] * v + (1 - BETAS[1]) * g * g) / (1 - BETAS[1] ** updates)
        theta = theta * (1 - LR * DECAY) - LR * m1 / (np.sqrt(v1) + EPS)
        if step % every == 0:
            m = BETAS[0] * m + (1 - BETAS[0]) * gathered
            v = BETAS[1] * v + (1 - BETAS[1]) * gathered * gathered
            gathered = np.zeros_like(theta)
        np.testing.assert_allclose(parameter.detach().numpy(), theta, rtol=1e-12, atol=1e-12)


def test_of_every_step_it_is_adamw() -> None:
    mine, other = (randn(0).requires_grad_() for _ in range(2))
    optimizer = made(mine, 1)
    adamw = torch.optim.AdamW([other], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for step in range(1, 30):
        stepped(optimizer, mine, step)
        stepped(adamw, other, step)
    torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_its_state_goes_on_where_it_was_saved() -> None:
    first = randn(0, torch.float32).requires_grad_()
    optimizer = made(first, 4)
    for step in range(1, 7):
        stepped(optimizer, first, step)
    second = first.detach().clone().requires_grad_()
    other = made(second, 4)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(7, 12):
        stepped(optimizer, first, step)
        stepped(other, second, step)
    assert torch.equal(first, second)


def test_moments_of_short_weights_are_kept_in_float32() -> None:
    parameter = randn(0, torch.bfloat16).requires_grad_()
    optimizer = made(parameter, 4)
    stepped(optimizer, parameter, 1)
    kept = [one for one in optimizer.state[parameter].values() if isinstance(one, torch.Tensor)]
    assert {one.dtype for one in kept} == {torch.float32}
    assert torch.isfinite(parameter).all()


def test_a_parameter_without_a_gradient_stays() -> None:
    parameter = randn(0).requires_grad_()
    before = parameter.detach().clone()
    made(parameter, 4).step(lambda: None)
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"lr": -1.0}, {"betas": (1.0, 0.9)}])
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"every|lr"):
        AccumAdamW([randn(0).requires_grad_()], **wrong)

"""Outer transforms against numbers by hand and a naive twin; flushing of tiny values."""

import math

import pytest
import torch

from swarmtrain_optimizers.outer import (
    OuterTransform,
    State,
    chain,
    nesterov,
    nesterov_momentum,
    outer_step,
    scale,
    sgd,
)
from swarmtrain_optimizers.subnormals import flush_tiny_

torch.set_num_threads(1)


def step(
    transform: OuterTransform, mean: torch.Tensor, params: torch.Tensor, state: State
) -> tuple[torch.Tensor, State]:
    params_out, state_out = torch.empty_like(params), transform.init(params)
    outer_step(transform, mean, params, state, params_out, state_out)
    return params_out, state_out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_nesterov_steps_by_hand(dtype: torch.dtype) -> None:
    transform = nesterov(0.7, 0.9)
    params, mean = torch.ones(1, dtype=dtype), torch.ones(1, dtype=dtype)
    params, state = step(transform, mean, params, transform.init(params))
    assert (params.item(), state[0].item()) == pytest.approx((-0.33, 1.0), abs=1e-6)
    params, state = step(transform, mean, params, state)
    assert (params.item(), state[0].item()) == pytest.approx((-2.227, 1.9), abs=1e-6)


def test_nesterov_equals_its_six_operations_one_number_at_a_time() -> None:
    generator = torch.Generator().manual_seed(1)
    params = torch.randn(100, generator=generator)
    transform = nesterov(0.7, 0.9)
    state = transform.init(params)
    mu, lr = torch.tensor(0.9), torch.tensor(0.7)
    phi, m = list(params), list(state[0])
    for _ in range(4):
        mean = torch.randn(100, generator=generator)
        params, state = step(transform, mean, params, state)
        for index, d in enumerate(mean):
            m[index] = m[index] * mu + d
            t = m[index] * mu + d
            phi[index] = phi[index] - t * lr
    assert torch.equal(params, torch.stack(phi))
    assert torch.equal(state[0], torch.stack(m))


def test_the_state_before_a_step_stays_whole() -> None:
    transform = nesterov(0.7, 0.9)
    mean, params = torch.full((9,), 0.5), torch.full((9,), 2.0)
    state = (torch.full((9,), 0.25),)
    step(transform, mean, params, state)
    assert mean.eq(0.5).all() and params.eq(2).all() and state[0].eq(0.25).all()


def test_sgd_with_rate_one_subtracts_the_mean() -> None:
    params, mean = torch.tensor([1.0, 2.0]), torch.tensor([0.25, -1.0])
    assert sgd(1.0).state_names == ()
    assert step(sgd(1.0), mean, params, ())[0].tolist() == [0.75, 3.0]


def test_nesterov_without_momentum_is_sgd() -> None:
    generator = torch.Generator().manual_seed(4)
    params, mean = (torch.randn(64, generator=generator) for _ in range(2))
    transform = nesterov(0.7, 0.0)
    for _ in range(3):
        plain = step(sgd(0.7), mean, params, ())[0]
        params, _ = step(transform, mean, params, transform.init(params))
        assert torch.equal(params, plain)


def test_a_chain_joins_states_in_order_and_refuses_two_of_one_name() -> None:
    transform = chain(scale(0.5), nesterov_momentum(0.9), scale(2.0))
    assert transform.state_names == ("momentum",)
    params = torch.zeros(1)
    after, state = step(transform, torch.ones(1), params, transform.init(params))
    assert state[0].item() == 0.5
    assert after.item() == pytest.approx(-1.9)
    with pytest.raises(ValueError, match="momentum"):
        chain(nesterov_momentum(0.9), nesterov_momentum(0.9))


def test_a_vector_of_many_pieces_equals_its_parts() -> None:
    generator = torch.Generator().manual_seed(2)
    params, mean, momentum = (torch.randn(600_001, generator=generator) for _ in range(3))
    transform = nesterov(0.9, 0.8)
    whole, (whole_m,) = step(transform, mean, params, (momentum,))
    for part in (slice(0, 7), slice(262_100, 262_200), slice(599_000, None)):
        piece, (piece_m,) = step(transform, mean[part], params[part], (momentum[part],))
        assert torch.equal(piece, whole[part]) and torch.equal(piece_m, whole_m[part])


def test_parameters_and_momentum_too_small_for_some_machines_become_zero() -> None:
    transform = nesterov(1.0, 0.5)
    params, mean = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])
    momentum = torch.tensor([-2.0, 2.0**-100])
    after, (momentum_after,) = step(transform, mean, params, (momentum,))
    # First: m = -2/2 + 1 = 0, direction 1. Second: m = 2^-101, direction 2^-102: both vanish.
    assert after.tolist() == [0.0, 0.0]
    assert momentum_after.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("dtype", "integer"), [(torch.float32, torch.int32), (torch.float64, torch.int64)]
)
def test_flushing_cuts_exactly_below_two_to_minus_hundred(
    dtype: torch.dtype, integer: torch.dtype
) -> None:
    edge = torch.tensor(2.0**-100, dtype=dtype)
    below = torch.nextafter(edge, torch.tensor(0.0, dtype=dtype))
    tiny = torch.finfo(dtype).tiny
    values = torch.stack([edge, -edge, below, -below, edge * 0, -edge * 0, edge + 1])
    values = torch.cat([values, torch.tensor([tiny / 4, -tiny, math.inf, -math.inf], dtype=dtype)])
    expected = [2.0**-100, -(2.0**-100), 0, 0, 0, 0, 1, 0, 0, math.inf, -math.inf]
    flushed = flush_tiny_(values)
    assert flushed is values
    assert torch.equal(values.view(integer), torch.tensor(expected, dtype=dtype).view(integer))
    assert flush_tiny_(torch.tensor([math.nan], dtype=dtype)).isnan().all()

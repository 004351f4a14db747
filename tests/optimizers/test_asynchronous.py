"""Asynchronous local SGD against its formulas in float64: each peer's rounds are its own."""

import pytest
import torch

from swarmtrain_optimizers.strategies.asynchronous.strategy import Asynchronous
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import DelayedNesterov

torch.set_num_threads(1)
SIZE, F64 = 32, torch.float64
ALL, NOBODY = [(0, SIZE, True)], [(0, SIZE, False)]


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=F64)


def make(*, error_feedback: bool = False, arrivals: int = 3) -> Asynchronous:
    strategy = Asynchronous(
        SIZE, inner_steps=20, lr=0.7, momentum=0.9, arrivals=arrivals,
        error_feedback=error_feedback, dtype=F64,
    )  # fmt: skip
    strategy.set_initial(randn(0))
    return strategy


def test_whoever_is_in_every_op_does_as_delayed_nesterov_does():
    strategy = make()
    other = DelayedNesterov(
        SIZE, inner_steps=20, lr=0.7, momentum=0.9, arrivals=3, error_feedback=False, dtype=F64
    )
    other.set_initial(randn(0))
    for op in range(1, 12):
        theta = strategy.anchor - randn(op)
        mean = strategy.pseudo_gradient(theta, op)
        assert torch.equal(mean, other.pseudo_gradient(theta, op))
        weights = strategy.apply(mean, ALL, strategy.base, op=op)
        assert torch.equal(weights, other.apply(mean, ALL, theta, op=op))
        assert torch.equal(strategy.base, strategy.anchor)


def test_ops_that_end_meanwhile_leave_a_rounds_beginning_and_weights_alone():
    strategy, ahead = make(), make()
    begun = strategy.anchor.clone()
    theta = begun - randn(1)
    for op in range(1, 4):
        weights = strategy.apply(randn(10 + op), NOBODY, theta, op=op)
        assert torch.equal(weights, theta) and torch.equal(strategy.base, begun)
        ahead.apply(randn(10 + op), NOBODY, ahead.base, op=op)
    # The anchor has moved as everywhere, and the difference is against where the round began.
    assert torch.equal(strategy.anchor, ahead.anchor) and not torch.equal(strategy.anchor, begun)
    assert torch.equal(strategy.pseudo_gradient(theta, 4), begun - theta)
    weights = strategy.apply(randn(14), ALL, strategy.base, op=4)
    assert torch.equal(weights, strategy.anchor) and torch.equal(strategy.base, weights)


def test_whoever_has_made_no_step_goes_along_with_the_anchor():
    strategy = make()
    for op in range(1, 4):
        weights = strategy.apply(randn(op), NOBODY, strategy.base.clone(), op=op)
        assert torch.equal(weights, strategy.anchor) and torch.equal(strategy.base, weights)


@pytest.mark.parametrize("error_feedback", [False, True])
def test_a_part_that_an_op_did_not_take_goes_with_the_next_one_however_often(error_feedback: bool):
    strategy = make(error_feedback=error_feedback)
    work = randn(1)
    given = strategy.pseudo_gradient(strategy.anchor - work, 1)
    for op in range(1, 6):
        assert torch.allclose(given, work, rtol=0, atol=1e-14)
        weights = strategy.apply(
            randn(op), NOBODY, strategy.base.clone(), lambda start, stop: work[start:stop], op=op
        )
        assert torch.equal(weights, strategy.anchor) and strategy.dropped == ()
        given = strategy.pseudo_gradient(weights, op + 1)
    strategy.skip()
    assert torch.allclose(strategy.pseudo_gradient(strategy.base, 6), work, rtol=0, atol=1e-14)


def test_what_is_given_up_is_nowhere_any_more():
    strategy = make()
    given = strategy.pseudo_gradient(strategy.anchor - randn(1), 1)
    strategy.apply(given, NOBODY, strategy.base.clone(), op=1)
    weights = strategy.give_up()
    assert torch.equal(weights, strategy.anchor) and strategy.dropped == ((0, SIZE),)
    assert not strategy.pseudo_gradient(weights, 2).any()


def test_a_slow_peer_makes_fewer_steps_and_comes_back_with_the_others():
    strategy = make()
    strategy.keep_pace(1.0, 4.0)
    assert strategy.own_steps == 5 and strategy.is_due(5) and not strategy.is_due(4)


def test_momentum_is_renewed_once_in_at_least_one_op():
    with pytest.raises(ValueError, match="arrivals"):
        make(arrivals=0)

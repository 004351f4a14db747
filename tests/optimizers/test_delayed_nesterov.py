"""Delayed Nesterov against its paper in float64, and how many steps a slow peer makes."""

import numpy as np
import pytest
import torch

from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import DelayedNesterov
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.synchronous import steps_for

torch.set_num_threads(1)
SIZE = 64
ALL = [(0, SIZE, True)]
F64 = torch.float64


def randn(seed: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(
    arrivals: int, *, spread: float = 0.0, dtype: torch.dtype = F64, error_feedback: bool = False
) -> DelayedNesterov:
    strategy = DelayedNesterov(
        SIZE,
        inner_steps=20,
        lr=0.7,
        momentum=0.9,
        arrivals=arrivals,
        spread=spread,
        error_feedback=error_feedback,
        dtype=dtype,
    )
    strategy.set_initial(randn(0, dtype))
    return strategy


def diloco(dtype: torch.dtype = F64) -> DiLoCo:
    strategy = DiLoCo(SIZE, inner_steps=20, lr=0.7, momentum=0.9, error_feedback=False, dtype=dtype)
    strategy.set_initial(randn(0, dtype))
    return strategy


@pytest.mark.parametrize(("arrivals", "spread"), [(1, 0.0), (3, 0.0), (4, 0.1), (2, 0.5), (1, 1.0)])
def test_arrivals_follow_the_paper(arrivals: int, spread: float) -> None:
    strategy = make(arrivals, spread=spread)
    phi, m, waiting = randn(0).numpy().copy(), np.zeros(SIZE), np.zeros(SIZE)
    for op in range(1, 20):
        g = randn(op).numpy()
        theta = strategy.anchor - randn(op)
        given = strategy.pseudo_gradient(theta, op)
        strategy.apply(given, ALL, theta, op=op)
        waiting = waiting + g
        if op % arrivals == 0:
            m = 0.9 * m + waiting / arrivals
            factor, waiting = 1 - spread * arrivals + spread, np.zeros(SIZE)
        else:
            factor = spread
        phi = phi - 0.7 * (factor * 0.9 * m + g / arrivals)
        np.testing.assert_allclose(strategy.anchor.numpy(), phi, rtol=0, atol=1e-12)


@pytest.mark.parametrize("arrivals", [1, 2, 5])
def test_t7_as_many_equal_arrivals_are_one_step_of_nesterov(arrivals: int) -> None:
    strategy, reference = make(arrivals), diloco()
    op = 0
    for step in range(6):
        reference.apply(randn(step), [], reference.anchor)
        for _ in range(arrivals):
            op += 1
            strategy.apply(randn(step), [], strategy.anchor, op=op)
        assert torch.allclose(strategy.anchor, reference.anchor, rtol=0, atol=1e-12)


def test_with_one_arrival_it_is_diloco_bit_for_bit() -> None:
    strategy, reference = make(1, dtype=torch.float32), diloco(torch.float32)
    for op in range(1, 9):
        for peer in (strategy, reference):
            peer.apply(randn(op, torch.float32), [], peer.anchor, op=op)
        assert torch.equal(strategy.anchor, reference.anchor)


def test_what_waits_is_shared_state_and_a_skipped_renewal_comes_later_with_all() -> None:
    founder, joiner = make(2), make(2)
    founder.apply(randn(1), [], founder.anchor, op=1)
    assert [name for name, _ in founder.state_arrays()] == ["anchor", "momentum", "waiting"]
    joiner.load_state({name: array.clone() for name, array in founder.state_arrays()})
    for peer in (founder, joiner):
        peer.pseudo_gradient(randn(9), 2)
        peer.skip()
        peer.apply(randn(3), [], peer.anchor, op=3)
        peer.apply(randn(4), [], peer.anchor, op=4)
        state = dict(peer.state_arrays())
        assert torch.allclose(state["momentum"], (randn(1) + randn(3) + randn(4)) / 2)
        assert not state["waiting"].any()
    assert torch.equal(founder.anchor, joiner.anchor)


def test_slow_peers_make_fewer_steps() -> None:
    speeds = (1.0, 0.5, 0.25, 0.001)
    assert [steps_for(speed, 1.0, 50) for speed in speeds] == [50, 25, 12, 1]
    assert steps_for(1 / 7, 1 / 3, 21) == 9
    for wrong in (0.0, -1.0, float("nan"), 1.1):
        with pytest.raises(ValueError, match="positive"):
            steps_for(wrong, 1.0, 50)


def test_a_peer_keeps_pace_from_its_next_round_on() -> None:
    strategy = make(2)
    assert strategy.own_steps == strategy.inner_steps == 20
    strategy.keep_pace(0.25, 1.0)
    checked: Strategy = strategy
    assert [checked.is_due(steps) for steps in (4, 5)] == [False, True]
    assert checked.inner_steps == 20
    with pytest.raises(ValueError, match="faster than wanted"):
        strategy.keep_pace(2.0, 1.0)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="arrivals"):
        make(0)
    with pytest.raises(ValueError, match="spread"):
        make(4, spread=0.3)

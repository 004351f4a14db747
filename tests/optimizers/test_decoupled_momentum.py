"""Decoupled momentum against its paper in float64, with naive cosines and a naive top-k."""

import numpy as np
import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind
from swarmtrain_optimizers.strategies.decoupled_momentum.cosines import Cosines
from swarmtrain_optimizers.strategies.decoupled_momentum.strategy import DecoupledMomentum

torch.set_num_threads(1)
SIZE, BLOCK, TOP = 96, 24, 3  # three tiles of 4 x 6, and the last, which stays as it is
ALL = [(0, SIZE, True)]
F64 = torch.float64


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(F64)


def schedule(step: int) -> float:
    return 2.0 ** -(4 + step // 10)


def make(*, decay: float = 0.9, overlap: bool = False) -> DecoupledMomentum:
    strategy = DecoupledMomentum(
        SIZE, block=BLOCK, weight_decay=0.1, schedule=schedule, decay=decay, overlap=overlap,
        dtype=F64,
    )  # fmt: skip
    strategy.set_initial(randn(0))
    return strategy


def momentum_of(strategy: DecoupledMomentum) -> torch.Tensor:
    ((name, momentum),) = strategy.local_arrays()
    assert name == "own_momentum"
    return momentum


def cosines(side: int) -> np.ndarray:
    """(wave, value), orthonormal."""
    places = np.arange(side)
    table = np.cos(np.pi * np.outer(places, 2 * places + 1) / (2 * side))
    table[0] /= np.sqrt(2)
    return table * np.sqrt(2 / side)


def waves(values: np.ndarray) -> np.ndarray:
    out = values.copy()
    for start in range(0, SIZE - BLOCK, BLOCK):
        tile = values[start : start + BLOCK].reshape(4, 6)
        out[start : start + BLOCK] = (cosines(4) @ tile @ cosines(6).T).reshape(-1)
    return out


def values_of(coefficients: np.ndarray) -> np.ndarray:
    out = coefficients.copy()
    for start in range(0, SIZE - BLOCK, BLOCK):
        tile = coefficients[start : start + BLOCK].reshape(4, 6)
        out[start : start + BLOCK] = (cosines(4).T @ tile @ cosines(6)).reshape(-1)
    return out


def coded(values: np.ndarray) -> np.ndarray:
    """The largest of every tile, rounded to a quarter; the rest is zero."""
    out = np.zeros_like(values)
    for start in range(0, SIZE, BLOCK):
        chosen = start + np.argsort(-np.abs(values[start : start + BLOCK]))[:TOP]
        out[chosen] = np.round(values[chosen] * 4) / 4
    return out


def test_waves_are_those_of_naive_cosines_and_lead_back() -> None:
    there = Cosines(BLOCK, dtype=F64).waves(randn(1))
    np.testing.assert_allclose(there.numpy(), waves(randn(1).numpy()), rtol=0, atol=1e-14)
    back = Cosines(BLOCK, dtype=F64).values(there)
    np.testing.assert_allclose(back.numpy(), randn(1).numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("block", [1, 2, 7, 1024, 4096])
def test_tiles_of_any_block_keep_lengths(block: int) -> None:
    values = torch.randn(3 * block, generator=torch.Generator().manual_seed(2))
    there = Cosines(block).waves(values)
    assert torch.allclose(there.norm(), values.norm(), rtol=1e-5, atol=0)
    assert torch.equal(there[-block:], values[-block:])
    assert torch.allclose(Cosines(block).values(there), values, rtol=0, atol=1e-5)


def test_it_follows_its_paper() -> None:
    num_peers = 3
    peers = [make() for _ in range(num_peers)]
    theta, momenta = randn(0).numpy(), [np.zeros(SIZE) for _ in peers]
    for op in range(1, 25):
        gradients = [peer.anchor - randn(index) for index, peer in enumerate(peers)]
        parts = [p.pseudo_gradient(g, op) for p, g in zip(peers, gradients, strict=True)]
        sent = [torch.from_numpy(coded(part.numpy())) for part in parts]
        mean = (sent[0] + sent[1] + sent[2]) / num_peers
        for peer, own in zip(peers, sent, strict=True):
            peer.apply(mean, ALL, peer.anchor, part_of(own), op=op)
        summed = np.zeros(SIZE)
        for index in range(num_peers):
            momentum = 0.9 * momenta[index] + (theta - randn(index).numpy())
            chosen = coded(waves(momentum))
            momenta[index] = momentum - values_of(chosen)
            summed += chosen
        lr = schedule(op - 1)
        theta = theta - lr * 0.1 * theta - lr * np.sign(values_of(summed / num_peers))
        for index, peer in enumerate(peers):
            np.testing.assert_allclose(peer.anchor.numpy(), theta, rtol=0, atol=1e-12)
            own_momentum = values_of(momentum_of(peer).numpy())
            np.testing.assert_allclose(own_momentum, momenta[index], rtol=0, atol=1e-10)


def test_what_an_op_did_not_take_stays_in_the_momentum_and_no_gradient_is_lost() -> None:
    strategy = make(decay=1.0)
    given, sent = torch.zeros(SIZE, dtype=F64), torch.zeros(SIZE, dtype=F64)
    for op in range(1, 20):
        given += randn(op)
        own = torch.from_numpy(coded(strategy.pseudo_gradient(randn(op), op).numpy()))
        if op % 5 == 0:
            before = strategy.anchor.clone()
            strategy.skip()
            assert torch.equal(strategy.anchor, before)
            continue
        included = [(0, 24, op % 3 != 0), (24, SIZE, True)]
        strategy.apply(randn(50 + op), included, strategy.anchor, part_of(own), op=op)
        sent[24 if op % 3 == 0 else 0 :] += own[24 if op % 3 == 0 else 0 :]
    kept = values_of((sent + momentum_of(strategy)).numpy())
    np.testing.assert_allclose(kept, given.numpy(), rtol=0, atol=1e-11)


def test_every_value_moves_by_the_rate_or_not_at_all() -> None:
    strategy = make()
    mean = torch.zeros(SIZE, dtype=F64)
    mean[3], mean[SIZE - 1] = 1e-9, -5.0
    before = strategy.anchor.clone()
    after = strategy.apply(mean, [], before, op=1)
    moved = (after - before * (1 - 0.1 * schedule(0))) / schedule(0)
    direction = values_of(mean.numpy())
    np.testing.assert_allclose(moved.numpy(), -np.sign(direction), rtol=0, atol=1e-12)
    assert np.count_nonzero(direction[:24]) > 1 and np.count_nonzero(direction[24:]) == 1


def test_everybody_gets_every_contribution_a_step_later_if_wanted() -> None:
    for overlap in (False, True):
        strategy = make(overlap=overlap)
        exchange = strategy.exchange(1)
        assert (exchange.kind, exchange.delay_steps) == (OpKind.GATHER, int(overlap))
        assert strategy.takes_gradients and strategy.inner_steps == 1
        assert [name for name, _ in strategy.state_arrays()] == ["anchor"]
    strategy.pseudo_gradient(randn(1), 1)
    with pytest.raises(RuntimeError, match="under way"):
        strategy.pseudo_gradient(randn(1), 1)
    with pytest.raises(ValueError, match="decoded_own"):
        strategy.apply(randn(1), ALL, strategy.anchor, op=1)

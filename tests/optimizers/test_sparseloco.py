"""SparseLoCo against its paper in float64, with a naive top-k in place of the codec."""

import numpy as np
import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_optimizers.strategies.sparseloco.strategy import SparseLoCo

torch.set_num_threads(1)
SIZE, CHUNK, TOP = 64, 16, 2
ALL = [(0, SIZE, True)]
F64 = torch.float64


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(F64)


def make(*, lr: float = 0.8, beta: float = 0.95) -> SparseLoCo:
    strategy = SparseLoCo(SIZE, inner_steps=2, lr=lr, beta=beta, dtype=F64)
    strategy.set_initial(randn(0))
    return strategy


def coded(values: np.ndarray) -> np.ndarray:
    """The largest of every chunk, rounded to a quarter; the rest is zero."""
    out = np.zeros_like(values)
    for start in range(0, SIZE, CHUNK):
        chosen = start + np.argsort(-np.abs(values[start : start + CHUNK]))[:TOP]
        out[chosen] = np.round(values[chosen] * 4) / 4
    return out


def test_sparseloco_follows_its_paper() -> None:
    num_peers = 3
    peers = [make() for _ in range(num_peers)]
    theta = [peer.anchor.clone() for peer in peers]
    phi, residuals = randn(0).numpy().copy(), [np.zeros(SIZE) for _ in peers]
    for op in range(1, 15):
        moves = [randn(100 * op + index) for index in range(num_peers)]
        theta = [x + move for x, move in zip(theta, moves, strict=True)]
        parts = [peer.pseudo_gradient(x, op) for peer, x in zip(peers, theta, strict=True)]
        sent = [torch.from_numpy(coded(part.numpy())) for part in parts]
        mean = (sent[0] + sent[1] + sent[2]) / num_peers
        theta = [
            peer.apply(mean, ALL, x, part_of(own), op=op)
            for peer, x, own in zip(peers, theta, sent, strict=True)
        ]
        chosen = []
        for index, move in enumerate(moves):
            a = 0.95 * residuals[index] + (phi - (phi + move.numpy()))
            chosen.append(coded(a))
            residuals[index] = a - chosen[-1]
        phi = phi - 0.8 * sum(chosen) / num_peers
        for index, peer in enumerate(peers):
            np.testing.assert_allclose(theta[index].numpy(), phi, rtol=0, atol=1e-12)
            ((_, residual),) = peer.local_arrays()
            np.testing.assert_allclose(residual.numpy(), residuals[index], rtol=0, atol=1e-12)


def test_t9_with_beta_one_nothing_is_lost_whatever_became_of_an_op() -> None:
    strategy = make(beta=1.0)
    theta, work, sent = strategy.anchor.clone(), torch.zeros(SIZE, dtype=F64), np.zeros(SIZE)
    for op in range(1, 30):
        work, theta = work + randn(op), theta + randn(op)
        own = torch.from_numpy(coded(strategy.pseudo_gradient(theta, op).numpy()))
        if op % 5 == 0:
            strategy.skip()
            continue
        included = [(0, 16, op % 3 != 0), (16, SIZE, True)]
        theta = strategy.apply(randn(50 + op), included, theta, part_of(own), op=op)
        sent[16 if op % 3 == 0 else 0 :] += own.numpy()[16 if op % 3 == 0 else 0 :]
    ((_, residual),) = strategy.local_arrays()
    kept = residual.numpy() + (strategy.anchor - theta).numpy()
    np.testing.assert_allclose(sent + kept, -work.numpy(), rtol=0, atol=1e-11)


def test_left_out_work_waits_whole_and_fades_by_beta_when_it_is_sent() -> None:
    strategy = make(beta=0.5)
    theta = strategy.anchor + 1
    first = strategy.pseudo_gradient(theta, 1).clone()
    theta = strategy.apply(randn(1), [(0, SIZE, False)], theta, op=1)
    ((_, residual),) = strategy.local_arrays()
    assert torch.equal(residual, first) and torch.equal(theta, strategy.anchor)
    assert torch.equal(strategy.pseudo_gradient(theta, 2), first * 0.5)
    strategy.skip()
    assert torch.equal(strategy.local_arrays()[0][1], first)


def test_everybody_gets_every_contribution_and_the_state_is_the_anchor_alone() -> None:
    strategy: Strategy = make()
    exchange = strategy.exchange(1)
    assert (exchange.kind, exchange.num_values, exchange.delay_steps) == (OpKind.GATHER, SIZE, 0)
    assert [name for name, _ in strategy.state_arrays()] == ["anchor"]
    assert [strategy.is_due(steps) for steps in (1, 2)] == [False, True]
    with pytest.raises(ValueError, match="beta"):
        make(beta=1.1)

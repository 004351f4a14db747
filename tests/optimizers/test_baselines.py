"""The two ends of every comparison: gradients in every step, and no exchange ever."""

import numpy as np
import pytest
import torch

from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.ddp.strategy import DDP, SGD, AdamW
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.local.strategy import Local

torch.set_num_threads(1)
SIZE = 64
ALL = [(0, SIZE, True)]
ADAMW = AdamW(beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1)


def randn(seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def schedule(step: int) -> float:
    return 2.0 ** -(4 + step // 10)


def make(optimizer: AdamW | SGD, dtype: torch.dtype = torch.float64) -> DDP:
    strategy = DDP(SIZE, optimizer=optimizer, schedule=schedule, dtype=dtype)
    strategy.set_initial(randn(0, dtype))
    return strategy


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.numpy().tobytes() == right.numpy().tobytes()


def test_adamw_on_the_mean_gradient_follows_its_paper() -> None:
    peers = [make(ADAMW) for _ in range(3)]
    theta, m, v = randn(0).numpy(), np.zeros(SIZE), np.zeros(SIZE)
    weights = [peer.anchor.clone() for peer in peers]
    for op in range(1, 30):
        gradients = [w - randn(index) for index, w in enumerate(weights)]
        parts = [p.pseudo_gradient(g, op) for p, g in zip(peers, gradients, strict=True)]
        mean = (parts[0] + parts[1] + parts[2]) / 3
        weights = [p.apply(mean, ALL, w, op=op) for p, w in zip(peers, weights, strict=True)]
        g = sum(theta - randn(index).numpy() for index in range(3)) / 3
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        step = (m / (1 - 0.9**op)) / (np.sqrt(v / (1 - 0.99**op)) + 1e-8)
        lr = schedule(op - 1)
        theta = theta - lr * 0.1 * theta - lr * step
        np.testing.assert_allclose(weights[0].numpy(), theta, rtol=0, atol=1e-12)
        assert all(same_bits(w, weights[0]) for w in weights)


def test_adamw_agrees_with_the_one_that_people_know() -> None:
    strategy, parameter = make(ADAMW), torch.nn.Parameter(randn(0))
    known = torch.optim.AdamW([parameter], betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    weights = strategy.anchor.clone()
    for op in range(1, 20):
        parameter.grad = weights - randn(5)
        known.param_groups[0]["lr"] = schedule(op - 1)
        weights = strategy.apply(
            strategy.pseudo_gradient(weights - randn(5), op), ALL, weights, op=op
        )
        known.step()
        assert torch.allclose(weights, parameter, rtol=0, atol=1e-12)


def test_t2_sgd_in_every_step_equals_diloco_with_one_inner_step() -> None:
    ddp, diloco = (
        make(SGD()),
        DiLoCo(
            SIZE, inner_steps=1, lr=1.0, momentum=0.0, error_feedback=False, dtype=torch.float64
        ),
    )
    diloco.set_initial(ddp.anchor)
    weights, other = ddp.anchor.clone(), ddp.anchor.clone()
    for op in range(1, 8):
        gradient = weights - randn(1)
        weights = ddp.apply(ddp.pseudo_gradient(gradient, op), ALL, weights, op=op)
        trained = other - schedule(op - 1) * (other - randn(1))
        other = diloco.apply(diloco.pseudo_gradient(trained), ALL, trained)
        assert torch.allclose(weights, other, rtol=0, atol=1e-13)


def gradient_of(weights: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the mean loss over a batch, (samples, SIZE), of a model that is not
    linear."""
    theta = weights.clone().requires_grad_()
    loss = (torch.tanh(batch @ theta) - torch.sin(batch.sum(1))).square().mean()
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient


@pytest.mark.parametrize("optimizer", [ADAMW, SGD(), SGD(momentum=0.9, weight_decay=0.1)])
def test_t2_peers_with_batches_of_one_size_end_where_one_with_the_joined_batch_ends(
    optimizer: AdamW | SGD,
) -> None:
    ended = []
    for num_peers in (1, 4):
        peers = [make(optimizer) for _ in range(num_peers)]
        weights = [peer.anchor.clone() for peer in peers]
        for op in range(1, 21):
            joined = torch.stack([randn(100 * op + sample) for sample in range(8)]) / 8
            batches = joined.chunk(num_peers)
            parts = [
                peer.pseudo_gradient(gradient_of(x, batch), op)
                for peer, x, batch in zip(peers, weights, batches, strict=True)
            ]
            mean, share = torch.stack(parts).mean(0), 1 / num_peers
            weights = [
                peer.apply(mean, ALL, x, op=op, own_share=share)
                for peer, x in zip(peers, weights, strict=True)
            ]
        assert all(same_bits(x, weights[0]) for x in weights)
        ended.append(weights[0])
    assert not torch.allclose(ended[0], randn(0), rtol=0, atol=1e-3)
    assert torch.allclose(ended[0], ended[1], rtol=0, atol=1e-12)


def test_sgd_decays_weights_and_keeps_momentum() -> None:
    strategy = make(SGD(momentum=0.5, weight_decay=0.25))
    theta, m = randn(0).numpy(), np.zeros(SIZE)
    for op in range(1, 5):
        g = randn(op).numpy()
        strategy.apply(randn(op), [], strategy.anchor, op=op)
        m = 0.5 * m + g
        theta = theta * (1 - 0.25 / 16) - (g + 0.5 * m) / 16
        np.testing.assert_allclose(strategy.anchor.numpy(), theta, rtol=0, atol=1e-12)


def test_a_gradient_left_out_is_lost_and_the_replica_stays_the_same() -> None:
    peers = [make(ADAMW, torch.float32) for _ in range(2)]
    mean = randn(3, torch.float32)
    weights = []
    for peer, included in zip(peers, (True, False), strict=True):
        peer.pseudo_gradient(randn(4, torch.float32), 1)
        weights.append(peer.apply(mean, [(0, SIZE, included)], peer.anchor, op=1))
    assert same_bits(weights[0], weights[1])
    assert peers[1].local_arrays() == []


def test_a_skipped_step_changes_nothing_and_a_joiner_goes_on_alike() -> None:
    founder, joiner = make(ADAMW, torch.float32), make(ADAMW, torch.float32)
    before = founder.anchor.clone()
    founder.pseudo_gradient(randn(1, torch.float32), 1)
    with pytest.raises(RuntimeError, match="under way"):
        founder.pseudo_gradient(randn(1, torch.float32), 1)
    founder.skip()
    assert same_bits(founder.anchor, before)
    founder.apply(randn(2, torch.float32), [], before, op=2)
    joiner.load_state({name: tensor.clone() for name, tensor in founder.state_arrays()})
    for peer in (founder, joiner):
        peer.apply(randn(3, torch.float32), [], peer.anchor, op=3)
    states = [[t.numpy().tobytes() for _, t in p.state_arrays()] for p in (founder, joiner)]
    assert states[0] == states[1]
    assert [name for name, _ in founder.state_arrays()] == [
        "anchor",
        "first_moment",
        "second_moment",
    ]


def test_ddp_is_due_in_every_step_and_takes_gradients() -> None:
    strategy: Strategy = make(ADAMW)
    assert strategy.takes_gradients
    assert [strategy.is_due(steps) for steps in (0, 1)] == [False, True]
    assert strategy.weights_under_way() is None
    with pytest.raises(ValueError, match="gradient is"):
        strategy.pseudo_gradient(torch.zeros(3))
    strategy.pseudo_gradient(randn(1))
    with pytest.raises(ValueError, match="cover 0 of 64"):
        strategy.apply(randn(1), [], randn(0))


def test_local_never_exchanges_and_keeps_its_weights() -> None:
    strategy: Strategy = Local(SIZE, inner_steps=5)
    first, trained = randn(0, torch.float32), randn(1, torch.float32)
    strategy.set_initial(first)
    assert not any(strategy.is_due(steps) for steps in range(100))
    assert not strategy.pseudo_gradient(trained).any()
    strategy.skip()
    assert same_bits(strategy.apply(randn(2, torch.float32), ALL, trained), trained)
    assert same_bits(dict(strategy.state_arrays())["anchor"], first)
    assert [name for name, _ in strategy.state_arrays()] == ["anchor"]

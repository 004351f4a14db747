"""NoLoCo against its paper in float64, its bounds, and who meets whom."""

import numpy as np
import pytest
import torch
from drawn_pairs import pairs_of, partner_of
from window import PlanWindow, part_of

from swarmtrain_optimizers.codec_facts import ANCHOR_CODECS
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo

torch.set_num_threads(1)
SIZE = 64
BOTH = [(0, 2 * SIZE, True)]
F64 = torch.float64


def randn(seed: int, size: int = SIZE, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(
    seed: int = 0,
    *,
    momentum: float = 0.5,
    lr: float = 0.7,
    pull: float = 0.8,
    dtype: torch.dtype = F64,
) -> NoLoCo:
    strategy = NoLoCo(SIZE, inner_steps=3, momentum=momentum, lr=lr, pull=pull, dtype=dtype)
    strategy.set_initial(randn(seed, dtype=dtype))
    return strategy


def paired(peers: list[NoLoCo], theta: list[torch.Tensor], op: int) -> list[torch.Tensor]:
    """One op over all peers; who is left over steps alone."""
    ids = [bytes([index]) for index in range(len(peers))]
    parts = [peer.pseudo_gradient(x, op) for peer, x in zip(peers, theta, strict=True)]
    after = []
    for index, peer in enumerate(peers):
        partner = partner_of(ids[index], ids, op, seed=7)
        if partner is None:
            after.append(peer.solo(theta[index]))
        else:
            after.append(peer.apply(parts[partner[0]], BOTH, theta[index], op=op))
    return after


@pytest.mark.parametrize("num_peers", [1, 2, 5])
def test_noloco_follows_its_paper(num_peers: int) -> None:
    peers = [make(index) for index in range(num_peers)]
    theta = [peer.anchor.clone() for peer in peers]
    phi = [x.numpy().copy() for x in theta]
    delta = [np.zeros(SIZE) for _ in peers]
    for op in range(1, 12):
        moves = [0.1 * randn(100 * op + index) for index in range(num_peers)]
        theta = paired(peers, [x + move for x, move in zip(theta, moves, strict=True)], op)
        pairs, alone = pairs_of([bytes([i]) for i in range(num_peers)], op, seed=7)
        groups = [(a[0], b[0]) for a, b in pairs] + ([(alone[0],)] if alone is not None else [])
        old = [x.copy() for x in phi]
        for group in groups:
            gain = np.mean([moves[j].numpy() for j in group], axis=0)
            middle = np.mean([old[j] for j in group], axis=0)
            for i in group:
                delta[i] = 0.5 * delta[i] + 0.7 * gain + 0.8 * (middle - old[i])
                phi[i] = old[i] + delta[i]
        for i in range(num_peers):
            np.testing.assert_allclose(theta[i].numpy(), phi[i], rtol=0, atol=1e-11)


def test_t8_two_peers_without_momentum_average_their_parameters() -> None:
    peers = [make(index, momentum=0.0, lr=1.0, pull=1.0) for index in range(2)]
    trained = [randn(5), randn(6)]
    for weights in paired(peers, trained, 1):
        assert torch.allclose(weights, (trained[0] + trained[1]) / 2, rtol=0, atol=1e-14)


def test_t8_pulling_leaves_the_mean_where_it_is_even_with_a_codec_that_loses() -> None:
    means = []
    for pull in (0.6, 1.4):
        peers = [make(index, pull=pull) for index in range(2)]
        theta = [peer.anchor.clone() for peer in peers]
        for op in range(1, 6):
            theta = [x + 0.1 * randn(10 * op + i) for i, x in enumerate(theta)]
            sent = [
                torch.cat((p[:SIZE], torch.round(p[SIZE:] * 8) / 8))
                for p in (s.pseudo_gradient(x, op) for s, x in zip(peers, theta, strict=True))
            ]
            theta = [
                peers[i].apply(sent[1 - i], BOTH, theta[i], part_of(sent[i]), op=op)
                for i in range(2)
            ]
        means.append((theta[0] + theta[1]) / 2)
    assert torch.allclose(means[0], means[1], rtol=0, atol=1e-13)


def test_t4_replicas_with_the_same_data_stay_one() -> None:
    peers = [make(0, dtype=torch.float32) for _ in range(4)]
    theta = [peer.anchor.clone() for peer in peers]
    for op in range(1, 6):
        theta = [x + randn(op, dtype=torch.float32) for x in theta]
        theta = paired(peers, theta, op)
        assert all(torch.equal(x, theta[0]) for x in theta)


def test_replicas_come_together_without_new_work() -> None:
    peers = [make(index) for index in range(6)]
    theta = [peer.anchor.clone() for peer in peers]
    for op in range(1, 60):
        theta = paired(peers, theta, op)
    assert max(float((x - theta[0]).abs().max()) for x in theta) < 1e-3


def test_where_a_half_did_not_arrive_both_step_alone() -> None:
    peers = [make(1), make(2)]
    alone = make(1)
    weights = randn(9)
    parts = [peer.pseudo_gradient(weights, 1) for peer in peers]
    included = [(0, SIZE, False), (SIZE, 2 * SIZE, False)]
    after = peers[0].apply(parts[1], included, weights, part_of(randn(3, 2 * SIZE)))
    alone.pseudo_gradient(weights, 1)
    assert torch.equal(after, alone.solo(weights))


def test_steps_made_meanwhile_are_kept_and_a_skip_changes_nothing() -> None:
    strategy: Strategy = make(dtype=torch.float32)
    weights = randn(1, dtype=torch.float32)
    before = [array.clone() for _, array in strategy.state_arrays()]
    first = strategy.pseudo_gradient(weights, 1).clone()
    strategy.skip()
    after = [array for _, array in strategy.state_arrays()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert torch.equal(strategy.pseudo_gradient(weights, 2), first)
    later = weights + 1
    theta = strategy.apply(first, BOTH, later, op=2)
    anchor = dict(strategy.state_arrays())["anchor"]
    assert torch.equal(theta, anchor + (later - weights))
    assert torch.equal(strategy.apply(first, [], theta, op=3), theta)


def test_an_op_is_a_difference_and_an_anchor_for_one_partner() -> None:
    strategy = make()
    exchange = strategy.exchange(4)
    assert (exchange.kind, exchange.num_values) == (OpKind.PAIR, 2 * SIZE)
    part = strategy.pseudo_gradient(randn(1), 4)
    assert torch.equal(part, torch.cat((randn(0) - randn(1), randn(0))))
    with pytest.raises(RuntimeError, match="under way"):
        strategy.pseudo_gradient(randn(1), 4)
    with pytest.raises(ValueError, match="mean is"):
        strategy.apply(randn(1), BOTH, randn(1))
    with pytest.raises(ValueError, match="cover 64 of 128"):
        strategy.apply(part, [(0, SIZE, True)], randn(1))
    strategy.skip()
    with pytest.raises(RuntimeError, match="no op"):
        strategy.solo(randn(1))


def test_a_joiner_takes_any_peers_state() -> None:
    founder, joiner = make(1), make(2)
    founder.pseudo_gradient(randn(3), 1)
    founder.solo(randn(3))
    joiner.pseudo_gradient(randn(4), 1)
    joiner.load_state({name: array.clone() for name, array in founder.state_arrays()})
    results = []
    for peer in (founder, joiner):
        peer.pseudo_gradient(randn(5), 2)
        results.append(peer.solo(randn(5)))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("momentum", "lr", "pull"), [(0.5, 0.7, 0.5), (0.5, 0.7, 1.5), (0.5, 0.4, 0.8), (0.7, 0.7, 1.0)]
)
def test_rates_at_which_replicas_drift_or_swing_are_refused(
    momentum: float, lr: float, pull: float
) -> None:
    with pytest.raises(ValueError, match="must be"):
        make(momentum=momentum, lr=lr, pull=pull)


def spread_through(name: str) -> float:
    """Return how far eight replicas are apart in the end whose halves, own ones too, were
    encoded."""
    codec, window = codec_named(name), PlanWindow(block=32)
    peers = [make(dtype=torch.float32) for _ in range(8)]
    ids, theta = [bytes([index]) for index in range(8)], [peers[0].anchor.clone()] * 8
    goal = randn(99, dtype=torch.float32)  # not zero, where weights would be small
    for op in range(1, 41):
        noise = [0.02 * randn(100 * op + index, dtype=torch.float32) for index in range(8)]
        theta = [0.7 * x + 0.3 * goal + move for x, move in zip(theta, noise, strict=True)]
        parts = [peer.pseudo_gradient(x, op) for peer, x in zip(peers, theta, strict=True)]
        heard = [codec.decode(codec.encode(x, window), x.numel(), window) for x in parts]
        partners = [partner_of(me, ids, op, seed=7) or me for me in ids]
        theta = [
            peer.apply(heard[partner[0]], BOTH, x, part_of(own), op=op)
            for peer, partner, x, own in zip(peers, partners, theta, heard, strict=True)
        ]
    return float(torch.stack(theta).std(0).mean())


def test_only_codecs_that_carry_anchors_leave_replicas_as_near_as_they_were() -> None:
    lossless = spread_through("none")
    for name in ("int8", "int4", "e3m0"):
        assert (spread_through(name) < 1.3 * lossless) == (name in ANCHOR_CODECS), name

"""Gossip: pairs that average, a flow of two copies, and what is left of a pair that failed."""

import math
import random

import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind, StepsAlone
from swarmtrain_optimizers.strategies.gossip.strategy import Gossip, decay

torch.set_num_threads(1)
SIZE = 32
F64 = torch.float64
WHOLE = [(0, SIZE, True)]


def randn(seed: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def make(seed: int = 0, dtype: torch.dtype = F64, **own: float) -> Gossip:
    strategy = Gossip(SIZE, inner_steps=3, dtype=dtype, **own)
    strategy.set_initial(randn(seed, dtype))
    return strategy


def met(pair: list[Gossip], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    halves = [one.pseudo_gradient(x).clone() for one, x in zip(pair, weights, strict=True)]
    return [pair[i].apply(halves[1 - i], WHOLE, weights[i]) for i in range(2)]


def apart(peers: int, turns: int, seed: int, **own: float) -> float:
    """How far the replicas of a ring are apart, who began apart and meet neighbours by chance."""
    rng, ring = random.Random(seed), [make(100 * seed + i, **own) for i in range(peers)]
    weights = [one.anchor.clone() for one in ring]
    for _ in range(turns):
        first = rng.randrange(peers)
        both = first, (first + 1) % peers
        new = met([ring[i] for i in both], [weights[i] for i in both])
        for i, x in zip(both, new, strict=True):
            weights[i] = x
    stack = torch.stack(weights)
    return float((stack - stack.mean(0)).square().mean().sqrt())


def test_one_vector_goes_to_one_partner_and_nobody_steps_alone() -> None:
    exchange = make().exchange(1)
    assert (exchange.kind, exchange.vectors, exchange.num_values) == (OpKind.PAIR, 1, SIZE)
    assert not isinstance(make(), StepsAlone)


def test_two_that_meet_have_their_mean_and_keep_what_they_did_meanwhile() -> None:
    pair, ends = [make(1), make(2)], [randn(3), randn(4)]
    halves = [one.pseudo_gradient(x).clone() for one, x in zip(pair, ends, strict=True)]
    middle = (ends[0] + ends[1]) / 2
    late = pair[0].apply(halves[1], WHOLE, ends[0] + 1)
    assert torch.allclose(late, middle + 1, rtol=0, atol=1e-14)
    assert torch.allclose(pair[0].anchor, middle, rtol=0, atol=1e-14)
    assert torch.equal(pair[1].apply(halves[0], WHOLE, ends[1]), pair[1].anchor)


@pytest.mark.parametrize(("flow", "reach"), [(0.0, 0.5), (0.3, 1.1)])
def test_it_follows_the_two_copies_of_its_paper(flow: float, reach: float) -> None:
    """In float64: copies x and y flow together by the exponential of [[-eta, eta], [eta, -eta]]."""
    pair = [make(1, flow=flow, reach=reach), make(2, flow=flow, reach=reach)]
    weights = [one.anchor.clone() for one in pair]
    x, y = [one.clone() for one in weights], [one.clone() for one in weights]
    e = decay(2 * flow)
    assert e == pytest.approx(math.exp(-2 * flow), rel=2e-3)
    for op in range(1, 9):
        moves = [randn(10 * op + i) for i in range(2)]
        weights = [one + move for one, move in zip(weights, moves, strict=True)]
        for i in range(2):
            at, copy = x[i] + moves[i], y[i] + moves[i]
            x[i] = (1 + e) / 2 * at + (1 - e) / 2 * copy
            y[i] = (1 - e) / 2 * at + (1 + e) / 2 * copy
        m = x[0] - x[1]
        x = [x[0] - m / 2, x[1] + m / 2]
        y = [y[0] - reach * m, y[1] + reach * m]
        weights = met(pair, weights)
        for i in range(2):
            assert torch.allclose(weights[i], x[i], rtol=0, atol=1e-12)
            lag = dict(pair[i].state_arrays())["lag"]
            assert torch.allclose(lag, y[i] - x[i], rtol=0, atol=1e-12)


def test_a_codec_that_loses_leaves_the_mean_of_the_two_where_it_is() -> None:
    pair, ends = [make(1), make(2)], [randn(3), randn(4)]
    sent = [torch.round(one.pseudo_gradient(x) * 8) / 8 for one, x in zip(pair, ends, strict=True)]
    after = [pair[i].apply(sent[1 - i], WHOLE, ends[i], part_of(sent[i])) for i in range(2)]
    assert torch.allclose(after[0] + after[1], ends[0] + ends[1], rtol=0, atol=1e-13)


def test_our_half_is_decoded_as_it_was_given_while_the_lag_moves() -> None:
    """A peer encodes its half again to know what the partner decoded of it: it reads the lag."""
    ways = []
    for _ in range(2):
        one = make(1, flow=0.3, reach=1.1)
        one.load_state({"anchor": randn(1), "lag": randn(2)})
        ways.append((one, one.difference(randn(3))))
    (one, half), (other, _) = ways
    parts = [(0, 8, True), (8, 20, False), (20, SIZE, True)]
    weights = one.land(randn(4), parts, None, lambda start, stop: half[start:stop])
    assert torch.equal(weights, other.land(randn(4), parts, None))
    for (name, array), (_, same) in zip(one.state_arrays(), other.state_arrays(), strict=True):
        assert torch.equal(array, same), name


def test_rounds_of_two_that_have_met_are_of_different_lengths() -> None:
    lengths = []
    for seed in range(40):
        pair = [Gossip(SIZE, inner_steps=20) for _ in range(2)]
        for one in pair:
            one.set_initial(randn(0, torch.float32))
        met(pair, [randn(2 * seed + i + 1, torch.float32) for i in range(2)])
        lengths += [next(n for n in range(99) if one.is_due(n)) for one in pair]
    assert min(lengths) >= 10 and max(lengths) <= 30 and 18 < sum(lengths) / len(lengths) < 22
    assert sum(a != b for a, b in zip(lengths[::2], lengths[1::2], strict=True)) > 30


def test_two_that_always_meet_have_the_same_bits() -> None:
    pair = [make(0, torch.float32), make(0, torch.float32)]
    ends = [randn(3, torch.float32), randn(4, torch.float32)]
    first, second = met(pair, ends)
    assert torch.equal(first, second)


def test_an_op_without_a_partner_changes_nothing_and_the_same_half_seeks_another() -> None:
    one, weights = make(1, flow=0.3, reach=1.0), randn(3)
    dict(one.state_arrays())["lag"].copy_(randn(4))
    before = [array.clone() for _, array in one.state_arrays()]
    first = one.pseudo_gradient(weights).clone()
    one.skip()
    after = [array for _, array in one.state_arrays()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert torch.equal(one.pseudo_gradient(weights), first)


def test_on_a_ring_a_flow_brings_replicas_together_sooner() -> None:
    least, most = 1 - math.cos(math.pi / 4), 7 / 8
    flow, reach = math.sqrt(least / most) / 2, math.sqrt(1 / (least * most)) / 2
    plain = sum(apart(8, 80, seed) for seed in range(6))
    flowing = sum(apart(8, 80, seed, flow=flow, reach=reach) for seed in range(6))
    assert flowing < 0.7 * plain


@pytest.mark.parametrize("own", [{"flow": -0.1}, {"flow": 5.0}, {"reach": 0.4}])
def test_what_would_not_come_together_is_refused(own: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="flow"):
        make(**own)


def test_a_half_of_another_length_is_refused_and_changes_nothing() -> None:
    one, weights = make(1), randn(3)
    one.pseudo_gradient(weights)
    with pytest.raises(ValueError, match="mean is"):
        one.apply(torch.zeros(SIZE + 1, dtype=F64), WHOLE, weights)
    assert torch.equal(one.anchor, randn(1))

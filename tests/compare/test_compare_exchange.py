"""An op in one process gives what float64 numpy gives, and counts bytes as links carry them."""

import random

import numpy as np
import pytest
import torch

from swarmtrain.compare.costs import ROUND_TRIPS, Costs, Traffic
from swarmtrain.compare.exchange import Exchange
from swarmtrain.compare.hostile import contribution_of
from swarmtrain.compare.plan import Attack, Net
from swarmtrain.peer.arithmetic import TensorContribution, decode_result
from swarmtrain.peer.driver import OwnPart
from swarmtrain_optimizers.robust import rule_named

BLOCK = 16
SIZE = 12 * BLOCK
WHOLE = ((0, SIZE),)
PEERS = [bytes([index]) * 32 for index in (3, 1, 2)]


def values_of(index: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(index).standard_normal(SIZE).astype(np.float32))


def parts(samples=(4, 4, 4)) -> dict[bytes, OwnPart]:
    return {
        peer: OwnPart(1, TensorContribution(values_of(index)), samples[index])
        for index, peer in enumerate(PEERS)
    }


def exchange(codec: str, drop: float = 0.0) -> Exchange:
    return Exchange(codec, block=BLOCK, drop=drop, rng=random.Random(1))


def test_the_mean_is_that_of_plain_float64_sums_by_samples():
    outcome = exchange("none").mean(parts((4, 2, 1)), WHOLE)
    weights = [255, 127, 63]  # floor(255 x samples / most samples)
    total = sum(values_of(i).double().numpy() * w for i, w in enumerate(weights))
    wanted = (total / sum(weights)).astype(np.float32)
    np.testing.assert_allclose(decode_result(outcome.result).numpy(), wanted, rtol=0, atol=1e-6)


def test_int8_ends_near_the_mean_and_sends_a_quarter_of_the_bytes():
    outcome = exchange("int8").mean(parts(), WHOLE)
    plain = exchange("none").mean(parts(), WHOLE)
    error = decode_result(outcome.result) - decode_result(plain.result)
    assert error.abs().max() < 0.05
    assert sum(outcome.traffic.up.values()) < 0.3 * sum(plain.traffic.up.values())


def test_every_peer_sends_two_thirds_of_the_vector_twice_among_three():
    traffic = exchange("none").mean(parts(), WHOLE).traffic
    assert set(traffic.up.values()) == {2 * (4 * SIZE) * 2 // 3}
    assert traffic.up == traffic.down


def test_who_is_lost_or_has_no_numbers_is_in_no_slice():
    given = parts()
    nan = contribution_of(Attack.NAN, 0)(values_of(0))
    given[PEERS[0]] = OwnPart(1, nan, 4)
    outcome = exchange("int8").mean(given, WHOLE)
    assert outcome.refused == (PEERS[0],)
    assert {piece.contributors for piece in outcome.result.slices} == {tuple(sorted(PEERS[1:]))}


def test_an_op_that_nobody_reached_is_a_skip():
    outcome = exchange("int8", drop=1.0).mean(parts(), WHOLE)
    assert outcome.result is None
    assert outcome.lost == tuple(sorted(PEERS))
    assert set(outcome.traffic.up.values()) == {0}


@pytest.mark.parametrize(("attack", "factor"), [(Attack.SIGN_FLIP, 10.0), (Attack.NOISE, 100.0)])
def test_an_attack_is_as_large_as_it_says(attack, factor):
    values = values_of(0) * 1e-3
    given = contribution_of(attack, 5)(values)
    window = exchange("none")._window(1)
    found = given.decoded(0, SIZE, window)
    size = (found.square().mean().sqrt() / values.square().mean().sqrt()).item()
    assert size == pytest.approx(factor, rel=0.1)


def test_an_exchange_is_hidden_behind_the_steps_that_it_has():
    net = Net(up_bytes_s=100.0, down_bytes_s=1000.0, round_trip_s=0.25)
    traffic = Traffic(up={b"a": 200, b"b": 100}, down={b"a": 100, b"b": 200})
    assert traffic.seconds(net) == 2.0 + ROUND_TRIPS * 0.25
    costs = Costs(net, 2)
    costs.stepped(1.0)
    costs.exchanged(traffic, 0.0, 0)
    costs.exchanged(traffic, 2.5, 5)
    assert costs.seconds == 1.0 + 3.0 + 0.5
    assert costs.bytes_up_per_peer == 300
    assert costs.peak_bytes == 200


def test_a_robust_rule_takes_the_place_of_the_mean():
    ruled = Exchange("none", block=BLOCK, drop=0.0, rng=random.Random(1), rule=rule_named("median"))
    found = decode_result(ruled.mean(parts(), WHOLE).result)
    wanted = np.median(np.stack([values_of(i).numpy() for i in range(3)]), axis=0)
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_too_few_for_a_robust_rule_is_a_skip():
    ruled = Exchange("none", block=BLOCK, drop=0.0, rng=random.Random(1), rule=rule_named("median"))
    given = parts()
    for peer in PEERS[:2]:
        given[peer] = OwnPart(1, contribution_of(Attack.NAN, 0)(values_of(0)), 4)
    assert ruled.mean(given, WHOLE).result is None


def test_only_the_ranges_of_an_op_are_moved():
    given = {peer: OwnPart(1, TensorContribution(values_of(0)[: 3 * BLOCK]), 1) for peer in PEERS}
    outcome = exchange("none").mean(given, ((0, BLOCK), (4 * BLOCK, 6 * BLOCK)))
    np.testing.assert_allclose(decode_result(outcome.result), values_of(0)[: 3 * BLOCK], rtol=1e-6)

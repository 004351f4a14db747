"""An op in one process gives what float64 numpy gives, and counts bytes as links carry them."""

import numpy as np
import pytest
import torch

from swarmtrain.compare.costs import ROUND_TRIPS, Costs, Traffic
from swarmtrain.compare.encoding import Encoder, Outcome
from swarmtrain.compare.exchange import MeanExchange
from swarmtrain.compare.gather import GatheredMeans, gather
from swarmtrain.compare.hostile import contribution_of
from swarmtrain.compare.pairs import exchange_pairs
from swarmtrain.compare.plan import Attack, Net
from swarmtrain.peer.arithmetic import TensorContribution, decode_result
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_optimizers.strategies.noloco.strategy import pairs_of

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


def mean(codec: str, given=None, lost=(), rule=None, ranges=WHOLE):
    exchange = MeanExchange(Encoder(codec, BLOCK), rule and rule_named(rule))
    return exchange.run(given or parts(), lost, sorted(PEERS), ranges)


def decoded(outcome) -> torch.Tensor:
    (result,) = {id(r): r for r in outcome.results.values()}.values()
    return decode_result(result)


def test_the_mean_is_that_of_plain_float64_sums_by_samples():
    outcome = mean("none", parts((4, 2, 1)))
    weights = [255, 127, 63]  # floor(255 x samples / most samples)
    total = sum(values_of(i).double().numpy() * w for i, w in enumerate(weights))
    wanted = (total / sum(weights)).astype(np.float32)
    np.testing.assert_allclose(decoded(outcome).numpy(), wanted, rtol=0, atol=1e-6)


def test_int8_ends_near_the_mean_and_sends_a_quarter_of_the_bytes():
    outcome, plain = mean("int8"), mean("none")
    assert (decoded(outcome) - decoded(plain)).abs().max() < 0.05
    assert sum(outcome.traffic.up.values()) < 0.3 * sum(plain.traffic.up.values())


def test_every_peer_sends_two_thirds_of_the_vector_twice_among_three():
    traffic = mean("none").traffic
    assert set(traffic.up.values()) == {2 * (4 * SIZE) * 2 // 3}
    assert traffic.up == traffic.down


def without_numbers(*peers: bytes) -> dict[bytes, OwnPart]:
    nan = contribution_of(Attack.NAN, 0)(values_of(0))
    return parts() | {peer: OwnPart(1, nan, 4) for peer in peers}


def test_who_is_lost_or_has_no_numbers_is_in_no_slice():
    outcome = mean("int8", without_numbers(PEERS[0]), lost=[PEERS[1]])
    assert outcome.left_out == tuple(sorted(PEERS[:2]))
    slices = outcome.results[PEERS[0]].slices
    assert {piece.contributors for piece in slices} == {(PEERS[2],)}


def test_an_op_that_nobody_reached_is_a_skip():
    outcome = mean("int8", lost=PEERS)
    assert outcome.results == {}
    assert outcome.left_out == tuple(sorted(PEERS))
    assert set(outcome.traffic.down.values()) == {0}


def test_who_gives_nothing_owns_nothing_and_gets_the_result():
    given = {peer: part for peer, part in parts().items() if peer != PEERS[0]}
    outcome = mean("none", given)
    assert len(outcome.results) == 3
    assert outcome.traffic.up[PEERS[0]] == 0
    assert outcome.traffic.down[PEERS[0]] == 4 * SIZE


def test_a_gather_is_the_same_mean_with_every_part_sent_to_all():
    means = GatheredMeans(decode_result)
    given = parts((4, 2, 1))
    outcome = gather(Encoder("none", BLOCK), given, [], sorted(PEERS), SIZE, means)
    found = means(outcome.results[PEERS[0]])
    np.testing.assert_allclose(found, decoded(mean("none", given)), rtol=0, atol=1e-6)
    assert set(outcome.traffic.up.values()) == {2 * 4 * SIZE}
    assert outcome.traffic.up == outcome.traffic.down


def test_a_gather_of_sparse_parts_has_each_chosen_value_over_all_peers():
    # Its scales are the values themselves, so these must lie inside the window.
    given = {
        peer: OwnPart(1, TensorContribution(values_of(i) / 8), 1) for i, peer in enumerate(PEERS)
    }
    codec = Encoder("topk-2", BLOCK)
    means = GatheredMeans(decode_result)
    outcome = gather(codec, given, [PEERS[1]], sorted(PEERS), SIZE, means)
    window = outcome.results[PEERS[0]].window
    chosen = [given[peer].contribution.decoded(0, SIZE, window) for peer in (PEERS[0], PEERS[2])]
    wanted = (chosen[0].double() + chosen[1].double()) / 2
    np.testing.assert_allclose(means(outcome.results[PEERS[0]]), wanted, rtol=1e-6)
    assert (wanted != 0).sum() <= 2 * 2 * SIZE // BLOCK


def test_partners_get_each_others_halves_and_who_is_left_over_none():
    outcome = exchange_pairs(Encoder("none", BLOCK), parts(), [], SIZE, seed=1, ahead=0.5)
    ((one, other),), alone = pairs_of(PEERS, 1, seed=1)
    own = {peer: values_of(index) for index, peer in enumerate(PEERS)}
    for peer, given in ((one, other), (other, one)):
        assert torch.equal(decode_result(outcome.results[peer]), own[given])
    assert outcome.results[alone].slices == ()
    assert [outcome.traffic.up[peer] for peer in (one, other, alone)] == [4 * SIZE, 4 * SIZE, 0]
    lost = exchange_pairs(Encoder("none", BLOCK), parts(), [one], SIZE, seed=1, ahead=0.5)
    assert lost.results == {}  # no pair is whole: a skip
    single = exchange_pairs(
        Encoder("none", BLOCK), {one: parts()[one]}, [], SIZE, seed=1, ahead=0.5
    )
    assert single.results[one].slices == ()
    assert lost.traffic.up == outcome.traffic.up
    assert [lost.traffic.down[peer] for peer in (one, other)] == [4 * SIZE, 0]


def test_a_part_that_is_lost_on_its_way_was_sent():
    def sent(outcome: Outcome) -> int:
        return outcome.traffic.up[PEERS[1]]

    means = GatheredMeans(decode_result)
    for lost in ([], [PEERS[1]]):
        gathered = gather(Encoder("none", BLOCK), parts(), lost, PEERS, SIZE, means)
        assert sent(gathered) == 2 * 4 * SIZE
        assert sum(gathered.traffic.down.values()) == (3 - len(lost)) * 2 * 4 * SIZE
    whole, holed = (mean("none", lost=lost) for lost in ([], [PEERS[1]]))
    assert sent(holed) == sent(whole) > 0
    assert sum(holed.traffic.down.values()) < sum(whole.traffic.down.values())


@pytest.mark.parametrize(("attack", "factor"), [(Attack.SIGN_FLIP, 10.0), (Attack.NOISE, 100.0)])
def test_an_attack_is_as_large_as_it_says(attack, factor):
    values = values_of(0) * 1e-3
    given = contribution_of(attack, 5)(values)
    window = Encoder("none", BLOCK).window(1)
    found = given.decoded(0, SIZE, window)
    size = (found.square().mean().sqrt() / values.square().mean().sqrt()).item()
    assert size == pytest.approx(factor, rel=0.1)


def test_an_exchange_is_hidden_behind_the_steps_that_it_has():
    net = Net(up_bytes_s=100.0, down_bytes_s=1000.0, round_trip_s=0.25)
    traffic = Traffic(up={b"a": 200, b"b": 100}, down={b"a": 100, b"b": 200})
    assert traffic.seconds(net) == 2.0 + ROUND_TRIPS * 0.25
    costs = Costs(net, 2)
    costs.stepped(1.0)
    costs.exchanged(traffic, hidden_s=0.0, ahead_s=1.0, delay_steps=0, steps=2)
    costs.exchanged(traffic, hidden_s=2.5, ahead_s=1.0, delay_steps=5, steps=2)
    assert costs.seconds == 1.0 + 3.0 + 0.5
    assert costs.bytes_up_per_peer == 300
    assert costs.peak_bytes == 200


def test_what_is_known_early_travels_during_the_inner_steps():
    net = Net(up_bytes_s=100.0, down_bytes_s=1000.0, round_trip_s=0.25)
    traffic = Traffic(up={b"a": 200}, down={b"a": 200}, ahead=0.5)
    costs = Costs(net, 1)
    costs.exchanged(traffic, hidden_s=0.0, ahead_s=2.0, delay_steps=0, steps=20)
    assert costs.seconds == 1.0 + ROUND_TRIPS * 0.25
    assert costs.peak_bytes == 105


def test_a_robust_rule_takes_the_place_of_the_mean():
    found = decoded(mean("none", rule="median"))
    wanted = np.median(np.stack([values_of(i).numpy() for i in range(3)]), axis=0)
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_too_few_for_a_robust_rule_is_a_skip():
    assert mean("none", without_numbers(*PEERS[:2]), rule="median").results == {}


def test_only_the_ranges_of_an_op_are_moved():
    given = {peer: OwnPart(1, TensorContribution(values_of(0)[: 3 * BLOCK]), 1) for peer in PEERS}
    outcome = mean("none", given, ranges=((0, BLOCK), (4 * BLOCK, 6 * BLOCK)))
    np.testing.assert_allclose(decoded(outcome), values_of(0)[: 3 * BLOCK], rtol=1e-6)

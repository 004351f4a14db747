"""Exchanges of a comparison, which are those of a run: what moves, what is lost, what it costs."""

from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from compare_text import TINY, small_corpus

from swarmtrain.compare import request
from swarmtrain.compare.costs import ROUND_TRIPS, Costs, Traffic
from swarmtrain.compare.exchange import Exchange, OpTold
from swarmtrain.compare.hostile import contribution_of
from swarmtrain.compare.plan import Attack, Net, Plan
from swarmtrain.compare.replica import Replica
from swarmtrain.compare.shards import shards
from swarmtrain.peer.arithmetic import decode_result
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.ledger.pairing import partner_in
from swarmtrain_transport.wire.records import Freeze, bodies_of
from swarmtrain_transport.wire.records import Plan as PlanRecord
from tests.peer.one_process import exchanged

SIZE = 192


@pytest.fixture(scope="module")
def corpus():
    return small_corpus()


def plan_of(strategy: str, **settings) -> Plan:
    """The strategy's preset, but for these settings."""
    return replace(request.plans(strategy, TINY, [0], {})[0], **settings)


class Watched(Exchange):
    """Runs one round of `steps` inner steps and keeps what was given and what came of it."""

    def __init__(self, plan: Plan, corpus) -> None:
        self.given: dict[int, dict[bytes, OwnPart]] = {}
        parts = shards(corpus, plan.peers, plan.seed, noniid=False)
        self.replicas = [Replica(plan, i, part, decode_result) for i, part in enumerate(parts)]
        super().__init__(plan, self.replicas)
        self.begin()

    def round(self) -> tuple[int, OpTold]:
        while True:
            for peer in self.peers:
                peer.step(partial(peer.replica.inner_step, 0))
            self.tick += 1
            self.settle_ops()
            if ended := self.take_ended():
                return ended[0]

    def gives(self, peer, part) -> None:
        # A part is made when it is asked for, of an anchor that the round will change.
        kept = replace(part.part, contribution=copy(part.part.contribution))
        kept.contribution._values = kept.contribution._values[:].clone()
        self.given.setdefault(part.part.op, {})[peer.peer] = kept
        super().gives(peer, part)

    def bodies(self, kind) -> list:
        return [body for body in bodies_of(self.records) if isinstance(body, kind)]


def moved(exchange: Watched) -> list[torch.Tensor]:
    return [dict(one.driver.strategy.state_arrays())["anchor"].clone() for one in exchange.replicas]


PLAIN = {"outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize("rule", ["", "median", "norm-clip"])
@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_mean_is_what_whole_vectors_come_to(corpus, codec, rule):
    exchange = Watched(plan_of("diloco", codec=codec, robust=rule, **PLAIN), corpus)
    before = moved(exchange)[0]
    op, told = exchange.round()
    size = exchange.replicas[0].trainer.layout.padded
    wanted = exchanged(exchange.given[op], size, codec, 128, rule=rule)
    found = before - moved(exchange)[0]
    np.testing.assert_allclose(found, decode_result(next(iter(wanted.values()))), rtol=0, atol=1e-6)
    assert told.is_committed and told.left_out == 0


def test_every_peer_sends_two_thirds_of_the_vector_twice_among_three(corpus):
    exchange = Watched(plan_of("diloco", codec="none"), corpus)
    _, told = exchange.round()
    size = exchange.replicas[0].trainer.layout.padded
    assert sum(told.up.values()) == sum(told.down.values()) == 3 * 2 * (4 * size) * 2 // 3
    assert max(told.up.values()) < 1.02 * min(told.up.values())
    _, coded = Watched(plan_of("diloco", codec="int8"), corpus).round()
    assert sum(coded.up.values()) < 0.3 * sum(told.up.values())


def test_a_gather_sends_every_part_to_all(corpus):
    exchange = Watched(plan_of("sparseloco", codec="none"), corpus)
    _, told = exchange.round()
    size = exchange.replicas[0].trainer.layout.padded
    assert set(told.up.values()) == {2 * 4 * size} and told.up == told.down


def test_partners_are_those_that_the_run_draws_and_who_is_left_over_sends_nothing(corpus):
    exchange = Watched(plan_of("noloco", codec="none", peers=5), corpus)
    pairs = set()
    for _ in range(3):
        op, told = exchange.round()
        plan = exchange.bodies(PlanRecord)[-1]
        order = [member.peer for member in plan.members]
        assert plan.op == op and told.is_committed and told.left_out == 0
        partners = {peer: partner_in(order, peer) for peer in order}
        (alone,) = [peer for peer, partner in partners.items() if partner is None]
        size = 2 * 4 * exchange.replicas[0].trainer.layout.padded
        planned = {peer: told.up[peer] for peer in order if peer != alone}
        assert all(size <= sent <= 1.5 * size for sent in planned.values())
        pairs.add(frozenset(map(frozenset, partners.items())))
    assert len(pairs) > 1


def test_an_anchor_goes_to_the_expected_partner_before_the_op_is_planned(corpus):
    exchange = Watched(plan_of("noloco", codec="none", peers=4), corpus)
    shares = [exchange.round()[1].traffic().ahead for _ in range(3)]
    assert shares == [0.0, 0.5, 0.5]  # nobody expects anybody before the first plan


def test_who_has_no_numbers_is_in_no_result(corpus):
    exchange = Watched(plan_of("diloco", hostile=1, attack=Attack.NAN), corpus)
    _, told = exchange.round()
    (freeze,) = exchange.bodies(Freeze)
    assert [*freeze.excluded.values()] == ["withdrew:nonfinite"]
    assert told.left_out == 1 and told.is_committed


def test_a_lost_part_is_too_late_and_its_work_waits(corpus):
    exchange = Watched(plan_of("diloco", drop=0.5, peers=4), corpus)
    exchange.round()  # whose first op waits for everybody
    told = [exchange.round()[1] for _ in range(6)]
    plans = exchange.bodies(PlanRecord)[1:]
    assert all(one.is_committed for one in told)
    given = [sum(member.weight > 0 for member in plan.members) for plan in plans]
    assert [4 - one.left_out for one in told] == given
    assert 1 <= min(given) < max(given)
    assert len({one.driver.root for one in exchange.replicas}) == 1


def test_an_op_that_everybody_is_too_late_for_waits_for_as_many_as_it_needs(corpus):
    exchange = Watched(plan_of("noloco", drop=0.99, peers=4), corpus)
    exchange.round()
    for _ in range(3):
        _, told = exchange.round()
        assert told.is_committed and told.left_out >= 1


@pytest.mark.parametrize(("attack", "factor"), [(Attack.SIGN_FLIP, 10.0), (Attack.NOISE, 100.0)])
def test_an_attack_is_as_large_as_it_says(attack, factor):
    values = torch.from_numpy(
        np.random.default_rng(0).standard_normal(SIZE).astype(np.float32) * 1e-3
    )
    given = contribution_of(attack, 5)(values)
    found = given.decoded(0, SIZE, Window("none", 16, -30, 0))
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

"""Runs of a comparison: what they learn, that they repeat bit for bit, what goes wrong."""

from dataclasses import replace

import pytest
import torch
from compare_text import TINY, run_one, small_corpus

from swarmtrain.compare import request
from swarmtrain.compare.judge import Judge
from swarmtrain.compare.plan import Attack, Pace, Plan
from swarmtrain.compare.replica import Replica, held_back, settings_of
from swarmtrain.compare.results import Shelf
from swarmtrain.compare.shards import shards
from swarmtrain.compare.swarm import Swarm
from swarmtrain.compare.sweep import check, run_all
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.training.driver import Driver
from swarmtrain.simulate.processes.pretended_training import SharedDecoding
from swarmtrain.strategies import make_strategy
from swarmtrain_optimizers.strategies.registry import BUILT_IN


@pytest.fixture(scope="module")
def corpus():
    return small_corpus()


def test_a_run_learns_and_spends_exactly_its_tokens(corpus):
    result = run_one(replace(TINY, steps=40), corpus)
    assert result.tokens == 3 * 40 * 2 * 16
    assert result.ops == 14  # thirteen whole rounds of three steps and a short one
    assert result.curve[0].val_loss > 5.4  # close to ln 256
    assert result.val_loss < result.curve[0].val_loss - 0.1
    assert [point.tokens for point in result.curve] == [0, 960, 1920, 2880, 3840]
    assert len(result.state_roots) == 1


def test_one_peer_with_plain_averaging_is_the_trainer_alone(corpus):
    plan = replace(TINY, peers=1, codec="none", outer_lr=1.0, outer_momentum=0.0, inner_steps=100)
    result = run_one(plan, corpus)
    (pieces,) = shards(corpus, 1, 0, noniid=False)
    trainer = Replica(plan, 0, pieces, SharedDecoding()).trainer
    for _ in range(plan.steps):
        trainer.inner_step()
    judge = Judge(corpus, trainer.model, trainer.layout, context=16, windows=plan.windows)
    assert result.ops == 1
    assert result.val_loss == pytest.approx(judge.loss(trainer.read_weights()), rel=1e-6)


def test_two_runs_have_the_same_bits_in_any_number_of_processes():
    plans = [replace(TINY, seed=seed, peers=2, steps=3, points=1, windows=2) for seed in (0, 1)]
    here = run_all(plans, Shelf(None), 1, lambda result, is_kept: None)
    beside = run_all(plans, Shelf(None), 2, lambda result, is_kept: None)
    assert here == beside
    assert here[0].state_roots != here[1].state_roots


def test_stochastic_rounding_gives_other_bits_and_the_same_ones_again(corpus):
    plans = request.plans("diloco,diloco:rounding=stochastic", TINY, [0], {})
    nearest, rounded = (run_one(plan, corpus) for plan in plans)
    assert rounded.state_roots == run_one(plans[1], corpus).state_roots != nearest.state_roots
    assert rounded.bytes_up_per_peer == pytest.approx(nearest.bytes_up_per_peer, rel=0.01)
    assert "rounding" not in plans[0].as_json()  # what was kept before is found again


def test_the_number_of_threads_outside_changes_nothing(corpus):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        one = run_all([TINY], Shelf(None), 1, lambda result, is_kept: None, corpus)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert one == [run_one(TINY, corpus)]


def test_slow_peers_make_fewer_steps_as_soon_as_their_speed_is_known(corpus):
    waiting = of("delayed_nesterov", speeds=(1.0, 1.0, 0.5), steps=30)
    slow = run_one(waiting, corpus)
    swarm = Swarm(replace(waiting, pace=Pace.DYNAMIC), corpus)
    fast = swarm.run()
    compute_s = {run: run.modelled_seconds - run.exchange_seconds for run in (slow, fast)}
    assert compute_s[slow] == pytest.approx(30 * 0.002 / 0.5)
    # A round of six ticks in which all make three steps, then rounds of three and seven steps.
    assert compute_s[fast] == pytest.approx(41 * 0.002)
    assert [one.driver.strategy.own_steps for one in swarm._replicas] == [3, 3, 1]
    assert fast.tokens == pytest.approx(slow.tokens, rel=0.05)


def test_a_swarm_that_no_run_can_be_is_refused(corpus):
    alone = of("noloco", peers=1)
    unpaced = of("noloco", speeds=(1.0, 1.0, 0.5), pace=Pace.DYNAMIC)
    for plan, word in ((alone, "exchanges in pairs"), (unpaced, "keeps no pace")):
        with pytest.raises(UserError) as caught:
            run_all([plan], Shelf(None), 1, lambda result, is_kept: None, corpus)
        assert caught.value.code == "SWT-E610" and word in str(caught.value)
    paced = of("delayed_nesterov", speeds=(1.0, 1.0, 0.5), pace=Pace.DYNAMIC)
    check([paced, replace(unpaced, strategy="local", codec="none")])


def test_a_lost_contribution_is_left_out_and_the_run_goes_on(corpus):
    result = run_one(replace(TINY, drop=0.5, steps=24), corpus)
    assert result.ops + result.skipped == 8
    assert 4 < result.left_out < 20
    assert result.val_loss is not None


def test_a_peer_without_numbers_is_refused_and_one_that_flips_signs_is_not(corpus):
    nan = run_one(replace(TINY, hostile=1, attack=Attack.NAN), corpus)
    assert nan.left_out == nan.ops == 3
    flip = run_one(replace(TINY, hostile=1, attack=Attack.SIGN_FLIP), corpus)
    assert flip.left_out == 0
    assert flip.val_loss > nan.val_loss


def test_parts_of_the_text_are_the_same_for_all_strategies_and_whole_files_apart(corpus):
    dealt = shards(corpus, 3, 7, noniid=False)
    assert dealt == shards(corpus, 3, 7, noniid=False)
    assert dealt != shards(corpus, 3, 8, noniid=False)
    assert sorted(piece for part in dealt for piece in part) == sorted(
        corpus.piece(name) for name in corpus.train
    )
    contiguous = shards(corpus, 3, 7, noniid=True)
    assert b"".join(piece for part in contiguous for piece in part) == b"".join(
        corpus.piece(name) for name in corpus.train
    )


def test_ddp_of_several_peers_makes_the_step_of_their_mean_gradient(corpus):
    plan = replace(TINY, strategy="ddp", codec="none", peers=2, steps=2)
    swarm = Swarm(plan, corpus)
    swarm.begin()
    one, other = swarm._replicas
    first = one.trainer.read_weights().double()
    swarm._make_tick()
    config = plan.run_config().inner
    gradient = (one.trainer.read_gradient() + other.trainer.read_gradient()).double() / 2
    step = gradient / (gradient.abs() + 1e-8)  # AdamW's first step, bias corrected
    wanted = first * (1 - config.lr * config.weight_decay) - config.lr * step
    given = gradient.abs() > 1e-7
    torch.testing.assert_close(
        one.trainer.read_weights().double()[given], wanted[given], rtol=0, atol=1e-5
    )
    assert torch.equal(one.trainer.read_weights(), other.trainer.read_weights())


def test_ddp_exchanges_every_step_and_local_never(corpus):
    ddp = run_one(replace(TINY, strategy="ddp", codec="none"), corpus)
    assert (ddp.ops, ddp.replica_spread, len(ddp.state_roots)) == (8, 0.0, 1)
    local = run_one(replace(TINY, strategy="local", codec="none"), corpus)
    assert (local.ops, local.bytes_up_per_peer, local.peak_bytes_per_step) == (0, 0, 0)
    assert local.replica_spread > 0
    assert local.tokens == ddp.tokens


STREAMING = replace(
    TINY, strategy="streaming", codec="none", inner_steps=6, fragments=2, delay_steps=1, steps=24
)


def test_streaming_moves_a_fragment_at_a_time_and_places_it_some_steps_later(corpus):
    swarm = Swarm(STREAMING, corpus)
    swarm.begin()
    driver = swarm._leader.driver
    seen = []
    for _ in range(8):
        swarm._make_tick()
        seen.append((driver.op, driver.is_waiting, driver.steps))
    # Given after three steps, placed after four; the fourth already counts for the next one.
    assert seen == [
        (0, False, 1), (0, False, 2), (0, True, 3), (1, False, 1),
        (1, False, 2), (1, True, 3), (2, False, 1), (2, False, 2),
    ]  # fmt: skip


def test_streaming_of_one_fragment_without_delay_is_diloco(corpus):
    whole = run_one(replace(STREAMING, fragments=1, delay_steps=0), corpus)
    diloco = run_one(replace(STREAMING, strategy="diloco"), corpus)
    assert whole.state_roots == diloco.state_roots
    halves = run_one(STREAMING, corpus)
    assert 0.5 * diloco.peak_bytes_per_step < halves.peak_bytes_per_step
    assert halves.peak_bytes_per_step < diloco.peak_bytes_per_step
    assert halves.bytes_up_per_peer == diloco.bytes_up_per_peer


def test_a_robust_rule_keeps_what_a_hostile_peer_would_destroy(corpus):
    attacked = replace(TINY, peers=5, hostile=1, steps=24, attack=Attack.NOISE)
    plain = run_one(attacked, corpus)
    ruled = run_one(replace(attacked, robust="median"), corpus)
    assert ruled.val_loss < plain.val_loss


def test_a_flipping_peer_that_boasts_stops_a_bounded_mean_and_does_not_drive_it(
    corpus, monkeypatch
):
    """Among five it is worth the four others: clipped to their norm, what it gives cancels
    theirs."""
    attacked = replace(TINY, peers=5, hostile=1, steps=60, robust="norm-clip")
    begun = Replica.__init__

    def boasting(replica, plan, index, *others):
        begun(replica, plan, index, *others)
        stepped = replica.driver.stepped
        if index == 4:
            monkeypatch.setattr(replica.driver, "stepped", lambda samples: stepped(10**9))

    quiet = run_one(attacked, corpus)
    monkeypatch.setattr(Replica, "__init__", boasting)
    loud = run_one(attacked, corpus)
    assert loud.state_roots != quiet.state_roots
    assert loud.val_loss < loud.curve[0].val_loss + 0.1


def of(strategy: str, **settings) -> Plan:
    """A plan as the command would make it."""
    base = replace(TINY, **settings)
    return request.plans(strategy, base, [base.seed], {})[0]


EVERY = ["streaming:inner_steps=4", *(name for name in BUILT_IN if name != "streaming")]


@pytest.mark.parametrize("strategy", [*EVERY, "sparseloco:codec=topk-8", "diloco:inner=muon"])
def test_every_strategy_learns_and_repeats_bit_for_bit(corpus, strategy):
    plan = of(strategy, steps=16)
    result = run_one(plan, corpus)
    assert result == run_one(plan, corpus)
    assert result.val_loss < result.curve[0].val_loss
    # Where clocks are independent, whoever waits for a partner makes no step: a tick has fewer.
    ahead = result.tokens - plan.tokens
    assert 0 <= ahead < (plan.tokens // plan.steps if strategy == "gossip" else 1)
    # Two that have just averaged their weights are one.
    states = {"noloco": 3, "local": 3, "gossip": 2, "decentralized_adam": 2}
    assert len(result.state_roots) == states.get(strategy, 1)


@pytest.mark.parametrize("strategy", EVERY)
def test_every_strategy_goes_on_without_lost_contributions(corpus, strategy):
    result = run_one(of(strategy, drop=0.4), corpus)
    assert result.val_loss is not None
    assert result.left_out > 0 or strategy == "local"


@pytest.mark.parametrize(
    "strategy", ["streaming:inner_steps=6", "delayed", "eager", "co2", "noloco"]
)
def test_a_run_is_judged_by_its_anchor_and_never_by_what_a_replica_trains_on(corpus, strategy):
    swarm = Swarm(of(strategy, steps=8), corpus)
    result = swarm.run()
    # The first look is before any step, the second in the middle of the first round.
    assert result.curve[1].val_loss == result.curve[0].val_loss
    assert result.curve[1].replica_spread > 0
    assert result.val_loss == result.curve[-1].val_loss < result.curve[0].val_loss
    if strategy != "noloco":
        assert result.val_loss == swarm._judge.loss(swarm._leader.anchor)
        live = swarm._judge.loss(swarm._leader.trainer.read_weights())
        assert result.val_loss != live


def test_an_exchange_that_is_a_round_late_is_hidden_behind_it(corpus):
    alone = {"peers": 1, "steps": 12}
    settings = "codec=none:outer_lr=0.9:outer_momentum=0.8"
    diloco, delayed, eager, co2 = (
        run_one(of(f"{name}:{settings}", **alone), corpus)
        for name in ("diloco", "delayed", "eager", "co2")
    )
    assert diloco.ops == delayed.ops == eager.ops == co2.ops == 4
    assert delayed.exchange_seconds < diloco.exchange_seconds
    assert co2.exchange_seconds == eager.exchange_seconds == delayed.exchange_seconds
    assert delayed.val_loss != diloco.val_loss


def test_eager_updates_of_one_peer_are_diloco(corpus):
    settings = "codec=none:outer_lr=0.7:outer_momentum=0.5"
    diloco, eager = (
        run_one(of(f"{name}:{settings}", peers=1, steps=15), corpus) for name in ("diloco", "eager")
    )
    assert eager.val_loss == pytest.approx(diloco.val_loss, rel=1e-6)


def test_what_a_late_strategy_holds_is_told(corpus):
    for name in ("delayed", "eager", "co2"):
        assert run_one(of(f"{name}:codec=two_bit:error_feedback=yes"), corpus).held_back > 0


def test_an_op_that_may_take_a_round_needs_a_part_of_the_rate(corpus):
    diloco, eager = (run_one(of(name, steps=9), corpus) for name in ("diloco", "eager"))
    assert eager.peak_bytes_per_step == pytest.approx(diloco.peak_bytes_per_step / 3, abs=1)
    assert eager.bytes_up_per_peer == diloco.bytes_up_per_peer


def test_a_strategy_that_takes_gradients_needs_somebody_who_gives_them(corpus):
    (pieces,) = shards(corpus, 1, 0, noniid=False)
    trainer = Replica(replace(TINY, peers=1), 0, pieces, SharedDecoding()).trainer
    with pytest.raises(ValueError, match="takes gradients"):
        Driver(
            b"me",
            make_strategy(settings_of(replace(TINY, strategy="ddp")), trainer.layout),
            trainer,
            layout=trainer.layout.digest,
            num_values=trainer.layout.num_values,
            snapshot_rounds=1,
        )


def test_peers_arrive_in_several_ops_only_where_they_go_apart(corpus):
    speeds = {"speeds": (1.0, 1.0, 0.5)}
    paces = {"wait": 1, "dynamic": 1, "apart": 2}
    found = {
        pace: settings_of(of(f"delayed_nesterov:pace={pace}", **speeds)).numbers["arrivals"]
        for pace in paces
    }
    assert found == paces
    wanted = of("delayed_nesterov:pace=apart:arrivals=3", **speeds)
    assert settings_of(wanted).own["arrivals"] == 3
    waiting = run_one(of("delayed_nesterov", steps=12, **speeds), corpus)
    assert waiting.state_roots == run_one(of("delayed_nesterov", steps=12), corpus).state_roots


def test_a_state_root_of_local_is_of_the_weights_that_a_peer_ended_with(corpus):
    short, long = (run_one(of("local", steps=steps), corpus) for steps in (2, 4))
    assert len({*short.state_roots, *long.state_roots}) == 6


def test_noloco_sends_two_vectors_to_one_peer_however_many_there_are(corpus):
    few, many = (run_one(of("noloco", peers=peers), corpus) for peers in (2, 4))
    assert few.bytes_up_per_peer == many.bytes_up_per_peer
    assert few.exchange_seconds == many.exchange_seconds
    assert few.replica_loss is not None
    assert many.replica_spread > 0


def test_a_peer_that_goes_apart_is_in_every_op_that_its_own_round_ends_with(corpus):
    plan = of("delayed_nesterov:pace=apart", speeds=(1.0, 1.0, 0.5), steps=12)
    swarm = Swarm(plan, corpus)
    swarm.begin()
    slow = swarm._replicas[2].driver
    included = []
    for tick in range(1, 13):
        swarm._make_tick()
        if tick % 3 == 0:
            included.append(slow.included)
    assert included == [False, True, False, True]
    assert len({replica.driver.root for replica in swarm._replicas}) == 1


def test_replicas_of_noloco_are_apart_at_every_point_and_those_of_diloco_are_not(corpus):
    noloco, diloco = (run_one(of(name, steps=24), corpus) for name in ("noloco", "diloco"))
    assert all(point.replica_spread > 0 for point in noloco.curve[1:])
    assert [point.replica_spread for point in diloco.curve[::2]] == [0.0, 0.0, 0.0]
    assert noloco.curve[-1].replica_spread == noloco.replica_spread


def test_what_waits_in_error_feedback_is_less_where_more_is_sent(corpus):
    few, many = (run_one(of(f"sparseloco:codec=topk-{k}", steps=12), corpus) for k in (8, 128))
    assert few.held_back > many.held_back > 0
    assert run_one(of("diloco", steps=12), corpus).held_back == 0


def test_the_waiting_is_measured_in_ways_of_the_anchor(corpus):
    swarm = Swarm(of("sparseloco:codec=topk-8"), corpus)
    swarm.begin()
    first = swarm._leader.anchor.clone()
    swarm._leader.anchor.add_(3.0)
    for replica in swarm._replicas:
        replica.driver.strategy.local_arrays()[0][1].fill_(1.5)
    assert held_back(swarm._replicas, first) == pytest.approx(0.5)

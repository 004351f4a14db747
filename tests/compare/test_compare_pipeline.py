"""Pipelines in a comparison: the unsplit model's losses, routes that follow speed, what is lost."""

from dataclasses import replace

import pytest
import torch
from compare_text import TINY, run_one, small_corpus

from swarmtrain.compare import request
from swarmtrain.compare.pipeline_crowd import PipelineCrowd
from swarmtrain.compare.pipeline_swarm import PipelineSwarm
from swarmtrain.compare.plan import Pipelined
from swarmtrain.compare.results import rows
from swarmtrain.compare.seats import run_here
from swarmtrain.compare.table import text_table
from swarmtrain.foundation.errors import UserError
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_optimizers.strategies.registry import BUILT_IN
from swarmtrain_transport import limits

torch.set_num_threads(1)  # cores that are shared wait for each other

PAIRS = replace(TINY, peers=2, points=2)


@pytest.fixture(scope="module")
def corpus():
    return small_corpus()


def piped(corpus, plan=PAIRS, **settings):
    return run_here(replace(plan, pipeline=Pipelined(3, **settings)), corpus)[1]


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_flushed_steps_of_one_peer_a_stage_lose_what_the_unsplit_model_loses(corpus, micro_batch):
    """Bit for bit where gradients add up in one order: a micro-batch is the whole batch."""
    alone = replace(TINY, peers=1, codec="none", points=1, steps=6)
    whole = run_one(alone, corpus)
    split = piped(corpus, alone, schedule="flush", activations="none", micro_batch=micro_batch)
    assert (split.tokens, split.ops) == (whole.tokens, whole.ops)
    assert split.val_loss == pytest.approx(whole.val_loss, abs=1e-6)
    if micro_batch == 2:
        assert (
            split.val_loss == whole.val_loss and split.curve[0].val_loss == split.curve[0].val_loss
        )


def test_a_pipeline_sees_the_tokens_of_as_many_replicas_and_ends_with_one_state(corpus):
    whole, split = run_one(PAIRS, corpus), piped(corpus)
    assert (split.tokens, split.ops, split.skipped) == (whole.tokens, whole.ops, 0)
    assert len(split.state_roots) == 1 and (split.redone, split.lost) == (0, 0)
    assert split.val_loss < 0.99 * split.curve[0].val_loss
    assert min(split.stage_spreads) > 0 and split.replica_spread == 0
    assert piped(corpus) == split


STAGED = [facts.name for facts in BUILT_IN.values() if facts.fits_stages]


@pytest.mark.parametrize("strategy", STAGED)
def test_strategies_with_rounds_fit_through_deaths(corpus, strategy):
    """Some wait for an op and some do not: the stages' states are one all the same. Peers that die
    come back, and the tokens are made up for."""
    own = ":fragments=1:delay_steps=2" * (strategy == "streaming")
    is_own = BUILT_IN[strategy].kind is OpKind.PAIR  # then a state is a peer's own
    words = f"{strategy}:pipeline=3x2:death_s=10{own}"
    (plan,) = request.plans(words, replace(PAIRS, steps=40, inner_steps=10), [0], {})
    result = run_here(plan, corpus)[1]
    assert result.modelled_seconds > 10  # somebody has died
    assert result.tokens >= plan.tokens and result.ops + result.skipped >= 4
    assert is_own or len(result.state_roots) == 1
    assert result.val_loss < 0.95 * result.curve[0].val_loss


@pytest.mark.parametrize("codec", ["int8", "sign"])
def test_states_of_thin_ways_stay_in_the_subspace(corpus, codec):
    """Whatever the exchange sends: sign has no level for nothing."""
    words = f"diloco:pipeline=3x2:codec={codec}:error_feedback=yes:activations="
    rank = 4
    (plan,) = request.plans(words + f"subspace-{rank}", PAIRS, [0], {})
    swarm = PipelineSwarm(plan, plan.pipeline, corpus)
    thin = swarm.run()
    assert len(thin.state_roots) == 1 and thin.val_loss < 0.99 * thin.curve[0].val_loss
    for stage, peers in enumerate(swarm._crowd.stages):
        for one in peers:
            anchor = one.replica.anchor
            held = anchor.clone()
            one.replica.stage_trainer.span.subspace.confining(one.replica.layout)(held, ())
            assert torch.equal(held, anchor)
            views = one.replica.layout.named_views(anchor)
            for name in views if stage < 2 else ():
                if name.endswith(("attention_out.weight", "mlp_down.weight")):
                    assert views[name][:rank].any() and not views[name][rank:].any()


def test_fast_peers_get_more_micro_batches_unless_routes_are_fixed(corpus):
    plan = replace(PAIRS, speeds=(1.0, 0.25), steps=40, inner_steps=20, net="lan")
    free, fixed = piped(corpus, plan), piped(corpus, plan, routes="fixed")
    for fast, slow in free.route_shares[1:]:  # an embedding alone takes no time
        assert fast > 1.5 * slow
    assert len(set(fixed.route_shares)) == 1  # who is first in a stage hears of the first alone
    assert (
        "\n".join(text_table(rows([free])).splitlines()[0].split()[-3:]) == "shares\nredone\nlost"
    )


def test_what_gets_lost_is_said_again_and_made_again(corpus):
    plan = replace(PAIRS, drop=0.2, steps=24)
    result = piped(corpus, plan)
    assert result.redone > 0 and result.left_out > 0
    assert result.tokens >= plan.tokens and result.ops + result.skipped >= 8


def test_routes_that_leave_stages_out_share_them_and_learn(corpus):
    plan = replace(PAIRS, size="deep", steps=8, inner_steps=4)
    result = run_here(replace(plan, pipeline=Pipelined(6, visit=4, micro_batch=2)), corpus)[1]
    assert result.tokens == plan.tokens and (result.redone, result.lost) == (0, 0)
    assert len(result.state_roots) == 1 and len(result.losses_without) == 4
    assert result.val_loss < 0.95 * result.curve[0].val_loss


def test_no_round_is_made_for_the_few_micro_batches_that_the_last_one_lost(corpus):
    """Outer momentum would go a whole step for them."""
    plan = replace(PAIRS, drop=0.02, steps=200, inner_steps=50)
    result = piped(corpus, plan)
    assert result.lost > 0 and result.ops + result.skipped == 4
    assert 0.99 * plan.tokens <= result.tokens < plan.tokens


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        *((f"{name}:pipeline=3x2", "cannot be trained in a pipeline") for name in ("ddp", "local")),
        ("streaming:pipeline=3x2", "fragments of .* must be fewer for stage 0"),
        ("eager:pipeline=3x2:schedule=flush", "schedule of .* must be free with outer.strategy"),
        ("diloco:pipeline=3", "three stages with two peers"),
        ("diloco:pipeline=0x2", "two or more"),
        ("diloco:pipeline=3x2:visit=4", "Of 3 stages a route has the first, the last and some"),
        ("diloco:pipeline=1x2", "two or more"),
        ("diloco:activations=int8", "three stages with two peers"),
        ("diloco:pipeline=3x4", "pipeline=3x2"),
        ("diloco:pipeline=9x2", "from 1 to 3"),
        ("diloco:pipeline=3x2:activations=int4", "int4"),
        ("diloco:pipeline=3x2:activations=subspace-16", "fewer values than model.width .16."),
        ("diloco:pipeline=3x2:micro_batch=3", "divisor"),
        ("diloco:pipeline=3x2:slots=-1", "slots can be"),
        ("diloco:pipeline=3x2:death_s=3", "death_s"),
        ("diloco:pipeline=3x2:hostile=1", "hostile"),
        ("delayed_nesterov:pipeline=3x2:pace=dynamic", "more to do"),
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_be_is_refused_with_what_to_do(words, hint):
    with pytest.raises(UserError, match=hint) as caught:
        request.plans(words, replace(PAIRS, speeds=(1.0, 0.5)), [0], {})
    assert caught.value.code == "SWT-E610"


def test_who_flips_gradients_is_suspected_by_the_sources_and_gets_little(corpus, monkeypatch):
    """Real gradients: honest ones differ in a round, and what is flipped differs from all."""
    monkeypatch.setattr(limits, "REPEAT_EVERY", 2)
    plan = replace(PAIRS, peers=3, steps=40, inner_steps=20)
    crowd = PipelineCrowd(plan, Pipelined(3), corpus)
    flipper = crowd.stages[1][2]
    honest, boundary = flipper.trainer.begin_backward, crowd.forms.boundaries[1]

    def flipped(request, given, answer):
        true = honest(request, given, answer)
        wrong = -boundary.decode(true.data, true.form)
        return true._replace(data=boundary.encode(wrong, seed=0))

    monkeypatch.setattr(flipper.trainer, "begin_backward", flipped)
    crowd.begin()
    books = [crowd.run_round().books for _ in range(2)]
    assert {one.suspect for one in books[-1].compared.values()} == {flipper.me.peer}
    shares = [books[-1].told[one.me, 1] for one in crowd.stages[1]]
    assert shares[2] < 0.5 * min(shares[:2])

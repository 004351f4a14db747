"""Comparisons with a last merge: of peers that were alone, and of such as went by pairs."""

from dataclasses import replace

import pytest
import torch
from compare_text import TINY, run_one, small_corpus

from swarmtrain.compare import request
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.swarm import Swarm
from swarmtrain.foundation.errors import UserError


@pytest.fixture(scope="module")
def corpus():
    return small_corpus()


def of(words: str, **changed: object) -> Plan:
    base = replace(TINY, steps=24, inner_steps=3, **changed)
    (plan,) = request.plans(words, base, [0], {})
    return plan


def test_the_end_is_the_mean_of_all_replicas_and_is_judged(corpus):
    alone = Swarm(of("local"), corpus)
    apart = alone.run()
    weights = torch.stack([one.trainer.read_weights() for one in alone._replicas])
    merged = Swarm(of("local:last_merge=yes"), corpus)
    result = merged.run()
    found = merged._leader.trainer.read_weights()
    assert torch.allclose(found, weights.mean(0), rtol=0, atol=1e-6)
    assert result.val_loss == merged._judge.loss(found) != apart.val_loss
    assert result.replica_loss == min(alone._judge.loss(one) for one in weights)
    assert [point.val_loss for point in result.curve[:-1]] == [
        point.val_loss for point in apart.curve[:-1]
    ]
    assert (result.ops, len(result.state_roots), result.replica_spread) == (1, 1, 0.0)
    # An owner gets the parts of two others and sends its result to them, in float32.
    assert result.bytes_up_per_peer == pytest.approx(4 * 4 / 3 * result.num_values, rel=0.02)


@pytest.mark.parametrize("strategy", ["local", "noloco"])
@pytest.mark.parametrize("when", ["late", "even", "early"])
def test_a_budget_bounds_the_exchanges_and_the_run_ends_with_one_model(corpus, strategy, when):
    result = run_one(of(f"{strategy}:last_merge=yes:budget=2:when={when}"), corpus)
    assert (result.ops, result.skipped, len(result.state_roots)) == (3, 0, 1)
    assert result.tokens == run_one(of("diloco"), corpus).tokens
    moved = [point.tokens for point in result.curve if point.bytes_up_per_peer]
    (early, *_) = moved
    assert early > result.tokens // 2 if when == "late" else early <= result.tokens // 2
    again = run_one(of(f"{strategy}:last_merge=yes:budget=2:when={when}"), corpus)
    assert again.state_roots == result.state_roots


def test_pairs_of_every_round_are_merged_too(corpus):
    pairs, merged = (run_one(of(words), corpus) for words in ("noloco", "noloco:last_merge=yes"))
    assert merged.ops == pairs.ops + 1
    assert len(pairs.state_roots) == 3 and len(merged.state_roots) == 1
    assert merged.replica_loss is not None and merged.val_loss is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("diloco:last_merge=yes", "diloco takes no last_merge"),
        ("noloco:budget=3", "budget of exchanges without a last merge"),
        ("noloco:last_merge=yes:budget=8", "budget .* is 8"),
        ("noloco:last_merge=yes:when=soon", "when .* is 'soon'"),
        ("noloco:last_merge=yes:drop=0.5", "cannot end with a last merge"),
        ("noloco:last_merge=yes:pipeline=2x3", "no last merge in a pipeline"),
    ],
)
def test_a_merge_that_cannot_be_meant_is_refused(words, said):
    with pytest.raises(UserError, match=said) as caught:
        of(words)
    assert caught.value.code == "SWT-E610"

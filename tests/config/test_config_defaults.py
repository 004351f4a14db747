"""A run file that names only its strategy: what it means, and that compare exchanges so too."""

import math
from pathlib import Path

import pytest
import torch

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.request import plans
from swarmtrain.config import file as config_file
from swarmtrain.config import limits as config_limits
from swarmtrain.config.built_in import built_in_parameters
from swarmtrain.config.settings import ModelSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.strategies import check, strategy_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN, maker_of
from tests.config.run_files import loaded

torch.set_num_threads(1)
BASE = Plan("", "", "", size="demo")
STRATEGIES = [facts.name for facts in BUILT_IN.values() if facts.kind]


def named(strategy: str, more: str = "") -> str:
    return f'[outer]\nstrategy = "{strategy}"\n{more}'


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_alone_is_a_whole_run_file(tmp_path: Path, strategy: str):
    config = loaded(tmp_path, named(strategy))
    assert config_limits.warnings(config) == ()
    assert config_file.from_canonical(config_file.canonical(config)) == config
    layout = Layout.of(build_model(config.model, 0), config.exchange.block)
    made = strategy_of(config, layout)
    facts = BUILT_IN[strategy]
    assert type(made) is maker_of(facts)
    check(made, facts)
    assert made.inner_steps == config.steps_per_round
    steps = {"ddp": 1, "decoupled_momentum": 1, "decentralized_adam": 1, "streaming": 10}.get(
        strategy, 20
    )
    assert config.steps_per_round == steps
    weights = torch.randn(layout.padded)
    made.set_initial(weights)
    assert torch.equal(dict(made.state_arrays())["anchor"], weights)


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"ddp"}))
def test_compare_exchanges_in_the_same_way_by_the_name(tmp_path: Path, strategy: str):
    config, (plan,) = loaded(tmp_path, named(strategy)), plans(strategy, BASE, [0], {})
    assert config.exchange.codec == plan.codec
    assert config.outer.fragments == plan.fragments
    assert config.outer.delay_steps == plan.delay_steps
    assert config.outer.mixing == plan.mixing
    if config.exchange.codec == "topk":
        assert config.exchange.block == plan.block


def test_what_the_file_says_counts(tmp_path: Path):
    more = 'lr = 0.6\nfragments = 1\n[exchange]\ncodec = "int8"\n'
    config = loaded(tmp_path, named("streaming", more))
    assert (config.outer.lr, config.outer.fragments, config.exchange.codec) == (0.6, 1, "int8")
    assert (config.outer.delay_steps, config.outer.mixing) == (1, 0.5)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (named("ddp", "error_feedback = true\n"), "outer.error_feedback"),
        ('[inner]\nschedule = "tokens"\nschedule_tokens = 40960\n', "inner.schedule_tokens"),
        (named("streaming", "inner_steps = 25\n"), "outer.inner_steps"),
        (named("streaming", "inner_steps = 60\nfragments = 6\n"), "outer.fragments"),
        (
            named("streaming", "[model]\nlayers = 2\nwidth = 16\n[exchange]\nblock = 65536\n"),
            "outer.fragments",
        ),
        (named("ddp", '[model]\nkind = "custom"\n'), "model.kind"),
        (named("sparseloco", "momentum = 0.5\n"), "outer.momentum"),
        (
            named("delayed_nesterov", "[strategy.delayed_nesterov]\narrivals = 4\nspread = 0.5\n"),
            "strategy.delayed_nesterov.spread",
        ),
        (named("noloco", "[strategy.nolocco]\npull = 1.0\n"), "strategy.nolocco"),
        ("[model]\nwidth = 96\nheads = 32\n", "model.width"),
    ],
)
def test_what_would_be_left_undone_is_refused(tmp_path: Path, text: str, key: str):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, text)
    assert f"`{key}`" in caught.value.what and caught.value.code == "SWT-E605"
    assert ".." not in str(caught.value)


def test_sections_of_strategies_that_a_file_does_not_name_may_stay(tmp_path: Path):
    both = "[strategy.noloco]\npull = 0.9\n[strategy.sparseloco]\nbeta = 0.9\n"
    assert loaded(tmp_path, named("diloco", both)).strategy["noloco"] == {"pull": 0.9}


def test_a_model_of_ones_own_is_one_fragment_where_nothing_is_said(tmp_path: Path):
    config = loaded(tmp_path, named("streaming", '[model]\nkind = "custom"\n'))
    assert (config.outer.fragments, config.outer.delay_steps, config.outer.mixing) == (1, 1, 0.5)
    assert config.exchange.codec == "e3m0"


def test_the_built_in_models_parameters_are_known_before_it_is_made():
    section = ModelSection(layers=3, width=32, heads=4)
    made = Layout.of(build_model(section, 0), 16).parameters
    known = [(name, math.prod(shape)) for name, shape, _ in built_in_parameters(section)]
    assert known == [(spec.name, spec.num_values) for spec in made]


def test_an_unknown_strategy_is_one_sentence(tmp_path: Path):
    for name, hint in (("streming", "(did you mean streaming?)."), ("zzz", "it is zzz.")):
        with pytest.raises(UserError) as caught:
            loaded(tmp_path, named(name))
        assert hint in caught.value.what


def test_a_number_without_end_is_told_in_our_words(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, f"seed = {'9' * 5000}\n")
    assert caught.value.code == "SWT-E603" and "thousands of digits" in caught.value.what

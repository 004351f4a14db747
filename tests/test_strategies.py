"""One maker of strategies: what a run file, a comparison and an installed package can ask for."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from swarmtrain.compare import request
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.replica import settings_of as settings_of_plan
from swarmtrain.config import file as config_file
from swarmtrain.config import limits as config_limits
from swarmtrain.config.settings import ExchangeSection, OuterSection, RunConfig, RunSection
from swarmtrain.coordinator.service import run_terms
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.strategies import make_strategy, strategy_of
from swarmtrain_optimizers.robust import RULES
from swarmtrain_optimizers.robust.base import Needs
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import DelayedNesterov
from swarmtrain_optimizers.strategies.facts import StrategyFacts
from tests.brought import install_example
from tests.config.run_files import loaded

torch.set_num_threads(1)
LAYOUT = Layout.from_parameters(
    tuple(ParameterSpec(name, (64,), "float32") for name in ("embed", "h.0.w", "h.1.w")), 16
)
WEIGHTS = torch.linspace(-1, 1, LAYOUT.padded)


def config_of(own: dict[str, Any] | None = None, **outer: Any) -> RunConfig:
    section = OuterSection(**outer)
    return RunConfig(
        run=RunSection(name="t"),
        outer=section,
        exchange=ExchangeSection(block=16),
        strategy={section.strategy: own} if own else {},
    )


PLAIN = StrategyFacts("theirs", "swarmtrain_optimizers.strategies.noloco.strategy:NoLoCo", "one")


@pytest.fixture
def brings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets there be a strategy `theirs` with these facts; begins with the example alone."""

    def bring(**changed: Any) -> None:
        facts = replace(PLAIN, **changed)
        monkeypatch.setitem(sys.modules, "theirs", ModuleType("theirs"))
        monkeypatch.setattr(sys.modules["theirs"], "FACTS", facts, raising=False)
        install_example(monkeypatch, theirs="theirs:FACTS")

    install_example(monkeypatch)
    return bring


def test_a_packages_strategy_is_reached_from_a_run_file(tmp_path: Path, brings: Any):
    text = '[outer]\nstrategy = "heavy_ball"\ninner_steps = 7\nmomentum = 0.25\n'
    config = loaded(tmp_path, text)
    strategy = strategy_of(config, LAYOUT)
    assert (type(strategy).__name__, strategy.inner_steps) == ("HeavyBall", 7)
    strategy.set_initial(WEIGHTS)
    strategy.pseudo_gradient(WEIGHTS - 1)
    ones = torch.ones(LAYOUT.padded)
    after = strategy.apply(ones, [(0, LAYOUT.padded, True)], WEIGHTS - 1)
    assert torch.equal(after, WEIGHTS - ones * torch.tensor(0.7))


def test_a_packages_strategy_is_compared_by_its_name(brings: Any):
    base = Plan("", "", "", peers=2, steps=8, size="tiny")
    (plan,) = request.plans("heavy_ball:inner_steps=4:outer_momentum=0.25", base, [0], {})
    assert (plan.strategy, plan.codec, plan.own, plan.inner_steps) == ("heavy_ball", "int8", (), 4)
    assert type(make_strategy(settings_of_plan(plan), LAYOUT)).__name__ == "HeavyBall"


def test_what_only_a_packages_strategy_knows_stands_in_its_own_section(tmp_path: Path, brings: Any):
    text = '[outer]\nstrategy = "halfway"\n[strategy.halfway]\nshare = 0.25\n'
    config = loaded(tmp_path, text)
    assert config.strategy == {"halfway": {"share": 0.25}}
    assert config_file.from_canonical(config_file.canonical(config)) == config
    for more, words in [
        ("share = 0.75", "must be above 0 and at most 0.5, it is 0.75"),
        ("grip = 3", "must not be there: halfway takes share"),
    ]:
        with pytest.raises(UserError, match=words):
            loaded(tmp_path, f"[strategy.halfway]\n{more}\n")
    base = Plan("", "", "", peers=2, steps=8, size="tiny")
    (plan,) = request.plans("halfway:share=0.25", base, [0], {})
    assert plan.own == (("share", 0.25),)
    assert plan.key("v") != request.plans("halfway", base, [0], {})[0].key("v")
    assert type(make_strategy(settings_of_plan(plan), LAYOUT)).__name__ == "Halfway"


class Odd:
    """A strategy that no driver could step, as far as it is looked at."""

    takes_gradients = False

    def __init__(self, num_values: int, *, vectors: int = 1, name: str = "anchor") -> None:
        self.num_values, self.vectors, self.name = num_values, vectors, name

    def exchange(self, op: int) -> Exchange:
        return Exchange(OpKind.MEAN, ((0, self.num_values),), vectors=self.vectors)

    def state_arrays(self) -> list[tuple[str, torch.Tensor]]:
        return [(self.name, torch.zeros(self.num_values))]


def of_two_vectors(num_values: int) -> Odd:
    return Odd(num_values, vectors=2)


def without_anchor(num_values: int) -> Odd:
    return Odd(num_values, name="weights")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "does not take its settings"),
        ({"maker": f"{__name__}:Odd", "kind": OpKind.PAIR}, "by mean, not as its facts say"),
        ({"maker": f"{__name__}:Odd", "takes_gradients": True}, "wants weights"),
        ({"maker": f"{__name__}:of_two_vectors"}, "moves 2 vectors, not 1"),
        ({"maker": f"{__name__}:without_anchor"}, "no array that is named anchor"),
        ({"maker": f"{__name__}:Odd", "takes": frozenset({"grip"})}, "grip, which no run has"),
        ({"maker": "no_such_package:Odd"}, "does not load"),
    ],
)
def test_what_is_not_as_its_facts_say_is_refused(brings: Any, changed: Any, words: str):
    brings(**({"takes": frozenset()} | changed))
    config = config_of(strategy="theirs")
    with pytest.raises(UserError, match=words):
        strategy_of(config, LAYOUT)


def test_a_strategy_that_nobody_brings_is_refused_here_and_at_the_peer(tmp_path: Path):
    with pytest.raises(UserError, match="did you mean diloco") as caught:
        loaded(tmp_path, '[outer]\nstrategy = "dilocco"\n')
    assert caught.value.code == "SWT-E605"
    with pytest.raises(UserError, match="'dilocco' is not known here"):
        strategy_of(config_of(strategy="dilocco"), LAYOUT)


def test_what_cannot_run_over_a_network_is_sent_to_compare(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, '[outer]\nstrategy = "local"\n')
    assert "`outer.strategy` must" in caught.value.what
    assert "swarmtrain compare --strategies local" in caught.value.meaning


def test_a_section_of_its_own_reaches_the_strategy_and_counts_in_the_hash(tmp_path: Path):
    text = '[outer]\nstrategy = "delayed_nesterov"\n'
    plain = loaded(tmp_path, text)
    config = loaded(tmp_path, text + "[strategy.delayed_nesterov]\narrivals = 3\nspread = 0.25\n")
    assert isinstance(strategy_of(config, LAYOUT), DelayedNesterov)
    assert config_file.config_hash(config) != config_file.config_hash(plain)
    assert config_file.from_canonical(config_file.canonical(config)) == config


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("[strategy.delayed_nesterov]\narrivals = 0", "from 1 to 64"),
        ("[strategy.delayed_nesterov]\narrivals = 1.5", "whole number"),
        ("[strategy.delayed_nesterov]\narivals = 2", "takes arrivals, spread"),
        ("[strategy.diloco]\nlr = 2", "takes nothing but"),
        ("[strategy.theirs]\nlr = nan", "finite"),
        (f"[strategy.theirs]\nlr = {10**22}", "63 bits"),
        (f"[strategy.sparseloco]\nbeta = {10**400}", "63 bits"),
        ("[strategy]\ndiloco = 3", "must be a section"),
        ("[strategy.theirs]\nlr = [1]", "must be"),
    ],
)
def test_settings_of_its_own_that_cannot_work_name_the_key(tmp_path: Path, own: str, words: str):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, own + "\n")
    assert words in caught.value.what and "strategy." in caught.value.what


def test_ddp_steps_by_adamw_alone(tmp_path: Path):
    with pytest.raises(UserError, match=r"inner.optimizer"):
        loaded(tmp_path, '[inner]\noptimizer = "muon"\n[outer]\nstrategy = "ddp"\n')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('codec = "topk-300"\nblock = 256', "from 300 to 65536"),
        ('codec = "sign"\nblock = 1028\nchunk_values = 1028', "multiple of 8"),
        ('codec = "two_bit"\nrounding = "stochastic"', "must be nearest"),
        ('codec = "topk-x"', "must be one of"),
    ],
)
def test_codecs_and_blocks_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: str):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, f"[exchange]\n{text}\n")
    assert words in caught.value.what


def test_a_codec_that_loses_much_without_error_feedback_is_warned_of(tmp_path: Path):
    lossy = loaded(tmp_path, '[exchange]\ncodec = "topk-64"\nblock = 4096\n')
    assert "outer.error_feedback = true" in config_limits.warnings(lossy)[0]
    fed = loaded(tmp_path, '[exchange]\ncodec = "two_bit"\n[outer]\nerror_feedback = true\n')
    assert config_limits.warnings(fed) == ()
    sparse = '[exchange]\ncodec = "topk-64"\nblock = 4096\n[outer]\nstrategy = "sparseloco"\n'
    assert config_limits.warnings(loaded(tmp_path, sparse)) == ()
    ddp = loaded(tmp_path, '[exchange]\ncodec = "sign"\n[outer]\nstrategy = "ddp"\n')
    assert "ddp has none" in config_limits.warnings(ddp)[0]
    assert config_limits.warnings(config_of()) == ()


def test_a_run_may_have_every_robust_rule_where_somebody_can_be_told_from_the_others(
    tmp_path: Path,
):
    few = "[exchange]\nmin_contributors = 3\nstart_peers = 3\n"
    for name, rule in RULES.items():
        config = loaded(tmp_path, f'[outer]\nrobust = "{name}"\n{few}')
        terms = run_terms(config)
        assert (terms.rule, terms.exact) == (name, False)
        needs = "" if rule.needs is Needs.COORDINATES else rule.needs.value
        assert terms.scalars == ("centred" if name == "centered-clip" else needs)
    with pytest.raises(UserError, match="robust"):
        loaded(tmp_path, f'[outer]\nrobust = "krum"\n{few}')
    with pytest.raises(UserError, match=r"must be at least 3 with outer\.robust median"):
        loaded(tmp_path, '[outer]\nrobust = "median"\n')
    with pytest.raises(UserError, match=r"must be none with outer\.strategy sparseloco"):
        loaded(tmp_path, f'[outer]\nstrategy = "sparseloco"\nrobust = "median"\n{few}')


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[inner]\nschedule_tokens = 5", "inner.schedule_tokens"),
        ('[inner]\nschedule = "tokens"\n[model]\nkind = "custom"', "inner.schedule"),
        ('[outer]\nlr_rule = "contributors"\nstrategy = "eager"', "outer.lr_rule"),
    ],
)
def test_what_follows_the_swarm_is_asked_for_only_where_it_can_be(
    tmp_path: Path, text: str, key: str
):
    with pytest.raises(UserError, match=f"`{key}` must"):
        loaded(tmp_path, text + "\n")


def test_a_schedule_by_tokens_has_its_peers_count_samples(tmp_path: Path):
    plain, counted = config_of(), loaded(tmp_path, '[inner]\nschedule = "tokens"\n')
    assert [run_terms(config).counts_samples for config in (plain, counted)] == [False, True]

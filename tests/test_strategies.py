"""One maker of strategies: what a run file, a comparison and an installed package can ask for."""

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
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
from swarmtrain.errors import UserError
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.strategies import make_strategy, strategy_of
from swarmtrain_optimizers.robust import RULES
from swarmtrain_optimizers.robust.base import Needs
from swarmtrain_optimizers.strategies import brought
from swarmtrain_optimizers.strategies.delayed_nesterov import DelayedNesterov

torch.set_num_threads(1)
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_strategy"
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


def loaded(directory: Path, text: str) -> RunConfig:
    path = directory / "run.toml"
    path.write_text(f'[run]\nname = "t"\n{text}', encoding="utf-8")
    return config_file.load(path)


@pytest.fixture
def brings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets entry points be as if packages were installed; begins with the example."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    values = dict(project["entry-points"][brought.GROUP])

    def install(**more: str) -> None:
        values.update(more)
        points = EntryPoints(EntryPoint(n, value, brought.GROUP) for n, value in values.items())
        monkeypatch.setattr(brought, "entry_points", lambda **wanted: points.select(**wanted))

    monkeypatch.syspath_prepend(str(EXAMPLE))
    install()
    return install


def test_a_packages_strategy_is_reached_from_a_run_file(tmp_path: Path, brings: Any):
    text = '[outer]\nstrategy = "heavy_ball"\ninner_steps = 7\nmomentum = 0.25\n'
    config = loaded(tmp_path, text)
    strategy = strategy_of(config, LAYOUT)
    assert (type(strategy).__name__, strategy.inner_steps) == ("HeavyBall", 7)
    strategy.set_initial(WEIGHTS)
    strategy.pseudo_gradient(WEIGHTS - 1)
    ones = torch.ones(LAYOUT.padded)
    after = strategy.apply(ones, [(0, LAYOUT.padded, True)], WEIGHTS - 1)
    assert torch.equal(after, WEIGHTS - ones * torch.tensor(0.9))


def test_a_packages_strategy_is_compared_by_its_name(brings: Any):
    base = Plan("", "", "", peers=2, steps=8, size="tiny")
    (plan,) = request.plans("heavy_ball:inner_steps=4:outer_momentum=0.25", base, [0], {})
    assert (plan.strategy, plan.codec, plan.own, plan.inner_steps) == ("heavy_ball", "int8", (), 4)
    assert type(make_strategy(settings_of_plan(plan), LAYOUT)).__name__ == "HeavyBall"


def test_what_only_a_packages_strategy_knows_stands_in_its_own_section(tmp_path: Path, brings: Any):
    brings(mine="collections:OrderedDict")
    text = '[outer]\nstrategy = "heavy_ball"\n[strategy.heavy_ball]\ngrip = 3\n'
    config = loaded(tmp_path, text)
    assert config.strategy == {"heavy_ball": {"grip": 3}}
    assert config_file.from_canonical(config_file.canonical(config)) == config
    with pytest.raises(UserError, match="no setting grip; it takes inner_steps, lr, momentum"):
        strategy_of(config, LAYOUT)
    base = Plan("", "", "", peers=2, steps=8, size="tiny")
    (plan,) = request.plans("heavy_ball:grip=3:firm=true:how=well", base, [0], {})
    assert plan.own == (("firm", True), ("grip", 3), ("how", "well"))
    assert plan.key("v") != request.plans("heavy_ball", base, [0], {})[0].key("v")


def test_a_packages_strategy_that_gathers_is_refused(brings: Any):
    brings(theirs="swarmtrain_optimizers.strategies.noloco:NoLoCo")
    with pytest.raises(UserError, match="exchanges by pair"):
        strategy_of(config_of({"pull": 0.9}, strategy="theirs", momentum=0.5), LAYOUT)


def needs_grip(num_values: int, *, inner_steps: int, grip: float) -> Any:
    raise AssertionError("it was made without")


def test_a_setting_that_nobody_gives_is_asked_for(brings: Any):
    brings(theirs=f"{__name__}:needs_grip")
    with pytest.raises(UserError, match=r"needs a setting grip: .*\[strategy.theirs\]"):
        strategy_of(config_of(strategy="theirs", momentum=0.5), LAYOUT)


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

"""Strategies by name: ours, those of other packages, and what is said of the others."""

from importlib.metadata import EntryPoint, EntryPoints
from inspect import signature

import msgspec
import pytest
import torch

from swarmtrain_optimizers.strategies import registry
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.facts import StrategyFacts
from tests.brought import install

torch.set_num_threads(1)
MINE = StrategyFacts("mine", "swarmtrain_optimizers.strategies.diloco.strategy:DiLoCo", "one")
NOWHERE = StrategyFacts("nowhere", "no_such_package:Nothing", "one")
UNMADE = StrategyFacts("unmade", "swarmtrain_optimizers.strategies.registry:GROUP", "one")


def test_every_strategy_of_ours_is_found_by_its_name() -> None:
    for name, facts in registry.BUILT_IN.items():
        assert (facts.name, registry.facts_named(name)) == (name, facts)
        assert facts.maker.startswith(f"swarmtrain_optimizers.strategies.{name}.strategy:")


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_a_strategys_facts_name_what_its_maker_asks_for(name: str) -> None:
    facts = registry.facts_named(name)
    own = {field.name: field.default for field in msgspec.structs.fields(facts.settings)}
    asked = signature(registry.maker_of(facts)).parameters
    planned_alone = facts.planned - asked.keys()
    own = {key: one for key, one in own.items() if key not in planned_alone}
    assert facts.takes | own.keys() == asked.keys() - {"num_values", "dtype"}
    for key, default in own.items():
        if asked[key].default is not asked[key].empty:
            assert asked[key].default == default


def test_a_maker_makes_a_strategy() -> None:
    maker = registry.maker_of(registry.facts_named("diloco"))
    made: Strategy = maker(8, inner_steps=2, lr=0.7, momentum=0.9, error_feedback=False)
    made.set_initial(torch.ones(8))
    assert made.num_values == 8 and made.exchange(1).num_values == 8


def test_another_package_brings_one_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mine=f"{__name__}:MINE")
    assert registry.maker_of(registry.facts_named("mine")) is DiLoCo
    assert "mine" in registry.known_strategies()


def test_nobody_takes_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, diloco="no_such_package:Nothing")
    assert registry.facts_named("diloco") is registry.BUILT_IN["diloco"]
    assert registry.known_strategies().count("diloco") == 1


def test_what_is_only_named_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, broken="no_such_package:Nothing")
    assert "broken" in registry.known_strategies()
    assert registry.facts_named("diloco").name == "diloco"


@pytest.mark.parametrize(
    ("value", "story"),
    [
        ("no_such_package:Nothing", "no_such_package:Nothing, which does not load"),
        ("swarmtrain_optimizers.strategies.base:Nothing", "does not load"),
        ("swarmtrain_optimizers.strategies.registry:GROUP", "not its StrategyFacts"),
        (f"{__name__}:MINE", "not its StrategyFacts"),
    ],
)
def test_what_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, value: str, story: str
) -> None:
    install(monkeypatch, theirs=value)
    with pytest.raises(ValueError, match=story):
        registry.facts_named("theirs")


@pytest.mark.parametrize(("facts", "story"), [(NOWHERE, "not load"), (UNMADE, "not callable")])
def test_facts_whose_maker_cannot_be_used_are_told(facts: StrategyFacts, story: str) -> None:
    with pytest.raises(ValueError, match=story):
        registry.maker_of(facts)


def test_an_unknown_name_is_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mine=f"{__name__}:MINE")
    with pytest.raises(ValueError, match=r"'dilocco' is not known here; .*diloco, .*mine"):
        registry.facts_named("dilocco")


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        EntryPoint("mine", f"{package}:Mine", registry.GROUP) for package in ("a", "b")
    )
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: points.select(**wanted))
    with pytest.raises(ValueError, match="several packages: a:Mine, b:Mine"):
        registry.facts_named("mine")

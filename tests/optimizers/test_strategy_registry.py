"""Strategies by name: ours, those of other packages, and what is said of the others."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

from swarmtrain_optimizers.strategies import brought, registry
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.diloco import DiLoCo

torch.set_num_threads(1)


def bring(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """As if packages with these entry points were installed."""
    points = EntryPoints(EntryPoint(name, value, brought.GROUP) for name, value in values.items())
    monkeypatch.setattr(brought, "entry_points", lambda **wanted: points.select(**wanted))


def test_every_built_in_strategy_is_found_by_its_name() -> None:
    assert {"ddp", "local", "diloco", "streaming", "delayed"} < set(registry.known_strategies())
    for name, maker in registry.BUILT_IN.items():
        assert registry.strategy_named(name) is maker


def test_a_maker_makes_a_strategy() -> None:
    maker = registry.strategy_named("diloco")
    made: Strategy = maker(8, inner_steps=2, lr=0.7, momentum=0.9, error_feedback=False)
    made.set_initial(torch.ones(8))
    assert made.num_values == 8 and made.exchange(1).num_values == 8


def test_another_package_brings_one_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, mine="swarmtrain_optimizers.strategies.diloco:DiLoCo")
    assert registry.strategy_named("mine") is DiLoCo
    assert "mine" in registry.known_strategies()


def test_nobody_takes_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, diloco="no_such_package:Nothing")
    assert registry.strategy_named("diloco") is DiLoCo
    assert registry.known_strategies().count("diloco") == 1


def test_what_is_only_named_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, broken="no_such_package:Nothing")
    assert "broken" in registry.known_strategies()
    assert registry.strategy_named("diloco") is DiLoCo


@pytest.mark.parametrize(
    ("value", "story"),
    [
        ("no_such_package:Nothing", "no_such_package:Nothing, which does not load"),
        ("swarmtrain_optimizers.strategies.base:Nothing", "does not load"),
        ("swarmtrain_optimizers.strategies.brought:GROUP", "not callable"),
    ],
)
def test_what_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, value: str, story: str
) -> None:
    bring(monkeypatch, theirs=value)
    with pytest.raises(ValueError, match=story):
        registry.strategy_named("theirs")


def test_an_unknown_name_is_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, mine="swarmtrain_optimizers.strategies.diloco:DiLoCo")
    with pytest.raises(ValueError, match=r"'dilocco' is not known here; .*diloco, .*mine, "):
        registry.strategy_named("dilocco")


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        EntryPoint("mine", f"{package}:Mine", brought.GROUP) for package in ("a", "b")
    )
    monkeypatch.setattr(brought, "entry_points", lambda **wanted: points.select(**wanted))
    with pytest.raises(ValueError, match="several packages: a:Mine, b:Mine"):
        registry.strategy_named("mine")

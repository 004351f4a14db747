"""The strategies that there are: swarmtrain's own, and those that installed packages bring.

A package brings one by an entry point in the group ``swarmtrain.strategies`` whose name is the
strategy's and whose value is its `StrategyFacts`, which name what makes it. Nothing of a package is
imported before somebody asks for that name, and then only the facts, without torch; a name that
swarmtrain uses itself cannot be taken. Not here: trust. A package that is installed runs with its
user's rights.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING

from swarmtrain_optimizers.strategies import (
    asynchronous,
    co2,
    ddp,
    decentralized_adam,
    decoupled_momentum,
    delayed,
    delayed_nesterov,
    diloco,
    eager,
    fedavg_m,
    gossip,
    local,
    noloco,
    one_byte,
    scaffold_m,
    sparseloco,
    streaming,
)
from swarmtrain_optimizers.strategies.facts import StrategyFacts

if TYPE_CHECKING:
    from swarmtrain_optimizers.strategies.base import Strategy

GROUP = "swarmtrain.strategies"
"""The group of entry points that is searched."""

_ROOMS = (
    diloco,
    streaming,
    delayed,
    eager,
    co2,
    delayed_nesterov,
    asynchronous,
    fedavg_m,
    scaffold_m,
    ddp,
    decoupled_momentum,
    sparseloco,
    noloco,
    gossip,
    decentralized_adam,
    one_byte,
    local,
)

BUILT_IN: Mapping[str, StrategyFacts] = MappingProxyType(
    {room.FACTS.name: room.FACTS for room in _ROOMS}
)
"""Strategies that this version brings itself, in the order in which people read of them."""


def brought(name: str) -> tuple[EntryPoint, ...]:
    """The entry points of strategies with this name that packages bring; none for one of ours."""
    return () if name in BUILT_IN else tuple(entry_points(group=GROUP, name=name))


def known_strategies() -> tuple[str, ...]:
    """Every name that `facts_named` knows here, ours first; imports nothing."""
    others = {point.name for point in entry_points(group=GROUP)}
    return (*BUILT_IN, *sorted(others - BUILT_IN.keys()))


def facts_named(name: str) -> StrategyFacts:
    """The facts of the strategy with this name.

    Raises:
        ValueError: nobody brings it, two packages do, or what is brought are no such facts.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = brought(name)
    if not found:
        raise ValueError(
            f"strategy {name!r} is not known here; known are {', '.join(known_strategies())}"
        )
    if len(found) > 1:
        packages = ", ".join(sorted(point.value for point in found))
        raise ValueError(f"strategy {name!r} is brought by several packages: {packages}")
    facts = _loaded(name, found[0].value)
    if not isinstance(facts, StrategyFacts) or facts.name != name:
        raise ValueError(
            f"strategy {name!r} is brought by {found[0].value}, which are not its StrategyFacts"
        )
    return facts


def maker_of(facts: StrategyFacts) -> "Callable[..., Strategy]":
    """(num_values, *, settings) -> a fresh strategy, the same on every peer. Imports it, and torch.

    Raises:
        ValueError: it cannot be imported or called.
    """
    maker = _loaded(facts.name, facts.maker)
    if not callable(maker):
        raise ValueError(f"strategy {facts.name!r} is made by {facts.maker}, not callable")
    made: Callable[..., Strategy] = maker
    return made


def _loaded(name: str, place: str) -> object:
    """Return the object at ``module:name``."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a package's own code may raise anything
        raise ValueError(
            f"strategy {name!r} is brought by {place}, which does not load: {error}"
        ) from error

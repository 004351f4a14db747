"""Strategies by name: those that come with swarmtrain, and those that other packages bring.

A package brings one by an entry point in the group ``swarmtrain.strategies`` whose name is the
strategy's and whose value is a class, or a function, that is called with the length of the padded
vector and the strategy's own settings as keywords. Nothing of it is imported before somebody asks
for that name, and it cannot take a name that swarmtrain uses itself. A strategy that is brought can
only exchange means (`OpKind.MEAN`); one that gathers or goes by pairs is refused when it is made,
as the coordinator, which plans the ops and loads no strategy, knows of swarmtrain's own alone what
they exchange. Not here: the settings, which the run file holds, and trust: a package that is
installed runs with its user's rights.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from types import MappingProxyType

from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.brought import brought, brought_names
from swarmtrain_optimizers.strategies.ddp import DDP
from swarmtrain_optimizers.strategies.delayed import Delayed
from swarmtrain_optimizers.strategies.delayed_nesterov import DelayedNesterov
from swarmtrain_optimizers.strategies.diloco import DiLoCo
from swarmtrain_optimizers.strategies.eager import Eager
from swarmtrain_optimizers.strategies.local import Local
from swarmtrain_optimizers.strategies.noloco import NoLoCo
from swarmtrain_optimizers.strategies.sparseloco import SparseLoCo
from swarmtrain_optimizers.strategies.streaming import Streaming

StrategyMaker = Callable[..., Strategy]
"""(num_values, *, settings) -> a fresh strategy, the same on every peer."""

BUILT_IN: Mapping[str, StrategyMaker] = MappingProxyType(
    {
        "ddp": DDP,
        "delayed": Delayed,
        "delayed_nesterov": DelayedNesterov,
        "diloco": DiLoCo,
        "eager": Eager,
        "local": Local,
        "noloco": NoLoCo,
        "sparseloco": SparseLoCo,
        "streaming": Streaming,
    }
)
"""What this version brings itself."""


def known_strategies() -> tuple[str, ...]:
    """Every name that `strategy_named` knows here, in order; imports none of them."""
    return tuple(sorted({*BUILT_IN, *brought_names()}))


def strategy_named(name: str) -> StrategyMaker:
    """What makes strategies of this name.

    Raises:
        ValueError: nobody brings it, two packages do, or what is brought cannot be imported or
            called.
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
    return _loaded(found[0])


def _loaded(point: EntryPoint) -> StrategyMaker:
    """Import what the entry point names."""
    try:
        maker: StrategyMaker = point.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"strategy {point.name!r} is brought by {point.value}, which does not load: {error}"
        ) from error
    if not callable(maker):
        raise ValueError(f"strategy {point.name!r} is brought by {point.value}, not callable")
    return maker

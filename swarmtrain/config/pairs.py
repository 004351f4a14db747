"""What fits together in a run file where ops go by pairs.

Kept out of `config_limits` for its size. Not here: what a pair op is.
"""

import math
from collections.abc import Iterator

from swarmtrain.config.defaults import PAIR
from swarmtrain.config.settings import RunConfig

PAIRED = frozenset({"noloco"})
"""Strategies whose ops go by pairs: each peer has a state of its own."""

PULL = "pull"
"""noloco's own setting, gamma: how far the anchors of a pair are drawn together."""

PULL_DEFAULT = 0.7
"""As in the paper's code (arXiv 2506.10911), and as `NoLoCo` has it."""


def pair_problems(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """(key, rest of a sentence that begins with it, reason) for what cannot work with pairs."""
    outer, name = config.outer, config.outer.strategy
    if name not in PAIRED:
        return
    if outer.robust != "none":
        yield (
            "outer.robust",
            f"must be none with outer.strategy {name}, it is {outer.robust}",
            "Of two that differ, either may be the hostile one.",
        )
    if not outer.momentum < outer.lr:
        yield (
            "outer.lr",
            f"must be above outer.momentum ({outer.momentum:g}) with outer.strategy {name}, it is "
            f"{outer.lr:g}",
            "Else the mean over the peers does not converge.",
        )
    yield from _pull_problems(config)
    if config.exchange.min_contributors < PAIR:
        yield (
            "exchange.min_contributors",
            f"must be at least {PAIR} with outer.strategy {name}, it is "
            f"{config.exchange.min_contributors}",
            "A peer alone has nobody to exchange with: its rounds would all be skipped.",
        )


def _pull_problems(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    name, momentum = config.outer.strategy, config.outer.momentum
    pull = config.strategy.get(name, {}).get(PULL, PULL_DEFAULT)
    highest = math.sqrt(2 + momentum * momentum)
    if isinstance(pull, int | float) and not momentum < pull < highest:
        yield (
            f"strategy.{name}.{PULL}",
            f"must be above outer.momentum ({momentum:g}) and below {highest:.4f}, it is {pull:g}",
            "Below that replicas drift apart, above it they swing (arXiv 2506.10911, eq. 74).",
        )

"""NoLoCo: facts."""

import math
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import (
    Misfit,
    Numbers,
    OpKind,
    OwnSettings,
    Rates,
    StrategyFacts,
)


class Settings(OwnSettings, frozen=True):
    """`pull` lies above `outer.momentum` and below the root of 2 + momentum^2, `outer.lr` above the
    momentum."""

    pull: Annotated[
        float, Meta(ge=0.0, le=2.0, description="how far the anchors of a pair are drawn together")
    ] = 0.7
    """gamma, as in the paper's code."""


def _misfits(number: Numbers) -> Iterator[Misfit]:
    lr, momentum, pull = map(number, ("outer.lr", "outer.momentum", "strategy.noloco.pull"))
    if not momentum < lr:
        yield (
            "outer.lr",
            f"must be above outer.momentum ({momentum:g}) with outer.strategy noloco, it is {lr:g}",
            "Else the mean over the peers does not converge.",
        )
    highest = math.sqrt(2 + momentum * momentum)
    if not momentum < pull < highest:
        yield (
            "strategy.noloco.pull",
            f"must be above outer.momentum ({momentum:g}) and below {highest:.4f}, it is {pull:g}",
            "Below that replicas drift apart, above it they swing (arXiv 2506.10911, eq. 74).",
        )


FACTS = StrategyFacts(
    name="noloco",
    maker="swarmtrain_optimizers.strategies.noloco.strategy:NoLoCo",
    about="no mean over all: each round another partner",
    paper="arXiv 2506.10911",
    kind=OpKind.PAIR,
    takes=frozenset({"inner_steps", "lr", "momentum"}),
    settings=Settings,
    # The paper's rates. Values travel as they are, because a codec's loss in an anchor is noise
    # that nothing takes back; and a peer alone has no partner.
    defaults={
        "outer.lr": 0.7,
        "outer.momentum": 0.5,
        "exchange.codec": "none",
        "exchange.min_contributors": 2,
        "exchange.start_peers": 2,
    },
    misfits=_misfits,
    state=("anchor", "momentum"),
    rates=Rates(0.004, 0.9, 0.5),
    swept="480ccc7",
    demo={
        "outer.inner_steps": 20,
        "outer.lr": 0.7,
        "outer.momentum": 0.5,
        "strategy.noloco.pull": 0.7,
    },
)

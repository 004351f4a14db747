"""Delayed Nesterov, for peers of different speed: facts."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import (
    Misfit,
    Numbers,
    OwnSettings,
    Rates,
    StrategyFacts,
)


class Settings(OwnSettings, frozen=True):
    """Own settings: as many `arrivals` as there are groups of peers that end rounds together."""

    arrivals: Annotated[
        int, Meta(ge=1, le=64, description="rounds in which momentum is renewed once")
    ] = 1
    spread: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="share of it in every round, at most 1 / `arrivals`"),
    ] = 0.0


def _misfits(number: Numbers) -> Iterator[Misfit]:
    arrivals, spread = (
        number(f"strategy.delayed_nesterov.{key}") for key in ("arrivals", "spread")
    )
    if spread * arrivals > 1:
        yield (
            "strategy.delayed_nesterov.spread",
            f"must be at most 1 / arrivals ({arrivals:g}), it is {spread:g}",
            "More momentum than there is would be given out.",
        )


FACTS = StrategyFacts(
    name="delayed_nesterov",
    maker="swarmtrain_optimizers.strategies.delayed_nesterov.strategy:DelayedNesterov",
    about="diloco for peers of different speed: a slow one makes fewer inner steps",
    paper="arXiv 2401.09135",
    settings=Settings,
    misfits=_misfits,
    hurries=True,
    state=("anchor", "momentum", "waiting"),
    peak_vectors=6.1,
    rates=Rates(0.004, 0.7, 0.5),
    demo={"outer.inner_steps": 20, "outer.lr": 0.9, "outer.momentum": 0.8},
)

"""Gossip: facts."""

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
    """A peer seeks a partner every `outer.inner_steps`: that is the rate of gossip. `flow` and
    `reach` are A2CiD2's eta and second alpha; on a ring of 8 they would be 0.29 and 0.99, where
    everybody meets everybody acceleration gains nothing."""

    buffer: Annotated[int, Meta(ge=2, le=64, description="ready peers of whom two are drawn")] = 2
    flow: Annotated[
        float,
        Meta(
            ge=0.0,
            le=4.0,
            description="how fast weights and their further copy flow together between two "
            "exchanges; 0: no further copy (AD-PSGD)",
        ),
    ] = 0.0
    reach: Annotated[
        float,
        Meta(ge=0.5, le=4.0, description="how far a pair's difference moves the further copy"),
    ] = 0.5  # fmt: skip


def _misfits(number: Numbers) -> Iterator[Misfit]:
    flow, reach = number("strategy.gossip.flow"), number("strategy.gossip.reach")
    if flow == 0.0 and reach != 0.5:
        yield (
            "strategy.gossip.reach",
            f"must be 0.5 while strategy.gossip.flow is 0, it is {reach:g}",
            "Without a flow nothing of the further copy comes back into the weights.",
        )


FACTS = StrategyFacts(
    name="gossip",
    maker="swarmtrain_optimizers.strategies.gossip.strategy:Gossip",
    about="two that are ready average their weights, whoever else is at work",
    paper="arXiv 1710.06952",
    kind=OpKind.PAIR,
    vectors=1,
    takes=frozenset({"inner_steps"}),
    settings=Settings,
    planned=frozenset({"buffer"}),
    graph="clocks",
    # Weights travel as they are: what a codec loses of them nothing takes back.
    defaults={
        "exchange.codec": "none",
        "exchange.min_contributors": 2,
        "exchange.start_peers": 2,
    },
    misfits=_misfits,
    state=("anchor", "lag"),
    rates=Rates(0.004),
    demo={"outer.inner_steps": 20},
)

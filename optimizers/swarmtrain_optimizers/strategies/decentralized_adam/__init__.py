"""Decentralized Adam: facts."""

from typing import Annotated, Literal

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """`inner.optimizer = "accum_adamw"` is the paper's; an exchange may be at every
    `outer.inner_steps`-th step."""

    graph: Annotated[
        Literal["exponential", "ring"],
        Meta(description="who meets whom: at distances 1, 2, 4 in turn, or both neighbours"),
    ] = "exponential"


FACTS = StrategyFacts(
    name="decentralized_adam",
    maker="swarmtrain_optimizers.strategies.decentralized_adam.strategy:DecentralizedAdam",
    about="at every step two neighbours on a graph average their weights, under the next step",
    paper="arXiv 2410.11998",
    kind=OpKind.PAIR,
    vectors=1,
    takes=frozenset({"inner_steps"}),
    settings=Settings,
    planned=frozenset({"graph"}),
    # Weights travel as they are: what a codec loses of them nothing takes back.
    defaults={
        "outer.inner_steps": 1,
        "exchange.codec": "none",
        "exchange.min_contributors": 2,
        "exchange.start_peers": 2,
    },
    overlaps=True,
    state=("anchor",),
    rates=Rates(0.008),
    demo={"outer.inner_steps": 20},
)

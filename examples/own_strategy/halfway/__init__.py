"""The facts of a strategy that goes by pairs: two peers meet and draw their weights together.

An op that goes by pairs moves two vectors, a difference and an anchor; so there must be two peers,
and a codec that weights themselves may go through.
"""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    share: Annotated[
        float, Meta(gt=0.0, le=0.5, description="how far each goes to the other; 0.5: they meet")
    ] = 0.5


FACTS = StrategyFacts(
    name="halfway",
    maker="halfway.strategy:Halfway",
    about="each round two peers average their weights, and nobody waits for a third",
    paper="Boyd et al. 2006",
    kind=OpKind.PAIR,
    takes=frozenset({"inner_steps"}),
    settings=Settings,
    defaults={
        "exchange.codec": "none",
        "exchange.min_contributors": 2,
        "exchange.start_peers": 2,
    },
    rates=Rates(inner_lr=0.004),
)

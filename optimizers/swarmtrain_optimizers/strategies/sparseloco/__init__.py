"""SparseLoCo: facts."""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """Below 1 what is never sent fades."""

    beta: Annotated[
        float, Meta(ge=0.0, le=1.0, description="share of what was not sent that is sent later")
    ] = 0.95


FACTS = StrategyFacts(
    name="sparseloco",
    maker="swarmtrain_optimizers.strategies.sparseloco.strategy:SparseLoCo",
    about="few values of each difference; the others wait for a later round",
    paper="arXiv 2508.15706",
    kind=OpKind.GATHER,
    takes=frozenset({"inner_steps", "lr"}),
    settings=Settings,
    defaults={
        "outer.lr": 1.0,
        "outer.momentum": 0.0,
        "exchange.codec": "topk",
        "exchange.block": 4096,
    },
    wants={
        "outer.momentum": (0.0, "What error feedback keeps is in its place (arXiv 2508.15706).")
    },
    feeds_back=True,
    state=("anchor",),
    peak_vectors=6.1,
    rates=Rates(0.004, 1.0, 0.0),
    swept="480ccc7",
    demo={
        "outer.inner_steps": 20,
        "outer.lr": 1.0,
        "exchange.codec": "topk-256",
        "exchange.block": 4096,
    },
)

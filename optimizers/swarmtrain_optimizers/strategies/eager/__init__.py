"""Eager updates: facts."""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """A share that was guessed wrong is put right with the next op."""

    first_share: Annotated[
        float,
        Meta(
            ge=0.0, le=1.0, extra={"default": "1 / `exchange.start_peers`"},
            description="own share of the mean, before an op has told it",
        ),
    ] = 0.0  # fmt: skip


FACTS = StrategyFacts(
    name="eager",
    maker="swarmtrain_optimizers.strategies.eager.strategy:Eager",
    about="delayed, with a peer's own part put in at once",
    paper="arXiv 2502.12996",
    settings=Settings,
    defaults={"outer.lr": 1.0, "outer.momentum": 0.0},
    overlaps=True,
    state=("anchor", "momentum"),
    peak_vectors=8.4,
    rates=Rates(0.004, 1.0, 0.0),
    swept="480ccc7",
    demo={"outer.inner_steps": 20, "outer.lr": 0.9, "outer.momentum": 0.8},
)

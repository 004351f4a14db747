"""CO2, full overlap with a penalty on what is stale: facts."""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """The gap is the last outer step's length by that of the mean difference; both are measured in
    every round."""

    penalty: Annotated[
        float,
        Meta(
            ge=0.0, le=100.0,
            description="weight of the staleness gap, which makes a step shorter; 0: none",
        ),
    ] = 1.0  # fmt: skip
    clip: Annotated[
        float, Meta(gt=0.0, le=1e9, description="largest magnitude of a value of the momentum")
    ] = 1.0


FACTS = StrategyFacts(
    name="co2",
    maker="swarmtrain_optimizers.strategies.co2.strategy:CO2",
    about="delayed, with a shorter step the more stale a difference is",
    paper="arXiv 2401.16265",
    settings=Settings,
    # As in the paper's code; the momentum is the heavy ball's.
    defaults={"outer.lr": 1.0, "outer.momentum": 0.5},
    overlaps=True,
    state=("anchor", "momentum"),
    peak_vectors=6.6,
    rates=Rates(0.008, 1.0, 0.5),
    swept="d815a08",
    demo={"outer.inner_steps": 20, "outer.lr": 1.0, "outer.momentum": 0.5},
)

"""DiLoCo with one round's delay: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="delayed",
    maker="swarmtrain_optimizers.strategies.delayed.strategy:Delayed",
    about="diloco, each exchange under the whole next round",
    paper="arXiv 2502.12996",
    # A step made of old differences wants at most half of the rate.
    defaults={"outer.lr": 0.5, "outer.momentum": 0.0},
    overlaps=True,
    state=("anchor", "momentum"),
    peak_vectors=5.6,
    rates=Rates(0.008, 0.5, 0.0),
    swept="480ccc7",
    demo={"outer.inner_steps": 20, "outer.lr": 0.6, "outer.momentum": 0.8},
)

"""DiLoCo: facts."""

from swarmtrain_optimizers.strategies.facts import MEANS_TAKE, Rates, StrategyFacts

FACTS = StrategyFacts(
    name="diloco",
    maker="swarmtrain_optimizers.strategies.diloco.strategy:DiLoCo",
    about="inner steps alone, then an outer step with the mean of all differences",
    paper="arXiv 2311.08105",
    takes=MEANS_TAKE | {"lr_rule"},
    state=("anchor", "momentum"),
    rates=Rates(0.004, 0.7, 0.5),
    swept="480ccc7",
    demo={"outer.inner_steps": 20, "outer.lr": 0.9, "outer.momentum": 0.8},
)

"""The facts of a strategy of one's own. Whoever decides about a run reads them here: no torch."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="heavy_ball",
    maker="heavy_ball.strategy:HeavyBall",
    about="diloco with the heavy ball's momentum instead of Nesterov's",
    takes=frozenset({"inner_steps", "lr", "momentum"}),
    defaults={"outer.lr": 0.7, "outer.momentum": 0.5},
    rates=Rates(inner_lr=0.004, outer_lr=0.7, outer_momentum=0.5),
)

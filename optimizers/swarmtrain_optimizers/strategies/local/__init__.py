"""No exchange at all, the floor of every comparison: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="local",
    maker="swarmtrain_optimizers.strategies.local.strategy:Local",
    about="every peer trains alone",
    kind=None,
    takes=frozenset({"inner_steps"}),
    state=("anchor",),
    rates=Rates(0.004, 1.0, 0.0),
    compared_in="none",
)

"""Training alone, the floor of every comparison, and one merge at the end if wanted: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="local",
    maker="swarmtrain_optimizers.strategies.local.strategy:alone",
    about="every peer trains alone, until a last merge",
    paper="single global merging, ICLR 2026",
    kind=None,
    takes=frozenset({"inner_steps", "last_merge"}),
    # A mean of weights that nothing follows wants them whole.
    defaults={"exchange.codec": "none"},
    state=("anchor",),
    rates=Rates(0.004, 1.0, 0.0),
    compared_in="none",
)

"""FedAvg-M, momentum inside inner steps: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="fedavg_m",
    maker="swarmtrain_optimizers.strategies.fedavg_m.strategy:FedAvgM",
    about="every inner step goes on a little as all peers' last round went",
    paper="arXiv 2306.16504",
    takes=frozenset({"inner_steps", "lr", "momentum"}),
    # The mean as it is: momentum is in the inner steps, where diloco's is in the outer one.
    defaults={"outer.lr": 1.0, "outer.momentum": 0.5},
    acts_between=True,
    state=("anchor", "direction"),
    rates=Rates(0.004, 1.0, 0.5),
    demo={"outer.inner_steps": 20, "outer.lr": 1.0, "outer.momentum": 0.5},
)

"""SCAFFOLD-M, control variates and momentum inside inner steps: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="scaffold_m",
    maker="swarmtrain_optimizers.strategies.scaffold_m.strategy:ScaffoldM",
    about="as fedavg_m, and each peer's steps are corrected by how they differ from all peers'",
    paper="arXiv 2306.16504; SCAFFOLD, arXiv 1910.06378",
    takes=frozenset({"inner_steps", "lr", "momentum"}),
    defaults={"outer.lr": 1.0, "outer.momentum": 0.5},
    acts_between=True,
    state=("anchor", "direction"),
    peak_vectors=5.6,
    rates=Rates(0.004, 1.0, 0.5),
    demo={"outer.inner_steps": 20, "outer.lr": 1.0, "outer.momentum": 0.5},
)

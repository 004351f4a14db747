"""Data parallel training, the baseline: facts."""

from swarmtrain_optimizers.strategies.facts import Rates, StrategyFacts

FACTS = StrategyFacts(
    name="ddp",
    maker="swarmtrain_optimizers.strategies.ddp.strategy:DDP",
    about="the mean gradient of every step, then one optimizer step that all make alike",
    paper="AdamW, arXiv 1711.05101",
    takes=frozenset({"optimizer", "schedule", "by_samples"}),
    wants={
        "inner.optimizer": (
            "adamw",
            "Its step is made by all peers alike, in operations that give the same bits.",
        ),
        "model.kind": (
            "byte-transformer",
            "A loop of one's own steps its model itself, and the step of ddp is everybody's.",
        ),
    },
    takes_gradients=True,
    state=("anchor", "first_moment", "second_moment"),
    peak_vectors=9.7,  # state old and new, gradient, mean, weights before and after
    rates=Rates(0.008, 1.0, 0.0),
    swept="480ccc7",
    compared_in="none",
)

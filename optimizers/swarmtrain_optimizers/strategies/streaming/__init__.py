"""Streaming DiLoCo: facts."""

from swarmtrain_optimizers.strategies.facts import MEANS_TAKE, Rates, StrategyFacts

FACTS = StrategyFacts(
    name="streaming",
    maker="swarmtrain_optimizers.strategies.streaming.strategy:Streaming",
    about="diloco, a part of the model in each round, while training goes on",
    paper="arXiv 2501.18512",
    takes=MEANS_TAKE | {"fragments", "delay_steps", "mixing"},
    defaults={
        "outer.fragments": 2,
        "outer.delay_steps": 1,
        "outer.mixing": 0.5,
        "exchange.codec": "e3m0",
        "checkpoint.every_rounds": 20,
        "checkpoint.snapshot_rounds": 8,
    },
    overlaps=True,
    state=("anchor", "momentum"),
    peak_vectors=5.4,
    rates=Rates(0.004, 0.7, 0.9),
    swept="480ccc7",
    demo={
        "outer.fragments": 3,
        "outer.inner_steps": 60,
        "outer.delay_steps": 2,
        "outer.mixing": 0.5,
        "outer.lr": 0.9,
        "outer.momentum": 0.8,
        "exchange.codec": "int8",
    },
)

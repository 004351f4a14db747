"""Forward passes alone, one byte for each: facts."""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """The smaller `epsilon` is the more the rounding of losses counts, the larger it is the more
    their curvature does."""

    epsilon: Annotated[
        float,
        Meta(gt=0.0, le=1.0, description="how far a loss is looked at on both sides of a weight"),
    ] = 1e-3


FACTS = StrategyFacts(
    name="one_byte",
    maker="swarmtrain_optimizers.strategies.one_byte.strategy:OneByte",
    about="fine-tuning by forward passes alone, which tell one byte each; memory of inference",
    paper="SPSA, Spall 1992; MeZO, arXiv 2305.17333; github.com/ezelikman/justonebyte",
    kind=OpKind.GATHER,
    takes=frozenset({"inner_steps", "lr", "schedule", "seed", "block", "num_used"}),
    settings=Settings,
    defaults={
        "inner.lr": 1e-4,
        "outer.lr": 1.0,
        "outer.momentum": 0.0,
        "exchange.block": 32,
    },
    wants={
        "outer.momentum": (0.0, "What is not in the scalars, nobody could make again of them."),
        "inner.optimizer": ("adamw", "No optimizer steps: setting another one changes nothing."),
        "inner.precision": (
            "float32",
            "Two losses that lie as near to each other as these look alike in less.",
        ),
        "inner.schedule": ("steps", "Everybody's step has its rate by the number of the round."),
        "exchange.codec": ("int8", "A scalar is a byte that must come out as it went in."),
        "exchange.e_max": (0, "A scalar is a byte that must come out as it went in."),
    },
    probes=True,
    state=("anchor",),
    rates=Rates(1e-4, 1.0, 0.0),
)

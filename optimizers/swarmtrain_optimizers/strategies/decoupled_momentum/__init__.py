"""Decoupled momentum (DeMo): facts."""

from typing import Annotated

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """A block of `exchange.block` values is a tile: 4096 are 64 x 64."""

    decay: Annotated[
        float, Meta(ge=0.0, le=1.0, description="share of a peer's momentum that it keeps a step")
    ] = 0.999
    overlap: Annotated[
        bool, Meta(description="a step's exchange runs under the next one, which is a step late")
    ] = True


FACTS = StrategyFacts(
    name="decoupled_momentum",
    maker="swarmtrain_optimizers.strategies.decoupled_momentum.strategy:DecoupledMomentum",
    about="at every step the largest waves of each peer's momentum; all step by their sign",
    paper="DeMo, arXiv 2411.19870",
    kind=OpKind.GATHER,
    takes=frozenset({"block", "weight_decay", "schedule", "by_samples"}),
    settings=Settings,
    defaults={"exchange.codec": "topk", "exchange.block": 4096},
    wants={
        "inner.optimizer": ("adamw", "No optimizer steps: the sign of the common momentum does."),
        "model.kind": (
            "byte-transformer",
            "A loop of one's own steps its model itself, and this step is everybody's.",
        ),
    },
    takes_gradients=True,
    overlaps=True,
    feeds_back=True,
    state=("anchor",),
    peak_vectors=9.5,  # as ddp; what its own momentum becomes, and waves of it
    rates=Rates(0.001, 1.0, 0.0),
)

"""Asynchronous local SGD, where nobody waits: facts."""

from typing import Annotated, Literal

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """An op begins with the `buffer`-th peer that is ready; `arrivals` are about the peers of the
    run by `buffer`."""

    buffer: Annotated[
        int, Meta(ge=1, le=64, description="ready peers with which an exchange begins")
    ] = 2
    staleness: Annotated[
        Literal["none", "polynomial", "hinge"],
        Meta(description="rule by which work counts less that began from an older anchor"),
    ] = "polynomial"
    max_stale: Annotated[
        int, Meta(ge=1, le=48, description="exchanges after which such work is given up")
    ] = 16
    arrivals: Annotated[
        int, Meta(ge=1, le=64, description="exchanges in which momentum is renewed once")
    ] = 2


FACTS = StrategyFacts(
    name="asynchronous",
    maker="swarmtrain_optimizers.strategies.asynchronous.strategy:Asynchronous",
    about="nobody waits: an exchange has those who are done, older work counts less",
    paper="arXiv 2401.09135",
    settings=Settings,
    planned=frozenset({"buffer", "max_stale", "staleness"}),
    state=("anchor", "momentum", "waiting"),
    rates=Rates(0.004, 0.7, 0.5),
    demo={"outer.inner_steps": 20, "outer.lr": 0.9, "outer.momentum": 0.8},
)

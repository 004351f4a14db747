"""Asynchronous local SGD, where nobody waits: facts."""

from typing import Annotated, Literal

from msgspec import Meta

from swarmtrain_optimizers.strategies.facts import OwnSettings, Rates, StrategyFacts


class Settings(OwnSettings, frozen=True):
    """An op begins with the `buffer`-th peer that is ready; `arrivals` are about the peers of the
    run by `buffer`. A peer so slow that the fastest would be back before it has made `least_steps`
    comes back with a later exchange of the fastest's (FedCompass, arXiv 2309.14675)."""

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
    least_steps: Annotated[
        int, Meta(ge=1, le=100_000, description="fewest inner steps of a slow peer's round")
    ] = 4
    arrivals: Annotated[
        int, Meta(ge=1, le=64, description="exchanges in which momentum is renewed once")
    ] = 2


FACTS = StrategyFacts(
    name="asynchronous",
    maker="swarmtrain_optimizers.strategies.asynchronous.strategy:Asynchronous",
    about="nobody waits: an exchange has those who are done, older work counts less",
    paper="arXiv 2401.09135",
    hurries=True,
    settings=Settings,
    planned=frozenset({"buffer", "max_stale", "staleness"}),
    state=("anchor", "momentum", "waiting"),
    peak_vectors=6.7,
    rates=Rates(0.004, 0.7, 0.5),
    demo={"outer.inner_steps": 20, "outer.lr": 0.9, "outer.momentum": 0.8},
)

"""The rules of work that may be older (protocol.md, rule 2 and T1), broken one at a time as in
`broken_rules`, in worlds in which nobody waits.

| what is broken | mutant |
|---|---|
| older work weighs as much, for everybody alike | A1 |
| a peer's word on the age of its work is believed, by the coordinator alone or by all | A2, A3 |
| work of any age is taken | A4 |
| a part that an op did not take is given up | A5 |
"""

from contextlib import contextmanager
from dataclasses import replace

from broken_rules import Mutant, replaced

from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.seeds import Training, world_of
from swarmtrain.simulate.world import World
from swarmtrain_optimizers.strategies.asynchronous.strategy import Asynchronous
from swarmtrain_transport.coordinator.ops import planning
from swarmtrain_transport.ledger import plan_rules, sample_weights

PEERS, OPS = 4, 8
BOASTERS = {1: Handicap(boasts=True), 2: Handicap(boasts=True)}


def asynchronous(seed: int) -> World:
    return world_of(seed, PEERS, OPS, training=Training("asynchronous"))


def with_boasters(seed: int) -> World:
    """Two of four peers say that their work began just now, whenever it did."""
    return world_of(
        seed, PEERS, OPS, kinds=("newcomer",), training=Training("asynchronous"),
        handicaps=BOASTERS,
    )  # fmt: skip


def older_work_weighs_as_much():
    return replaced(sample_weights, "aged", lambda _: lambda count, stale, rule: count << 8)


def the_coordinator_believes_an_age():
    return replaced(planning, "least_stale", _nothing_old)


def _nothing_old(least_stale):
    return lambda *of: 0


@contextmanager
def everybody_believes_an_age():
    with the_coordinator_believes_an_age(), replaced(plan_rules, "least_stale", _nothing_old):
        yield


def work_of_any_age_is_taken():
    def make(stale_of):
        def patient(terms, view, peer, one):
            return stale_of(replace(terms, max_stale=48), view, peer, one)

        return patient

    return replaced(planning, "stale_of", make)


def a_part_left_out_is_given_up():
    def make(land):
        def hasty(self, mean, included, *of, **by):
            weights = land(self, mean, included, *of, **by)
            if not any(here for _, _, here in included):
                self._held.zero_()
            return weights

        return hasty

    return replaced(Asynchronous, "land", make)


_REFUSED = (("fault", "work that cannot be"), ("halt", ""), ("L2", ""))

STALE_MUTANTS = {
    "A1": Mutant(
        "older work weighs as much, for everybody alike",
        older_work_weighs_as_much, (("rule 2", "weights"),), world=asynchronous,
    ),
    "A2": Mutant(
        "the coordinator believes a peer's word on the age of its work",
        the_coordinator_believes_an_age, _REFUSED, world=with_boasters,
    ),
    "A3": Mutant(
        "everybody believes a peer's word on the age of its work",
        everybody_believes_an_age, (("rule 2", "results old"),), world=with_boasters,
    ),
    "A4": Mutant(
        "work of any age is taken", work_of_any_age_is_taken, _REFUSED, world=asynchronous,
    ),
    "A5": Mutant(
        "a part that an op did not take is given up",
        a_part_left_out_is_given_up, (("I9", ""),), world=asynchronous,
    ),
}  # fmt: skip

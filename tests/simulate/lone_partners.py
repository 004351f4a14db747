"""The rules of pair ops, broken one at a time as in `broken_rules`."""

import contextlib
import dataclasses
from collections.abc import Iterator

from broken_rules import Mutant, any_case, replaced

from swarmtrain.simulate.seeds import Training, world_of
from swarmtrain.simulate.world import World
from swarmtrain_optimizers.strategies.gossip.strategy import Gossip
from swarmtrain_transport.coordinator.ops import planning, policies
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.peer.catchup import CatchUp
from swarmtrain_transport.peer.progression import Progression


def one_crossing_makes_a_pair_whole():
    def make(is_whole):
        return lambda at, pair: len(policies._lacking(at, pair)) < len(pair)

    return replaced(policies, "_is_whole", make)


def commit_names_all_who_have_published():
    def make(commit_of):
        def generous(at, kept, *behind):
            return commit_of(at, set(at.view.frozen or ()) & at.reports.awaited, *behind)

        return generous

    return replaced(policies, "_commit_of", make)


def every_third_op_is_stepped_alone():
    def make(collect):
        def lone(self, op, *, replayed):
            result = collect(self, op, replayed=replayed)
            return dataclasses.replace(result, slices=()) if result and op % 3 == 0 else result

        return lone

    return replaced(CatchUp, "collect", make)


@contextlib.contextmanager
def who_comes_back_goes_on_from_before_its_exchange() -> Iterator[None]:
    def make(collect):
        def passing(self, op, *, replayed):
            result = collect(self, op, replayed=replayed)
            return dataclasses.replace(result, slices=()) if result and replayed else result

        return passing

    with (
        replaced(CatchUp, "collect", make),
        replaced(Progression, "_may_pass", lambda _: lambda self, op, *, is_member: True),
    ):
        yield


def gossiping(seed: int) -> World:
    return world_of(seed, 4, 8, kind=PAIR, training=Training("gossip"))


def who_has_no_partner_moves_all_the_same():
    def make(skip):
        def drifting(self):
            if self._begun is not None:
                self._anchor.copy_(self._begun[1][:])
            skip(self)

        return drifting

    return replaced(Gossip, "skip", make)


def neighbouring(seed: int) -> World:
    return world_of(seed, 4, 8, kind=PAIR, training=Training("decentralized_adam"))


def the_coordinator_draws_partners_where_a_graph_says_them():
    def make(order_of):
        return lambda *given: order_of(*given[:5])

    return replaced(planning, "order_of", make)


@contextlib.contextmanager
def who_is_in_an_op_is_planned_for_another() -> Iterator[None]:
    with (
        replaced(GroupView, "passed", lambda _: lambda self, peer, op: self.next_op - 1),
        replaced(GroupView, "busy", lambda _: property(lambda self: set())),
    ):
        yield


def a_peer_passes_an_op_that_has_its_part():
    def make(gives_to):
        return lambda self, peer, op: op not in self.commits and gives_to(self, peer, op)

    return replaced(GroupView, "gives_to", make)


PAIR_MUTANTS = {
    "P1": Mutant(
        "COMMIT names a pair of which one half is with its contributor only",
        one_crossing_makes_a_pair_whole, (("I8", "does not hold"),), any_case, kind=PAIR,
    ),
    "P2": Mutant(
        "COMMIT names all who have published",
        commit_names_all_who_have_published, (("I8", "does not hold"), ("raised", "")),
        any_case, kind=PAIR,
    ),
    "P3": Mutant(
        "a peer steps alone though COMMIT names its pair",
        every_third_op_is_stepped_alone, (("I2", "though COMMIT names it"),), any_case, kind=PAIR,
    ),
    "P4": Mutant(
        "a process that was started again goes on from before its exchange",
        who_comes_back_goes_on_from_before_its_exchange, (("I2", "though COMMIT names it"),),
        lambda case: any(fault.returners for fault in case.faults), kind=PAIR,
    ),
    "P5": Mutant(
        "who was in no pair of an op has moved, where nobody steps alone",
        who_has_no_partner_moves_all_the_same, (("I7", "changed"),), world=gossiping,
    ),
    "P6": Mutant(
        "the coordinator draws partners, where PLAN names a graph",
        the_coordinator_draws_partners_where_a_graph_says_them,
        (("fault", "not those that were drawn"),), world=neighbouring,
    ),
    "P7": Mutant(
        "a peer is planned for a second op by clocks",
        who_is_in_an_op_is_planned_for_another,
        (("rule 9", "has not the result"), ("raised", "")), world=gossiping,
    ),
    "P8": Mutant(
        "a peer passes an op by clocks that names it",
        a_peer_passes_an_op_that_has_its_part,
        (("rule 9", "has not the result"), ("L2", "")), world=gossiping,
    ),
}  # fmt: skip

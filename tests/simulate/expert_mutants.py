"""The rules of experts, broken one at a time as in `broken_rules`.

| what is broken | mutant: seed, invariant |
|---|---|
| who trains which | E1: 0, E1; E2: 5, E2 |
"""

import dataclasses

from broken_rules import Mutant, any_case, replaced

from swarmtrain.simulate.seeds import world_of
from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.stages.experts import Experts


def of_experts(seed: int) -> World:
    return world_of(seed, 4, 6, groups=3, are_experts=True)


def a_joiner_gets_the_expert_after_its_own_too():
    def make(choose):
        def greedy(self, peer, hello, *, is_new):
            choice = choose(self, peer, hello, is_new=is_new)
            first = min(choice.span.start, self.num_experts - 2)
            return dataclasses.replace(choice, span=range(first, first + 2))

        return greedy

    return replaced(Experts, "choose", make)


def the_last_peer_of_an_expert_is_sent_to_one_that_has_nobody():
    sent = set()

    def make(stand_in):
        def ruthless(self, done, is_needed, now_s):
            groups = self.view.groups
            empty = [n for n in groups if not groups[n].members and n not in done]
            alone = [n for n in groups if len(groups[n].members) == 1 and n not in done]
            if not (empty and alone) or id(self) in sent:
                return stand_in(self, done, is_needed, now_s)
            sent.add(id(self))  # else the two would change places for ever
            return min(groups[alone[0]].members), empty[0], "nobody trained it"

        return ruthless

    return replaced(Experts, "stand_in", make)


EXPERT_MUTANTS = {
    "E1": Mutant(
        "a joiner trains two experts", a_joiner_gets_the_expert_after_its_own_too,
        (("E1", "is in"), ("raised", "")), any_case, world=of_experts,
    ),
    "E2": Mutant(
        "an expert's last peer is sent to another",
        the_last_peer_of_an_expert_is_sent_to_one_that_has_nobody,
        (("E2", "lost its last peer"),), any_case, world=of_experts,
    ),
}  # fmt: skip

"""The rule of the first state (protocol.md T18), broken one way at a time as in `broken_rules`.

Their worlds have no weather: three peers come beside one that would be enough for the run, and that
gives its state to nobody. In some it is the first to give one.

| what is broken | mutant: seed, invariant |
|---|---|
| nobody is passed over; op 1 does not wait | F1: 2, L2; F2: 2, L2 |
"""

from broken_rules import Mutant, replaced

from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.ops.first_state import FirstState

_END_S = 300.0
"""Long enough for two who give in vain, and short enough that nobody has gone after the end."""


def hoarded(seed: int) -> World:
    world = World(1, rounds=3, seed=seed, handicaps={0: Handicap(hoards=True)})
    world.scene.end_s = _END_S
    for _ in range(3):
        world.scene.clock.at(0.0, world.swarm.add_peer)
    return world


def nobody_is_passed_over():
    return replaced(FirstState, "passes_over", lambda _: lambda self, now_s: None)


def op_1_waits_for_nobody():
    return replaced(FirstState, "holds_back", lambda _: lambda self, now_s: False)


HOARDED_MUTANTS = {
    "F1": Mutant(
        "who gives the first state to nobody is not passed over",
        nobody_is_passed_over, (("L2", "applied ops"),), world=hoarded,
    ),
    "F2": Mutant(
        "op 1 is planned although most lack the first state",
        op_1_waits_for_nobody, (("L2", "applied ops"),), world=hoarded,
    ),
}  # fmt: skip

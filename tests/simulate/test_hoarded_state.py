"""A first giver that serves nobody is passed over, and the run begins with another's state."""

import pytest

from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.world import World
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.wire.records import Attest, Rewind, bodies_of


def world_of(**settings) -> World:
    world = World(4, rounds=3, handicaps={0: Handicap(hoards=True)}, **settings)
    world.start()
    return world


def givers_passed(world: World) -> list[tuple[int, ...]]:
    rewinds = [b for b in bodies_of(world.swarm.coordinator.disk) if isinstance(b, Rewind)]
    numbers = world.swarm.peers
    return [tuple(numbers[peer].number for peer in one.passed_over) for one in rewinds]


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": MEAN},
        {"kind": GATHER, "strategy_name": "sparseloco"},
        {"kind": PAIR},
        {"kind": MEAN, "fragments": 2},
        {"kind": MEAN, "latency_s": 0.1, "sync_s": 0.01, "skew_s": 50.0, "drift": 0.01},
    ],
    ids=["mean", "gather", "pair", "fragments", "slow"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_giver_that_serves_nobody_is_passed_over_and_the_run_begins(settings, seed):
    world = world_of(seed=seed, **settings)
    world.run()
    assert not world.violations, world.violations
    first = [b for b in bodies_of(world.swarm.coordinator.disk) if isinstance(b, Attest)]
    assert givers_passed(world) in ([], [(0,)])
    assert bool(givers_passed(world)) == (len({b.state_root for b in first if b.op == 0}) > 1)
    assert world.invariants.decided.commits == 3


def test_some_of_these_worlds_begin_with_the_state_that_nobody_gets():
    passed = []
    for seed in (1, 2, 3, 4):
        world = world_of(seed=seed)
        world.run(until_s=80.0)
        passed += givers_passed(world)
    assert (0,) in passed


def test_a_coordinator_that_is_restarted_in_the_middle_passes_over_all_the_same():
    for seed in (1, 2, 3, 4):
        world = world_of(seed=seed)
        world.scene.clock.at(30.0, lambda world=world: world.swarm.crash_coordinator(2.0))
        world.scene.clock.at(100.0, lambda world=world: world.swarm.crash_coordinator(2.0))
        world.run()
        assert not world.violations, world.violations
        assert world.invariants.decided.commits == 3


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [MEAN, PAIR])
def test_a_peer_that_nobody_reaches_is_named_and_holds_nothing_alone(seed, kind):
    world = World(4, rounds=30, seed=seed, kind=kind)
    world.start()
    shut = next(peer for peer, one in world.swarm.peers.items() if one.number == 0)
    network, coordinator = world.swarm.network, world.swarm.coordinator
    network.shut[shut] = 0.0
    world.scene.clock.at(1.0, world.swarm.add_peer)  # the run needs four
    seen = {}

    def look():
        told = coordinator.machine.status(coordinator.now_s).peers
        seen.update({bytes.fromhex(one.peer): one.state for one in told})
        seen["plans"] = list(world.invariants.decided.plans.values())
        network.shut.clear()

    world.scene.clock.at(30.0, look)
    world.run()
    assert not world.violations, world.violations
    assert seen[shut] == "unreachable"
    assert seen["plans"], "the others have begun"
    assert all(shut not in {one.peer for one in plan.members} for plan in seen["plans"])
    assert givers_passed(world) in ([], [(0,)])
    plans = world.invariants.decided.plans.values()
    assert any(one.peer == shut for plan in plans for one in plan.members), "it can be reached now"

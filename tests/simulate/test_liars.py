"""A hostile owner signs wrong sums: it is found out, thrown out, and harms nobody's agreement."""

import pytest
from mutants import MUTANTS, hunt_seeds, symptom

from swarmtrain.simulate.faults.troubles import HOSTILE_OWNER
from swarmtrain.simulate.seeds import run_seed
from swarmtrain.simulate.world import World
from swarmtrain_transport.wire.records import Gone, bodies_of

LIAR = 1


def run(num_peers: int, rounds: int, seed: int) -> World:
    """A world in which nothing else goes wrong."""
    world = World(num_peers, rounds=rounds, seed=seed)
    world.start()
    world.scene.clock.after(0.5, lambda: lies_from_now_on(world))
    world.run()
    assert not world.violations, world.violations
    assert len({peer.machine.state_root for peer in world.swarm.survivors}) == 1
    return world


def lies_from_now_on(world: World) -> None:
    (peer,) = [peer for peer in world.swarm.survivors if peer.number == LIAR]
    world.invariants.lies.begin(peer)


def convictions(world: World) -> list[Gone]:
    bodies = bodies_of(world.swarm.coordinator.disk)
    return [body for body in bodies if isinstance(body, Gone) and body.conviction is not None]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_convicted_replaced_and_never_comes_back_and_the_others_agree(seed):
    world = run(4, 16, seed)
    (gone,) = convictions(world)
    assert world.scene.name_of(gone.peer) == f"peer {LIAR}"
    assert LIAR not in {peer.number for peer in world.swarm.survivors}
    assert len(world.swarm.survivors) == 4
    counts = world.invariants.lies.counts
    assert counts["proved"] == counts["convicted"] == 1
    assert counts["told"] >= counts["drawn"] >= 1


def test_of_two_peers_none_convicts_the_other_and_their_bits_are_the_same():
    world = run(2, 12, 0)
    assert not convictions(world)
    counts = world.invariants.lies.counts
    assert counts["proved"] >= 1
    assert counts["told"] >= 11


def test_worlds_with_other_troubles_keep_every_promise_beside_it():
    for seed in range(3):
        result = run_seed(seed, 4, 6, kinds=(HOSTILE_OWNER, "restart", "lost frames", "stop"))
        assert not result.violations
    alone = run_seed(0, 4, 6, kinds=(HOSTILE_OWNER,))
    assert alone.faults == {HOSTILE_OWNER: 1}
    assert not alone.violations


@pytest.mark.parametrize("name", ["A1", "A2", "A3"])
def test_audits_that_do_not_look_or_do_not_count_are_noticed(name):
    assert hunt_seeds(name, range(30)).seed >= 0


def test_a_sum_that_is_wrong_without_a_hostile_owner_is_noticed():
    world = World(3, rounds=2, seed=1)
    world.start()
    world.swarm.peers[next(iter(world.swarm.peers))].arithmetic.sums_wrongly = True
    world.run()
    assert symptom(MUTANTS["M9"], tuple(world.violations)) is not None

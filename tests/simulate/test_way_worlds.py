"""Worlds in which peers are behind routers: ways are found, break, and are found again."""

from collections import Counter
from unittest import mock

import pytest

from swarmtrain.simulate.ground.routers import Routers
from swarmtrain.simulate.seeds import run_seed, run_seeds, world_of
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR

PEERS, OPS = 4, 5


@pytest.mark.parametrize("kind", [MEAN, GATHER, PAIR])
def test_whatever_breaks_a_way_leads_from_everybody_to_everybody_in_the_end(kind: str) -> None:
    for seed in range(4):
        assert not run_seed(seed, PEERS, OPS, kind=kind, routers=True).violations, seed


@pytest.mark.parametrize("seed", [228, 237, 464, 485, 592, 656, 1274, 1354, 7430, 8955])
def test_worlds_behind_routers_that_broke_a_rule_once_break_none(seed: int) -> None:
    (result,) = run_seeds([seed], PEERS, 10, routers=True)
    assert not result.violations


def test_who_was_stopped_looks_anew_before_it_names_whom_it_cannot_reach() -> None:
    """Words of before would take down what was made just then (seed 7004 of seven peers)."""
    world = world_of(0, PEERS, OPS, kinds=("death",), routers=True)
    clock, said = world.scene.clock, []
    world.start()
    peer = world.swarm.survivors[0]
    peer.machine.stats.unreached = (b"of before",)
    peer.stop(0.1)
    peer.hear(lambda: said.append(peer.machine.stats.unreached))
    while clock.step(0.2):
        pass
    assert said == [()]


def test_such_worlds_have_ways_of_all_kinds_and_all_of_their_troubles() -> None:
    ways, faults = Counter[str](), Counter[str]()
    stand = Routers.stand

    def counted(self, token, ends, kind, relay):
        ways[kind.value] += 1
        stand(self, token, ends, kind, relay)

    with mock.patch.object(Routers, "stand", counted):
        for seed in range(6):
            faults.update(run_seed(seed, PEERS, OPS, routers=True).faults)
    assert ways.keys() == {"dialled", "turned", "punched", "relayed"}
    assert {"broken way", "blocked dial", "doubted way", "moved peer", "mapped port"} <= {*faults}


def test_a_relay_that_dies_is_left_and_the_run_goes_on() -> None:
    world = world_of(3, PEERS, OPS, kinds=("death",), routers=True)
    world.start()
    world.run()
    assert not world.violations
    assert world.invariants.decided.commits == OPS

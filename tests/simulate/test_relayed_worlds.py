"""Worlds in which some peers meet by a relay alone, whose line is slow: is it kept out of means?"""

import itertools
import statistics

import pytest

from swarmtrain.simulate.ground.network import Line
from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.members.meetings import Meetings
from swarmtrain_transport.ledger.fold import OpView

PEERS = 4
RATE = 8e5
RELAY_RATE = RATE / 10
ROUNDS = 8
FIRST = 3
"""The rounds before this one wait for the first state."""


def played(monkeypatch, relayed: int, *, is_told: bool = True) -> World:
    """Return a world that has come to its end, in which the last peers meet by one relay.

    Args:
        monkeypatch: tells the coordinator of it.
        relayed: number of these peers.
        is_told: False if it is not told, as before there were ways.
    """
    told: dict = {}
    monkeypatch.setattr(Meetings, "detours", lambda self, now_s: told)
    world = World(
        PEERS, rounds=ROUNDS, seed=5, slice_chunks=4, chunk_values=4096, rates=(RATE, RATE)
    )
    world.start()
    pairs = list(itertools.permutations(list(world.swarm.peers)[PEERS - relayed :], 2))
    world.swarm.network.relays.update(dict.fromkeys(pairs, Line(RELAY_RATE)))
    if is_told:
        told.update(dict.fromkeys(pairs, RELAY_RATE / max(1, len(pairs))))
    world.run()
    assert not world.violations
    return world


def commits(world: World) -> list[OpView]:
    machine = world.swarm.coordinator.machine
    assert machine is not None
    return list(machine.first.view.commits.values())


def round_s(world: World) -> float:
    """Seconds that a round takes."""
    made = [one for one in commits(world) if one.plan.op >= FIRST]
    return statistics.median(one.outcome.took for one in made) / 1000


@pytest.mark.parametrize("relayed", [2, 3])
def test_rounds_are_hardly_slower_where_somebody_is_met_directly_by_all(
    monkeypatch, relayed
) -> None:
    direct_s = round_s(played(monkeypatch, 0))
    world = played(monkeypatch, relayed)
    assert round_s(world) <= 1.15 * direct_s
    met = list(world.swarm.peers)[: PEERS - relayed]
    assert {spec.owner for one in commits(world) for spec in one.plan.slices} == set(met)
    assert round_s(played(monkeypatch, relayed, is_told=False)) > 1.3 * direct_s

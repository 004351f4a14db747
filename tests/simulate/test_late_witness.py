"""A coordinator whose disk is a backup, and a peer that is asked late what it knows: the others are
back before, and what they have reported of the op in progress counts on."""

import contextlib
from unittest import mock

import pytest

from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.wire.messages import History

ROUNDS = 3
LATE_S = 2.0
SECONDS_MOST = LATE_S + 0.5
"""Seconds of an op that goes on as soon as the last witness has spoken; its deadline is ten times
that."""

MOMENTS = [(boundary, lost) for lost in (1, 2) for boundary in (*range(59, 299, 24), 106, 194, 282)]
"""With each of the last three the late one alone has FREEZE."""


def world_of(boundary: int, lost: int, kind: str) -> World | None:
    """At this message the coordinator dies and loses as many records, all of which peers hold; None
    if that is not in the middle of an op. From one peer on it is heard, but not heard of it."""
    world = World(3, rounds=ROUNDS, kind=kind)
    world.start()
    while world.scene.boundary < boundary:
        world.scene.clock.step(1000.0)
    coordinator, invariants = world.swarm.coordinator, world.invariants
    machine = coordinator.machine
    assert machine is not None
    if machine.first.operation is None or not invariants.is_told(len(coordinator.disk) - 1):
        return None
    world.swarm.crash_coordinator(0.3)
    del coordinator.disk[-lost:]
    coordinator.term = coordinator.disk[-1].term
    invariants.restored = True
    late = world.swarm.survivors[1]
    # HELLO passes at once; TELL waits for so long, and HISTORY with it.
    world.swarm.control.stall(late, up=False, seconds=LATE_S)
    return world


def worlds(kind: str) -> list[World]:
    found = [world_of(boundary, lost, kind) for boundary, lost in MOMENTS]
    ended = [world for world in found if world is not None]
    for world in ended:
        world.run()
    return ended


@contextlib.contextmanager
def voided_by_every_history():
    """The rule, broken: whoever tells its history begins the op's reports anew."""
    heard = Rendezvous._on_history

    def forgetful(self, peer, message):
        before = self.first.operation
        actions = heard(self, peer, message)
        if isinstance(message, History) and self.first.operation is before is not None:
            self.first.operations.clear()
            self.first.adopted(self._now_s)
        return actions

    with mock.patch.object(Rendezvous, "_on_history", forgetful):
        yield


@pytest.mark.parametrize("kind", ["mean", "gather"])
def test_what_was_reported_before_the_last_witness_spoke_counts_on(kind):
    ended = worlds(kind)
    assert len(ended) > 6
    for world in ended:
        assert not world.violations
        assert world.invariants.decided.skips == 0 and not world.invariants.excluded
        assert max(world.invariants.decided.op_seconds.values()) < SECONDS_MOST


def test_a_rule_that_voided_it_would_cost_rounds():
    with voided_by_every_history():
        ended = worlds("mean")
    assert sum(world.invariants.decided.skips for world in ended) > len(ended) // 4
    lasted = [took for world in ended for took in world.invariants.decided.op_seconds.values()]
    assert max(lasted) > 3 * SECONDS_MOST

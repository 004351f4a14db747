"""Worlds with a second group, in which some of the peers train too, under the same faults."""

import pytest

from swarmtrain.simulate.seeds import run_seed, world_of
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.wire.records import Commit, Move, bodies_of


@pytest.mark.parametrize("kind", [MEAN, GATHER, PAIR])
def test_worlds_with_two_groups_are_clean(kind: str) -> None:
    for seed in range(6):
        assert not run_seed(seed, 4, 3, kind=kind, groups=2).violations, seed


def test_a_forger_that_is_alone_in_a_group_harms_nobody_else() -> None:
    assert not run_seed(159, 4, 3, groups=2).violations


def test_who_was_moved_to_another_group_need_not_hold_its_partner_s_half() -> None:
    assert not run_seed(494, 4, 3, kind=PAIR, groups=2).violations


def test_a_flipped_state_that_is_attested_as_the_last_one_left_is_the_run_s() -> None:
    assert not run_seed(344, 4, 3, kind=GATHER, groups=2).violations


def test_ops_of_both_groups_are_under_way_at_once_and_both_come_to_their_end() -> None:
    world = world_of(2, 4, 3, groups=2)
    world.start()
    at_once = False
    while world.scene.clock.step(world.scene.end_s) and not world.violations:
        machine = world.swarm.coordinator.machine
        groups: list[GroupCoordinator] = [] if machine is None else list(machine.groups.values())
        at_once = at_once or (len(groups) == 2 and all(group.operations for group in groups))
        if world.invariants.decided.is_over and world.is_finished:
            break
    assert not world.violations and at_once
    bodies = bodies_of(world.swarm.coordinator.disk)
    assert sum(isinstance(body, Commit) and body.group == 1 for body in bodies) >= 3
    assert any(isinstance(body, Move) for body in bodies)


def test_another_state_in_the_second_group_is_found() -> None:
    world = world_of(2, 4, 3, groups=2)
    world.start()
    while not any(stage for peer in world.swarm.survivors for stage in peer.stages.values()):
        world.scene.clock.step(world.scene.end_s)
    one = next(peer for peer in world.swarm.survivors if peer.stages)
    world.invariants.staged(one, 1, 1, b"a" * 32)
    world.invariants.staged(one, 1, 1, b"b" * 32)
    assert [found.invariant for found in world.violations] == ["I2"]

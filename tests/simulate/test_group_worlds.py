"""Worlds with a second group, in which some of the peers train too, under the same faults."""

import pytest

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.rules import Rules
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.stage import Stage
from swarmtrain.simulate.seeds import run_seed, run_seeds, world_of
from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.wire.records import Commit, Gone, Join, Move, bodies_of


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


def test_a_run_that_went_back_to_its_beginning_goes_on_with_those_who_are_left() -> None:
    result = run_seed(1001504, 4, 3, groups=2)
    assert not result.violations and result.commits == 3


@pytest.mark.parametrize("seed", [1000631, 1001151, 1001314, 1002205])
def test_who_joins_again_is_in_the_groups_it_was_moved_to(seed: int) -> None:
    # As the command runs them: how their peers train is drawn too.
    assert not next(run_seeds([seed], 4, 3, groups=2, is_kept=False, beside=())).violations


@pytest.mark.parametrize("groups", [(0,), (1,), (0, 1)])
def test_checks_know_the_groups_of_who_joins_again(groups: tuple[int, ...]) -> None:
    world = World(1, rounds=1, seed=0, groups=2)
    peer = b"p" * 32
    join = Join(peer, b"b" * 16, "peer", b"c" * 32)
    gone = Gone(peer, False, "silent")
    for group in (0, 1):
        decided = Decided(world.swarm, group)
        for body in (join, Move(peer, groups), gone, join):
            decided.peopled(body)
        is_in = group in groups
        assert (peer in decided.roster, peer in decided.elsewhere) == (is_in, not is_in)


def test_who_cannot_make_a_flipped_state_that_is_the_run_s_waits_and_does_not_spin() -> None:
    (result,) = run_seeds([3001517], peers=4, ops=3, groups=2, is_kept=False, beside=())
    assert not result.violations


def test_a_flipped_state_that_comes_from_its_peer_s_own_disk_is_not_healed_yet() -> None:
    assert not run_seed(98, 4, 6, groups=2).violations


def test_a_run_does_not_go_back_behind_a_state_on_the_disk_of_who_comes_back() -> None:
    (result,) = run_seeds([1004656], peers=4, ops=3, groups=2, is_kept=False, beside=())
    assert not result.violations


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


def in_second_group(world: World) -> SimPeer:
    """Go on until a peer is in the second group."""
    while not any(peer.stages for peer in world.swarm.survivors):
        world.scene.clock.step(world.scene.end_s)
    return next(peer for peer in world.swarm.survivors if peer.stages)


def test_another_state_in_the_second_group_is_found() -> None:
    world = world_of(2, 4, 3, groups=2)
    world.start()
    one = in_second_group(world)
    world.invariants.staged(one, 1, 1, b"a" * 32)
    world.invariants.staged(one, 1, 1, b"b" * 32)
    assert [found.invariant for found in world.violations] == ["I2"]


def test_a_skip_that_changes_the_state_of_the_second_group_is_found() -> None:
    world = world_of(2, 4, 3, groups=2)
    world.start()
    stage, checks = in_second_group(world).stages[1], world.invariants.training(1)
    before = checks.state_of(stage)
    stage.trainer.write_weights(stage.trainer.read_weights() + 1)
    checks.skipped(stage, 1, before)
    assert [found.invariant for found in world.violations] == ["I1", "I7"]
    assert all(found.story.startswith("group 1: peer ") for found in world.violations)


def test_work_that_is_lost_in_the_second_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Stage._step

    def loses(self: Stage) -> None:
        self.trainer.moved[0] += 1
        step(self)

    monkeypatch.setattr(Stage, "_step", loses)
    first = run_seed(2, 4, 3, groups=2).violations[0]
    assert first.invariant == "I9" and first.story.startswith("group 1: peer ")


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_group_whose_states_are_at_odds_excuses_no_other(
    monkeypatch: pytest.MonkeyPatch, stuck: int
) -> None:
    world = world_of(2, 4, 3, groups=2)
    world.start()
    in_second_group(world)
    monkeypatch.setattr(Rules, "is_undecided", property(lambda self: self._group == stuck))
    world.invariants.at_end()
    (found,) = world.violations
    assert found.invariant == "L2" and found.story.startswith("group 1: ") == (stuck == 0)


def with_liar() -> World:
    """A world in which a peer of both groups signs wrong sums, and nothing else goes wrong."""
    world = World(4, rounds=16, seed=0, groups=2)
    world.start()
    world.invariants.lies.begin(in_second_group(world))
    return world


def test_wrong_sums_in_the_second_group_are_audited() -> None:
    world = with_liar()
    world.run()
    assert not world.violations
    first, second = world.invariants.lies.counts, world.invariants.later[1].lies.counts
    assert second["told"] >= 1
    assert first["convicted"] + second["convicted"] == 1


def test_wrong_sums_in_the_second_group_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_liar()
    lies = world.invariants.later[1].lies
    monkeypatch.setattr(lies, "unexplained", lambda op, wrong: wrong)
    world.run()
    assert [found.invariant for found in world.violations][:1] == ["I3"]

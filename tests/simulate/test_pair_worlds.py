"""Pair ops in drawn worlds: random faults, the enumeration, and a swarm whose power fails."""

from functools import partial
from itertools import islice

import pytest
from enumeration import cases, run_case

from swarmtrain.cli.main import main
from swarmtrain.simulate.faults.troubles import HOSTILE_OWNER
from swarmtrain.simulate.seeds import Training, run_seed, run_seeds, world_of
from swarmtrain.simulate.world import World
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.wire.records import Commit, Plan, Rewind, Skip, bodies_of


def told(results) -> list[str]:
    return [f"{one.seed}: {v.invariant}: {v.story}" for one in results for v in one.violations]


@pytest.mark.parametrize("peers", [2, 3, 4])
def test_worlds_of_pair_ops_are_clean(peers):
    results = list(run_seeds(range(8), peers=peers, ops=5, kind=PAIR))
    assert not told(results)
    assert sum(result.commits for result in results) > 30


@pytest.mark.parametrize("peers", [3, 4, 6])
def test_worlds_in_which_two_that_are_ready_meet_are_clean(peers):
    results = list(run_seeds(range(8), peers=peers, ops=8, kind=PAIR, strategy="gossip"))
    assert not told(results)
    assert sum(result.commits for result in results) > 40


def test_of_those_who_meet_nobody_waits_for_another_pair():
    most, is_early = 0, False
    for seed in range(8):
        world = world_of(seed, 8, 12, kind=PAIR, training=Training("gossip"))
        world.start()
        world.run()
        assert not world.scene.violations
        under_way: list[int] = []
        for body in bodies_of(world.invariants.decided.log):
            if isinstance(body, Plan):
                under_way.append(body.op)
                most = max(most, len(under_way))
            elif isinstance(body, Commit | Skip):
                is_early |= body.op > min(under_way)
                under_way.remove(body.op)
    assert most > 2
    assert is_early  # a younger op has ended first


def test_nobody_sums_so_nobody_is_a_hostile_owner():
    assert world_of(0, 3, 2, kind=PAIR).scene.conditions.codec == "int8"
    results = run_seeds(range(4), peers=3, ops=3, kind=PAIR)
    assert not any(HOSTILE_OWNER in result.faults for result in results)


def test_every_ninth_death_and_trouble_at_a_message_of_an_op_is_harmless_and_short():
    findings = [run_case(case) for case in islice(cases(3, kind=PAIR), 0, None, 9)]
    assert len(findings) > 60
    wrong = [one.case.story() for one in findings if not one.is_clean]
    wrong += [one.case.story() for one in findings if one.commits != one.case.rounds]
    wrong += [one.case.story() for one in findings if one.op_seconds > 25.0]
    assert not wrong


def power_cut(world: World, commits: int, stays: tuple[int, ...] = ()) -> list:
    """Run until so many commits, end all processes but these and start them again."""
    world.start()
    while world.invariants.decided.commits < commits and world.scene.clock.step(world.scene.end_s):
        pass

    def cut() -> None:
        for peer in [peer for peer in world.swarm.survivors if peer.number not in stays]:
            peer.kill()
            world.scene.clock.after(
                1.0 + peer.number, partial(world.swarm.come_back, peer, peer.disk)
            )

    world.scene.clock.after(0.2, cut)
    world.run()
    return bodies_of(world.invariants.decided.log)


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_when_the_power_fails_for_all_the_run_goes_back_to_the_newest_state_on_a_disk(commits):
    world = World(4, rounds=6, min_contributors=2, kind=PAIR)
    log = power_cut(world, commits)
    assert not world.violations
    assert world.is_finished and len(world.swarm.survivors) == 4
    rewinds = [body.op for body in log if isinstance(body, Rewind)]
    assert rewinds in ([], [commits // 2 * 2])
    assert rewinds or commits % 2 == 0


@pytest.mark.parametrize("peers", [2, 3])
def test_one_who_stays_gives_its_state_to_all_who_come_back(peers):
    world = World(peers, rounds=6, min_contributors=2, kind=PAIR)
    log = power_cut(world, 3, stays=(0,))
    assert not world.violations and world.is_finished
    assert not any(isinstance(body, Rewind) for body in log)
    assert sum(isinstance(body, Commit) for body in log) == 6


def test_the_command_runs_worlds_of_pair_ops(capsys):
    arguments = ["simulate", "--seeds", "1", "--peers", "3", "--ops", "2", "--kind"]
    assert main([*arguments, "pair"]) == 0
    assert main([*arguments, "trio"]) == 2
    assert "'mean', 'gather', 'pair'" in capsys.readouterr().err


def test_the_same_seed_is_the_same_world():
    one, other = (run_seed(3, 3, 4, kind=PAIR) for _ in range(2))
    assert (one.virtual_s, one.faults, one.commits) == (
        other.virtual_s,
        other.faults,
        other.commits,
    )

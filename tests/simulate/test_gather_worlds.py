"""Worlds whose ops are gathers: clean, and not because nobody looks."""

from dataclasses import replace
from itertools import islice

import pytest
from enumeration import cases, run_case

from swarmtrain.cli.main import main
from swarmtrain.peer import arithmetic
from swarmtrain.simulate.faults.troubles import HOSTILE_OWNER
from swarmtrain.simulate.seeds import run_seed, run_seeds, world_of
from swarmtrain_transport.coordinator.ops import policies
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.kinds import GATHER


def found(seeds: range) -> set[str]:
    """Invariants that do not hold in some of these worlds."""
    results = [run_seed(seed, 4, 5, kind=GATHER) for seed in seeds]
    return {violation.invariant for result in results for violation in result.violations}


@pytest.mark.timeout(300)
def test_random_worlds_of_gather_ops_keep_every_promise():
    results = list(run_seeds(range(16), peers=4, ops=5, kind=GATHER))
    wrong = [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert not wrong
    assert sum(result.commits for result in results) == 16 * 5
    assert len({kind for result in results for kind in result.faults}) > 10


@pytest.mark.timeout(300)
def test_random_worlds_keep_every_promise_where_each_gather_moves_a_part_of_the_vector():
    results = list(run_seeds(range(6), peers=4, ops=5, fragments=3, kind=GATHER))
    assert not [(r.seed, v.invariant, v.story) for r in results for v in r.violations]


def test_some_worlds_have_int8_and_some_topk_and_none_a_hostile_owner():
    worlds = [world_of(seed, 3, 2, kind=GATHER) for seed in range(8)]
    assert {world.scene.conditions.codec for world in worlds} == {"int8", "topk-16"}
    results = run_seeds(range(8), peers=3, ops=2, kind=GATHER)
    assert not any(HOSTILE_OWNER in result.faults for result in results)


def test_every_seventh_death_and_trouble_at_a_message_of_an_op_is_harmless_and_short():
    every = islice(cases(3), 0, None, 7)
    findings = [run_case(replace(case, kind=GATHER)) for case in every]
    assert len(findings) > 100
    wrong = [one.case.story() for one in findings if not one.is_clean]
    wrong += [one.case.story() for one in findings if one.commits != one.case.rounds]
    wrong += [one.case.story() for one in findings if one.op_seconds > 12.0]  # D_op is 20 s
    assert not wrong


def test_commits_of_what_nobody_holds_are_noticed(monkeypatch):
    monkeypatch.setattr(policies, "_is_spread", lambda at, peer: True)
    monkeypatch.setattr(Reports, "is_held", lambda self, index, among, needed: True)
    assert "I8" in found(range(500, 504))


def test_who_is_left_out_of_commit_without_need_is_noticed(monkeypatch):
    whole, policy = policies._is_spread, policies.POLICIES[GATHER]

    def but_the_first(at, peer):
        return peer != at.view.owners[0] and whole(at, peer)

    def without_it(at):
        return policy.commit(replace(at, live=at.live - {at.view.owners[0]}))

    monkeypatch.setattr(policies, "_is_spread", but_the_first)
    monkeypatch.setitem(policies.POLICIES, GATHER, policy._replace(commit=without_it))
    assert "fair" in found(range(0, 6))


def test_a_mean_of_other_weights_is_noticed(monkeypatch):
    right = arithmetic._gathered

    def wrong(result, weights, zeros):
        return right(result, (1, *weights[1:]), zeros)

    monkeypatch.setattr(arithmetic, "_gathered", wrong)
    assert "I3" in found(range(0, 3))


def test_the_command_runs_worlds_of_gather_ops(capsys):
    arguments = ["simulate", "--seeds", "1", "--peers", "3", "--ops", "2", "--kind"]
    assert main([*arguments, "gather"]) == 0
    assert main([*arguments, "trio"]) == 2
    assert "'mean', 'gather', 'pair'" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [1002771, 1002943])
def test_where_two_are_left_of_whom_one_differs_those_who_came_later_decide(seed: int):
    result = run_seed(seed, peers=4, ops=3, kind=GATHER)
    assert result.commits == 3 and not result.violations

"""Random worlds: clean, the same bits for the same seed, and those that once failed."""

import gc
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.simulate.faults.plan import Strike
from swarmtrain.simulate.faults.troubles import ADDED, FLIP, HOSTILE
from swarmtrain.simulate.ground.conditions import Conditions
from swarmtrain.simulate.seeds import (
    SLICE_VALUES,
    repeat,
    run_seed,
    run_seeds,
    until,
    world_of,
)
from swarmtrain_transport import limits
from swarmtrain_transport.wire import records

ROOT = Path(__file__).resolve().parents[2]

OLDER_KINDS = tuple(set(world_of(0, 2, 1).scene.weather.kinds) - {*HOSTILE, *ADDED})
"""Kinds of trouble that were drawn when they failed."""

ONCE_FAILED = (
    # seed, peers, ops, what happened
    (10, 4, 10, "a peer that was stopped, and held for dead, was counted as a holder of a result"),
    (9, 4, 10, "a restored coordinator attested while a peer was still telling what it had lost"),
    (1068, 4, 10, "a coordinator that was stopped summed a slice without what lay unread"),
    (4, 4, 10, "who had left after the backup was waited for, so that REWIND never came"),
    (12, 4, 10, "a peer that heard nothing, but spoke, was waited for until the op was skipped"),
    (31022, 4, 10, "a restored coordinator that was stopped for a moment left a letter unread"),
    (1028, 4, 10, "COMMIT waited for the HAVE of a peer whose downlink was stalled"),
    (5028, 4, 10, "work that had waited for long was sent in large steps, without error feedback"),
    (5061, 4, 10, "an op waited for a peer whose lag ended only after it had begun"),
    (5169, 4, 10, "a new owner died unnoticed, and the op was skipped instead of finding another"),
    (
        15055,
        4,
        10,
        "an ended life's write was reported to the next one, whose term was the same",
    ),
    (11013, 6, 10, "a restored coordinator that was stopped decided before it had heard anybody"),
    (104583, 4, 3, "a world that nobody can judge was judged by the rest of the same event"),
    (101146, 4, 3, "an op's time began with the coordinator's death, not with its return"),
    (105653, 4, 3, "an op's time began with the coordinator's death, not with its return"),
    (102812, 4, 3, "a part that was lost amid a repair was demanded before it could be sent again"),
    (300031, 4, 3, "a coordinator that died before its first record took its ledger to be lost"),
    (203844, 4, 3, "an owner that lacked one part cost an op that could spare nobody"),
)


FAILED_BESIDE_A_HOSTILE_OWNER = (
    (902052, 4, 3, "the only holder of a record came after the waiting, and was refused"),
    (904602, 4, 3, "the checker forgot that what a lame peer had sent late was still on its way"),
    (800483, 4, 3, "a coordinator was stopped while nothing was due: unread was silent"),
    (701102, 4, 3, "an owner's invitation overtook the REASSIGN that it followed, and was dropped"),
    (701993, 4, 3, "an auditor was blamed that had asked a contributor who was dead"),
    (607330, 4, 3, "the last op's ATTEST came after its COMMIT, and a joiner did not look again"),
    (301207, 4, 3, "who was out in what a backup lacked stayed connected and in nobody's roster"),
)


@pytest.mark.timeout(300)
def test_worlds_within_a_budget_of_time_say_from_where_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter([0.0, 4.0, 8.0, 12.0, 16.0])
    assert list(until(range(9), 10.0, lambda: next(times))) == [0, 1, 2]
    words = ["simulate", "--pipelines", "--first-seed", "5", "--seeds", "3", "--budget", "0.001"]
    assert main(words) == 0
    assert "2 worlds left: go on with --first-seed 6 --seeds 2." in capsys.readouterr().err


def test_random_worlds_keep_every_promise():
    results = list(run_seeds(range(24), peers=4, ops=6))
    wrong = [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert not wrong
    assert sum(result.commits for result in results) == 24 * 6
    kinds = {kind for result in results for kind in result.faults}
    assert len(kinds) > 10


@pytest.mark.timeout(300)
def test_random_worlds_keep_every_promise_where_each_op_moves_a_part_of_the_vector():
    results = list(run_seeds(range(10), peers=4, ops=5, fragments=3))
    wrong = [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert not wrong


def test_random_worlds_keep_every_promise_where_records_come_few_at_a_time(monkeypatch):
    monkeypatch.setattr(limits, "RECORDS_WINDOW_BYTES", 1500)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 500)
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 1000)
    results = list(run_seeds(range(24), peers=4, ops=3))
    wrong = [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert not wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mean", "pair"])
def test_random_worlds_keep_every_promise_where_newcomers_begin_with_a_snapshot(monkeypatch, kind):
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 2500)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1000)
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 1000)
    results = list(run_seeds(range(16), peers=4, ops=4, kind=kind))
    wrong = [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert not wrong


@pytest.mark.parametrize(("seed", "peers", "ops", "story"), ONCE_FAILED)
def test_a_world_that_once_failed_is_clean(seed, peers, ops, story):
    assert run_seed(seed, peers, ops, kinds=OLDER_KINDS).violations == (), story


@pytest.mark.parametrize(("seed", "peers", "ops", "story"), FAILED_BESIDE_A_HOSTILE_OWNER)
def test_a_world_with_a_hostile_owner_that_once_failed_is_clean(seed, peers, ops, story):
    assert run_seed(seed, peers, ops).violations == (), story


def test_who_gives_its_state_to_many_over_a_thin_line_is_in_the_op_that_begins_meanwhile() -> None:
    (result,) = run_seeds([7002], peers=12, ops=1)
    assert not result.violations and result.commits == 1


def test_a_peer_whose_state_differs_is_healed_also_where_the_run_waits_for_it():
    # Everybody is needed here, so no newer state comes: an older one must do.
    for seed in (5, 12, 15):
        result = run_seed(seed, 4, 6, kinds=(FLIP,))
        assert result.faults[FLIP] >= 1 and result.violations == ()


STOPPED_WHILE_IT_ASKED = (
    (339, "newcomer", 4029440487), (347, "coordinator stop", 1652391381),
    (386, "goodbye", 2345385198), (418, "one-way cut", 898590569),
    (893, "stalled control", 906532493), (900, "newcomer", 147698216),
    (948, "double death", 1095754297), (1003, "restart", 3927633328),
    (1231, "double death", 1341057763), (1335, "restored backup", 3763955584),
    (1342, "coordinator stop", 3643600592),
)  # fmt: skip
"""A restored coordinator that was stopped took whoever knew more than its disk for a fork."""


def test_strikes_that_once_made_a_world_fail_are_harmless():
    conditions = Conditions(
        4, 10, 5412125386734812701, 3, chunk_values=256, block=64, latency_s=0.0005,
        rates=(2e4, 2e5), skew_s=1e6, drift=1e-4,
    )  # fmt: skip
    strikes = [Strike(*strike) for strike in STOPPED_WHILE_IT_ASKED]
    assert repeat(conditions, strikes, reckless=False).violations == ()


def test_a_list_of_strikes_repeats_a_world_without_drawing_it():
    for seed in range(3, 6):
        drawn = run_seed(seed, 4, 4)
        world = world_of(seed, 4, 4)
        again = repeat(
            world.scene.conditions, drawn.strikes, reckless=world.scene.weather.is_reckless
        )
        assert drawn.strikes
        assert replace(again, seed=seed) == drawn


def test_several_processes_find_what_one_finds_in_the_same_order():
    assert list(run_seeds(range(5), 3, 2, processes=2)) == list(run_seeds(range(5), 3, 2))


def trace_hash(seed: int) -> str:
    """Hash of all lines of a world, and of the ledger that it ends with."""
    digest = hashlib.sha256()
    world = world_of(seed, 4, 4, lambda *line: digest.update(repr(line).encode()))
    world.start()
    world.run()
    assert not world.violations
    for record in world.swarm.coordinator.disk:
        digest.update(record.to_bytes())
    return digest.hexdigest()


def test_a_seed_gives_the_same_trace_and_ledger_again_in_any_process():
    here = trace_hash(3)
    assert here == trace_hash(3)
    assert here != trace_hash(4)
    assert told_by_another("import test_seeds; print(test_seeds.trace_hash(3))", "7") == here


def told_by_another(code: str, order: str) -> str:
    """Return what a process prints in which sets have another order."""
    folders = [ROOT, ROOT / "transport", ROOT / "optimizers", Path(__file__).parent]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONHASHSEED": order,
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def crowd_hash(seed: int) -> str:
    """The same of a world that is a crowd: what concerns an op's members goes to these first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CROWD_PEERS", 3)
        return trace_hash(seed)


@pytest.mark.parametrize("order", ["1", "2"])
def test_a_crowd_is_told_in_an_order_that_is_the_same_in_any_process(order):
    code = "import test_seeds; print(test_seeds.crowd_hash(3))"
    assert told_by_another(code, order) == crowd_hash(3)


@pytest.mark.parametrize("peers", [4, 12, 24])
def test_few_peers_have_slices_of_some_chunks(peers):
    for seed in range(20):
        conditions = world_of(seed, peers, 2).scene.conditions
        values = conditions.slice_chunks * conditions.chunk_values
        assert (conditions.slices, values) == (0, SLICE_VALUES)


@pytest.mark.parametrize("peers", [40, 100])
def test_of_many_peers_most_give_few_chunks_and_some_more(peers):
    drawn = [world_of(seed, peers, 2, cells=4).scene.conditions for seed in range(40)]
    chunks = [one.slice_chunks * (one.slices or peers) for one in drawn]
    assert sum(count < peers for count in chunks) > len(chunks) / 3
    assert any(count >= peers for count in chunks)
    assert peers > limits.CELL_PEERS_MAX or any(count > peers for count in chunks)


def test_what_a_world_saves_by_thrift_is_as_before_when_it_ends():
    before = gc.get_threshold(), records.record_from_bytes
    world = world_of(3, 4, 2)
    world.start()
    world.run()
    assert (gc.get_threshold(), records.record_from_bytes) == before


def test_a_trace_has_no_part_in_what_happens():
    assert run_seed(5, 3, 4) == run_seed(5, 3, 4, lambda *line: None)


def test_the_command_ends_with_one_object(capsys):
    assert main(["simulate", "--seeds", "2", "--peers", "3", "--ops", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told) == {"seeds", "ops", "commits", "skips", "faults", "violations", "seconds"}
    assert (told["seeds"], told["commits"], told["violations"]) == (2, 4, [])


def test_one_world_can_be_traced(capsys):
    assert main(["simulate", "--seed", "1", "--peers", "3", "--ops", "2", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("Plan(" in line for line in lines)
    assert any("PART slice" in line for line in lines)


def test_a_trace_of_many_worlds_is_refused(capsys):
    assert main(["simulate", "--seeds", "3", "--trace"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_worlds_of_one_peer_reach_their_end() -> None:
    results = list(run_seeds(range(8), peers=1, ops=3))
    assert [found for one in results for found in one.violations] == []
    assert all(one.commits >= 3 for one in results)


def test_one_peer_is_no_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--kind", "pair", "--peers", "1"]) == 2
    assert "two --peers" in capsys.readouterr().err

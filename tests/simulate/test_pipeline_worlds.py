"""Simulated pipelines: clean, the same for the same seed, and every broken rule is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pipeline_mutants import MUTANTS, hunt

from swarmtrain.cli.main import main
from swarmtrain.simulate.pipelines.conditions import Conditions
from swarmtrain.simulate.pipelines.seeds import run_seed, run_seeds, simulate
from swarmtrain.simulate.pipelines.world import World
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.peer.guardian import Guardian
from swarmtrain_transport.pipeline.wire.route import Span

ROOT = Path(__file__).resolve().parents[2]


def test_worlds_of_all_kinds_are_clean():
    summary = simulate(run_seeds(range(60)), lambda _: None)
    assert not summary.violations
    assert summary.counts["steps"] and summary.counts["deaths"] and summary.counts["partial"]
    assert summary.counts["unsaid"] and summary.counts["late"]
    assert (
        summary.counts["evaluated"] > 0.25 * summary.counts["evaluations"]
    )  # others are overtaken
    assert summary.counts["whole"] > 0.85 * summary.counts["made in faults"]
    beside = summary.counts["made beside a hostile member"]
    assert summary.counts["whole beside a hostile member"] > 0.85 * beside > 0


def test_nobody_answers_the_invitations_of_a_member_that_is_away_for_rounds():
    result = run_seed(20171)
    assert not result.invariant, result.story


def test_nobody_answers_the_invitations_of_a_member_that_was_given_up_and_has_not_heard_of_it():
    assert not run_seed(91305).invariant


def test_a_peer_that_dies_on_its_way_to_another_stage_is_waited_for_until_it_is_gone():
    assert not run_seed(20767).invariant


def test_a_hostile_member_may_spoil_what_it_was_sent_after_an_end_has_the_permission():
    """It sends a copy on, lets an end ask for the permission, and drops the copy."""
    assert not run_seed(51240).invariant


def test_a_hostile_end_may_take_the_answer_to_a_guess_for_that_to_what_it_was_sent():
    assert not run_seed(80640).invariant


def test_a_seed_gives_the_same_routes_in_every_process():
    program = (
        "from swarmtrain.simulate.pipelines.seeds import run_seed\n"
        "print([run_seed(seed).digest.hex() for seed in (3, 8)])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    ).stdout  # fmt: skip
    assert told == f"{[run_seed(seed).digest.hex() for seed in (3, 8)]}\n".encode()


def calm_world(counts: tuple[int, ...], steps: int) -> tuple[World, float]:
    """A world without faults that began with so many peers of one speed on each stage, after some
    rounds; and its micro-batches a second in the last ones."""
    spans = tuple(Span(stage, stage) for stage, count in enumerate(counts) for _ in range(count))
    world = World(2, conditions=Conditions(
        len(counts), spans, slots=6, share=2 if steps else 4, steps=steps,
        pass_s=(2.0,) * len(spans), calm_s=-80.0, loss=0.0, double=0.0, late=0.0, faults=(),
        calm_rounds=14, moves_by_need=True,
    ))  # fmt: skip
    told: list[Books] = []
    booked = world.ledger.booked

    def read(books: Books, *others: object, **more: object) -> None:
        told.append(books)
        booked(books, *others, **more)

    world.ledger.booked = read
    world.run()
    last = told[-4:]
    return world, sum(one.whole for one in last) / sum(one.took_s for one in last)


@pytest.mark.parametrize("steps", [0, 2])
def test_peers_that_began_on_one_stage_spread_until_the_run_is_as_fast_as_it_can_be(steps):
    world, rate = calm_world((5, 1, 1), steps)
    best, best_rate = calm_world((3, 2, 2), steps)
    assert (world.counts["moves"], best.counts["moves"]) == (2, 0)
    assert sorted(world.spans) == sorted(best.spans)
    assert rate >= 0.9 * best_rate


FIRST_FOUND = {
    "two-permissions": 15, "no-sign-of-life": 34, "no-void": 6, "gradient-counted-twice": 19,
    "closed-round-counts": 96, "gradient-of-the-slot-before": 19, "moved-but-in-its-old-group": 5,
    "moved-before-its-part": 5, "two-moves": 69, "order-does-not-wait": 28,
    "next-step-counted-early": 10, "secret-not-asked-for": 48, "name-counts-for-each-slot": 96,
    "receivers-believed": 44, "one-step-too-old": 48, "skip-ends-no-round": 21,
    "drained-without-what-was-dealt": 43,
    "share-of-the-dead-lost": 40, "share-dealt-twice": 40, "begins-without-permission": 20,
}  # fmt: skip
"""Seeds at which a hunt begins that found nothing in the worlds before."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found_in_a_world_that_is_clean_without_it(name):
    # From the first seed on: python tests/simulate/pipeline_mutants.py NAME --seeds 300
    catch = hunt(name, 300, FIRST_FOUND.get(name, 0))
    assert catch.found, f"{name}: {catch.story}"
    assert not MUTANTS[name].run(catch.seed).invariant


def test_the_command_tells_what_does_not_hold(capsys, monkeypatch):
    assert main(["simulate", "--pipelines", "--seeds", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 3 and not told["violations"] and told["counts"]["rounds"]
    assert main(["simulate", "--pipelines", "--seed", "2", "--trace"]) == 0
    assert "coordinator" in capsys.readouterr().out
    monkeypatch.setattr(Guardian, "on_gradient", lambda *_: None)
    assert main(["simulate", "--pipelines", "--seed", "1"]) == 1
    assert "P8" in capsys.readouterr().err

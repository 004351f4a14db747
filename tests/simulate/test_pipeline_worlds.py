"""Simulated pipelines: clean, the same for the same seed, and every broken rule is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pipeline_mutants import MUTANTS, hunt

from swarmtrain.cli.main import main
from swarmtrain.simulate.pipelines.seeds import run_seed, run_seeds, simulate
from swarmtrain_transport.pipeline.guardian import Guardian

ROOT = Path(__file__).resolve().parents[2]


def test_worlds_of_all_kinds_are_clean():
    summary = simulate(run_seeds(range(60)), lambda _: None)
    assert not summary.violations
    assert summary.counts["steps"] and summary.counts["deaths"] and summary.counts["partial"]
    assert summary.counts["unsaid"] and summary.counts["late"]
    assert summary.counts["whole"] > 0.85 * summary.counts["made in faults"]
    beside = summary.counts["made beside a hostile member"]
    assert summary.counts["whole beside a hostile member"] > 0.85 * beside > 0


def test_a_seed_gives_the_same_routes_in_every_process():
    program = (
        "from swarmtrain.simulate.pipelines.seeds import run_seed\n"
        "print([run_seed(seed).digest.hex() for seed in (3, 8)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": chance},
        ).stdout
        for chance in ("1", "2")
    }  # fmt: skip
    assert told == {f"{[run_seed(seed).digest.hex() for seed in (3, 8)]}\n".encode()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found_in_a_world_that_is_clean_without_it(name):
    catch = hunt(name, 300)
    assert catch.found, f"{name}: {catch.story}"
    assert not run_seed(catch.seed).invariant


def test_the_command_tells_what_does_not_hold(capsys, monkeypatch):
    assert main(["simulate", "--pipelines", "--seeds", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 3 and not told["violations"] and told["counts"]["rounds"]
    assert main(["simulate", "--pipelines", "--seed", "2", "--trace"]) == 0
    assert "coordinator" in capsys.readouterr().out
    monkeypatch.setattr(Guardian, "on_gradient", lambda *_: None)
    assert main(["simulate", "--pipelines", "--seeds", "1"]) == 1
    assert "P8" in capsys.readouterr().err

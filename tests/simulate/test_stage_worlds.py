"""Whole runs in stages under a virtual clock: clean, and the same again."""

import json

from swarmtrain.cli.main import main
from swarmtrain.simulate.pipelines.seeds import run_seeds, simulate
from swarmtrain.simulate.stages.world import run_seed


def test_runs_in_stages_keep_every_promise_and_all_that_may_happen_does():
    summary = simulate(run_seeds((5, 8, 12, 17), run=run_seed), lambda _: None)
    assert not summary.violations
    happened = {"kill", "crash", "leave", "released", "stop", "replayed", "Commit"}
    assert happened <= summary.counts.keys()


def test_a_seed_gives_the_same_run_again_and_one_whose_stage_had_too_few_goes_on():
    result = run_seed(21)
    assert result == run_seed(21)
    assert not result.invariant and result.counts["Skip"] and result.counts["released"]


def test_the_command_runs_them(capsys):
    assert main(["simulate", "--stages", "--seed", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 1 and told["counts"]["books"] and not told["violations"]
    assert main(["simulate", "--stages", "--seed", "0"]) == 0
    assert "1 runs in stages" in capsys.readouterr().out

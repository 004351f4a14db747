"""The table of shapes: what is run, kept, run again and estimated."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shapes_modules import PLACE, loaded, result_of

import swarmtrain
from swarmtrain.compare import seats
from swarmtrain.data.corpus import build_corpus
from swarmtrain.page import plots


@pytest.fixture(scope="module")
def load() -> Any:
    with loaded() as importer:
        yield importer


@pytest.fixture(scope="module")
def corpus() -> Any:
    return build_corpus(512, root=Path(swarmtrain.__file__).parent / "data")


def plan_of(load: Any, words: str = "diloco", seed: int = 0) -> Any:
    trials = load("trials")
    trial = trials.Trial(words)
    return trial.plan(trials.QUICK, trials.default_rates(trial.sweep), seed)


# ---- the file


def test_a_line_that_was_cut_off_is_made_again_and_spoils_no_other(load, tmp_path):
    kept = load("kept")
    path = tmp_path / "runs.jsonl"
    plan = plan_of(load)
    first = kept.Results(path)
    first.keep(kept.Kept("one", 1.0, plan, result_of(plan, 1.5)))
    first.keep(kept.Kept("two", 1.0, plan, result_of(plan)))
    text = path.read_text()
    path.write_text(text[:-30])
    second = kept.Results(path)
    assert second.find("two", "x") is None
    assert second.find("one", "x") == replace(result_of(plan, 1.5), strategy="x")
    second.keep(kept.Kept("three", 1.0, plan, result_of(plan, None)))
    third = kept.Results(path)
    assert third.find("three", "y").val_loss is None
    assert third.find("one", plan.label) == result_of(plan, 1.5)
    assert json.loads(path.read_text().splitlines()[0])["plan"]["strategy"] == "diloco"


# ---- what is run


class Story:
    """Makes up runs, and says how long they took."""

    def __init__(self, monkeypatch: Any) -> None:
        self.made: list[Any] = []
        self.losses: dict[tuple[str, int], float] = {}
        monkeypatch.setattr(seats, "run_here", self.run)

    def run(self, plan: Any, corpus: Any) -> Any:
        self.made.append(plan)
        return plan, result_of(plan, self.losses.get((plan.label, plan.seed), 2.0)), 3.0


@pytest.fixture
def story(monkeypatch: Any) -> Story:
    return Story(monkeypatch)


def making(
    load: Any, path: Path, corpus: Any, edition: Any = None, budget_s: float = 1e9, **more: Any
) -> Any:
    return load("making").Making(
        edition or load("trials").FULL, load("kept").Results(path), corpus, versions="v", code="c",
        processes=1, deadline_s=time.monotonic() + budget_s, tell=lambda text: None,
        **more,
    )  # fmt: skip


def shape(load: Any, name: str) -> Any:
    return next(s for s in load("declared").SHAPES if s.name == name)


def test_a_table_goes_on_where_it_was_stopped(load, story, tmp_path, corpus):
    path = tmp_path / "runs.jsonl"
    plans = [plan_of(load, seed=seed) for seed in range(5)]
    late = making(load, path, corpus, budget_s=-1)
    late.make(plans)
    assert story.made == []
    making(load, path, corpus).make(plans[:2])
    making(load, path, corpus).make([*plans, replace(plans[4], label="the same run")])
    assert [plan.seed for plan in story.made] == [0, 1, 2, 3, 4]
    assert late.missing(plans) == plans
    assert making(load, path, corpus).missing(plans) == []


def test_a_shape_is_not_run_before_the_sweep_that_its_rates_come_from(
    load, story, tmp_path, corpus
):
    table = making(load, tmp_path / "runs.jsonl", corpus)
    one = shape(load, "diloco-4-short")
    table.make_shapes([one], {})
    assert story.made == []
    assert table.judged(one, {}).verdict.value == "not run"
    sweeps = load("making").sweeps_of([one])
    assert [sweep.name for sweep in sweeps] == ["diloco", "ddp"]
    table.make_sweeps(sweeps[:1])
    table.make(sweeps[1].plans(table.edition))
    assert list(table.winners(sweeps)) == ["diloco"]
    table.make_sweeps(sweeps)
    winners = table.winners(sweeps)
    table.make_shapes([one], winners)
    assert len(story.made) == 2 * (16 + 3) + 2 * 3
    assert story.made[-1].inner_lr == winners["ddp"].rates.inner_lr
    judged = table.judged(one, winners)
    assert (judged.figure.values, judged.seeds, judged.verdict.value) == ((1.0,) * 3, 3, "holds")


def test_winners_of_an_earlier_table_are_taken_and_their_sweeps_not_made(
    load, story, tmp_path, corpus
):
    sweeps = load("sweeps")
    first = making(load, tmp_path / "first.jsonl", corpus)
    needed = load("making").sweeps_of([shape(load, "diloco-4-short")])
    first.make_sweeps(needed[:1])
    sweeps.write_winners(tmp_path / "winners.json", first.winners(needed))
    given = sweeps.read_winners(tmp_path / "winners.json")
    assert given == first.winners(needed)
    story.made.clear()
    second = making(load, tmp_path / "second.jsonl", corpus, given=given)
    second.make_sweeps(needed)
    assert {plan.label.partition(",")[0] for plan in story.made} == {"ddp"}
    assert list(second.winners(needed)) == ["diloco", "ddp"]


WRONG = (
    '{"diloco": {"rates": {"inner_lr": "x", "outer_lr": 1, "outer_momentum": 0}, '
    '"loss": 1, "runs": 1, "is_at_edge": false}}'
)


@pytest.mark.parametrize("text", ["[]", "{", '{"diloco": {}}', '{"diloco": 3}', WRONG])
def test_a_file_that_holds_no_winners_is_named_in_one_line(load, tmp_path, capsys, text):
    path = tmp_path / "winners.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        load("run").main(["--winners", str(path), "--list"])
    assert ended.value.code == 2
    assert "winners.json" in capsys.readouterr().err.splitlines()[-1]


def test_what_is_not_resolved_gets_more_seeds_until_it_is(load, story, tmp_path, corpus):
    table = making(load, tmp_path / "runs.jsonl", corpus)
    shapes = [shape(load, "diloco-4-short"), shape(load, "drop"), shape(load, "confirm-noloco")]
    for seed, loss in enumerate((2.0, 2.08, 2.0, 2.0, 2.0)):
        story.losses["diloco", seed] = loss
        story.losses["diloco:drop=0.3", seed] = loss
    needed = load("making").sweeps_of(shapes)
    table.make_sweeps(needed)
    winners = table.winners(needed)
    table.make_shapes(shapes, winners)
    verdicts = [table.judged(one, winners).verdict.value for one in shapes]
    assert verdicts == ["not resolved", "holds", "holds"]
    story.made.clear()
    table.make_more_seeds(shapes, winners)
    assert {(plan.label, plan.seed) for plan in story.made} == {("diloco", 3), ("ddp", 3)}
    judged = table.judged(shapes[0], winners)
    assert (judged.seeds, judged.verdict.value) == (4, "holds")
    assert table.judged(shapes[1], winners).seeds == 3


def test_seeds_end_at_eight(load, story, tmp_path, corpus):
    table = making(load, tmp_path / "runs.jsonl", corpus)
    one = shape(load, "diloco-4-short")
    for seed in range(20):
        story.losses["diloco", seed] = 1.8 if seed % 2 else 2.2
    needed = load("making").sweeps_of([one])
    table.make_sweeps(needed)
    winners = table.winners(needed)
    table.make_shapes([one], winners)
    table.make_more_seeds([one], winners)
    judged = table.judged(one, winners)
    assert (judged.seeds, judged.verdict.value) == (8, "not resolved")


# ---- estimates


def test_an_estimate_is_steps_times_peers_and_learns_from_finished_runs(load, tmp_path):
    estimate, kept = load("estimate"), load("kept")
    plan = replace(plan_of(load), size="sweep", steps=1000, peers=4, points=10, windows=256)
    seconds = estimate.seconds_of(plan)
    judging_s = 11 * 256 / 8 * 0.011 / 3
    assert seconds == pytest.approx(estimate.START_S + 44.0 + judging_s)
    assert estimate.seconds_of(replace(plan, strategy="ddp")) > seconds
    assert estimate.total_s([plan] * 4, 2, 1.5) == pytest.approx(3 * seconds)
    assert estimate.factor([]) == estimate.CROWD
    results = kept.Results(tmp_path / "runs.jsonl")
    results.keep(kept.Kept("one", 2 * seconds, plan, result_of(plan)))
    assert estimate.factor(kept.Results(tmp_path / "runs.jsonl").costs) == pytest.approx(2, 1e-3)


def test_the_whole_table_is_made_in_less_than_eight_hours_on_two_cores(load, tmp_path, corpus):
    estimate, sweeps = load("estimate"), load("sweeps")
    table = making(load, tmp_path / "runs.jsonl", corpus)
    plans = [plan for sweep in sweeps.SWEEPS.values() for plan in table.sweep_plans(sweep)]
    for one in load("declared").SHAPES:
        for of_trial in table.plans(one, {}, range(table.base_seeds(one))):
            plans += of_trial
    hours = estimate.total_s(table.missing(plans), 2, estimate.CROWD) / 3600
    assert 1 < hours < 8


# ---- the command


@pytest.fixture
def plotly(monkeypatch: Any) -> None:
    """The script that draws, whether or not it is installed."""
    monkeypatch.setattr(plots, "script", lambda: b"var Plotly = 'the script';")


def test_the_command_makes_a_report_and_finds_its_runs_again(load, plotly, tmp_path, capsys):
    run = load("run")
    words = ["--quick", "--out", str(tmp_path), "--only", "noloco,speeds-time,median"]
    assert run.main([*words, "--budget", "0s"]) == 1
    assert not (tmp_path / "runs.jsonl").exists()
    assert run.main(words) == 0
    out = capsys.readouterr().out
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert "`--only noloco`" in out
    assert "`--only diloco-4`" not in out
    assert run.main(words) == 0
    assert (tmp_path / "runs.jsonl").read_text().splitlines() == lines
    report = (tmp_path / "report.md").read_text()
    assert "`--only diloco-4` |" in report
    assert "not run" in report
    assert "tiny 11 312" in report
    assert "noloco (none)" in (tmp_path / "curves-short.html").read_text()
    assert (tmp_path / "curves-hostile.html").exists()
    assert set(json.loads((tmp_path / "winners.json").read_text())) == {"noloco", "diloco"}


def test_the_list_names_every_shape_with_its_runs_and_the_time(load, tmp_path, capsys):
    assert load("run").main(["--list", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    for one in load("declared").SHAPES:
        assert f"{one.name}: {one.claim}" in out
    assert "runs are left, about" in err


@pytest.mark.parametrize(
    "words", [["--only", "dilocco"], ["--budget", "soon"], ["--processes", "0"]]
)
def test_what_cannot_be_meant_is_refused(load, words, capsys):
    with pytest.raises(SystemExit):
        load("run").main(words)
    assert words[0] in capsys.readouterr().err


def test_budgets_are_read_with_their_unit(load):
    seconds = load("run").seconds
    assert (seconds("90s"), seconds("20m"), seconds("1.5h")) == (90, 1200, 5400)
    assert load("run").arguments([]).budget == math.inf


def test_it_is_a_script(load):
    assert (PLACE / "run.py").read_text().startswith("#!/usr/bin/env python3\n")

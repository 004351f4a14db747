"""`swarmtrain compare`: what it prints, keeps and refuses."""

import json
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from compare_text import TINY, small_corpus

from swarmtrain.cli.main import main
from swarmtrain.compare import html, request, sweep
from swarmtrain.compare.plan import PRESETS, Pace, Plan
from swarmtrain.compare.results import Point, RunResult, Shelf, rows
from swarmtrain.compare.table import human_bytes, text_table
from swarmtrain_optimizers.codecs import CODECS
from swarmtrain_optimizers.robust import RULES
from swarmtrain_optimizers.strategies.registry import BUILT_IN

QUICK = ("--model", "tiny", "--steps", "2", "--peers", "2", "--inner-steps", "1")

RUN = RunResult(
    "diloco", "int8", 0, 2.0, None, 0.0, 0.0, 12288, 64, 2, 0, 0, 1290, 645, 3.5, 0.5, ("ab",),
    (Point(0, 0, 0.0, 5.5, 0.0), Point(64, 1290, 3.5, 2.0, 0.0)),
)  # fmt: skip


@pytest.fixture
def corpus(monkeypatch):
    """The text that the command finds."""
    text = small_corpus()
    monkeypatch.setattr(sweep, "build_corpus", lambda piece_bytes: text)
    return text


def ending(capsys, *words: object) -> tuple[int, str, str]:
    code = main(["compare", *(str(word) for word in words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_is_one_object_with_what_scripts_need(capsys, corpus):
    code, out, _ = ending(capsys, *QUICK, "--strategies", "diloco", "--seeds", "2", "--json")
    assert code == 0
    results = json.loads(out)["results"]
    assert [result["seed"] for result in results] == [0, 1]
    needed = {
        "strategy", "codec", "seed", "val_loss", "tokens", "bytes_up_per_peer",
        "peak_bytes_per_step", "modelled_seconds", "state_roots",
    }  # fmt: skip
    assert needed <= set(results[0])


def test_the_table_has_a_line_per_strategy_and_its_own_settings(capsys, corpus):
    words = "diloco,diloco:codec=none:inner_steps=2"
    code, out, err = ending(capsys, *QUICK, "--strategies", words)
    head, *lines = out.splitlines()
    assert code == 0
    assert head.split()[:5] == ["strategy", "codec", "seeds", "loss", "spread"]
    assert [line.split()[:2] for line in lines] == [
        ["diloco", "int8"],
        ["diloco:codec=none:inner_steps=2", "none"],
    ]
    assert "diloco seed 0: loss" in err


def test_finished_runs_are_kept_and_damaged_ones_made_again(tmp_path, corpus):
    plans = [replace(TINY, steps=2, seed=seed) for seed in (0, 1)]
    heard = []
    shelf = Shelf(tmp_path / "runs")

    def run() -> list[RunResult]:
        heard.clear()
        return sweep.run_all(plans, shelf, 1, lambda result, is_kept: heard.append(is_kept))

    first = run()
    assert heard == [False, False]
    assert run() == first
    assert heard == [True, True]
    sorted((tmp_path / "runs").iterdir())[0].write_text("{")
    assert run() == first
    assert sorted(heard) == [False, True]


def test_a_key_names_every_setting_and_the_versions():
    others = [
        replace(TINY, seed=1),
        replace(TINY, pace=Pace.DYNAMIC),
        replace(TINY, speeds=(1.0, 1.0, 0.5)),
        replace(TINY, outer_lr=0.8),
    ]
    keys = {plan.key("torch 1") for plan in [TINY, *others]} | {TINY.key("torch 2")}
    assert len(keys) == 6
    assert TINY.key("torch 1") == replace(TINY).key("torch 1")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--strategies", "dilocco"], "diloco?"),
        (["--strategies", "diloco,diloco"], "twice"),
        (["--strategies", "diloco:width=3"], "of its own"),
        (["--strategies", "diloco:inner_steps=many"], "many"),
        (["--codec", "int9"], "int9"),
        (["--net", "pigeon"], "pigeon"),
        (["--model", "large"], "large"),
        (["--attack", "words"], "words"),
        (["--speeds", "1,1"], "4 peers"),
        (["--speeds", "1,1,0,nan"], "0 in '1,1,0,nan'"),
        (["--speeds", "1,1,one,1"], "4 peers"),
        (["--dynamic"], "--speeds"),
        (["--hostile", "4"], "hostile"),
        (["--drop", "nan"], "drop"),
        (["--robust", "hope"], "hope"),
        (["--strategies", "noloco:codec=topk"], "anchor"),
        (["--strategies", "noloco:error_feedback=yes"], "no error feedback"),
        (["--strategies", "sparseloco:codec=topk-5000"], "blocks of"),
        (["--strategies", "diloco:codec=int4-99999"], "topk-K"),
        (["--strategies", "noloco:robust=median"], "median"),
        (["--strategies", "eager:pace=apart"], "apart"),
        (["--strategies", "ddp:inner=muon"], "muon"),
        (["--strategies", "noloco:outer_lr=0.4"], "momentum 0.5"),
        (["--strategies", "streaming", "--inner-steps", "5"], "no multiple of 2"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_value(capsys, words, hint):
    code, _, err = ending(capsys, *words)
    assert (code, err.split()[0]) == (2, "SWT-E610")
    assert hint in err


def test_settings_of_one_strategy_win_over_those_of_all_and_these_over_presets():
    words = "diloco,diloco:outer_lr=0.5:pace=dynamic:error_feedback=yes"
    one, other = request.plans(words, TINY, [3], {"outer_lr": 0.7})
    assert (one.outer_lr, one.pace, one.error_feedback) == (0.7, Pace.WAIT, False)
    assert (other.outer_lr, other.pace, other.error_feedback) == (0.5, Pace.DYNAMIC, True)
    assert (one.outer_momentum, one.seed) == (Plan("", "", "").outer_momentum, 3)


def test_every_codec_and_every_strategy_can_be_asked_for_by_name():
    for codec in CODECS:
        assert [plan.codec for plan in request.plans(f"diloco:codec={codec}", TINY, [0], {})]
    assert set(PRESETS) == set(BUILT_IN)
    assert set(request.RULES) == set(RULES)


def test_ddp_waits_though_the_others_do_not():
    plans = request.plans("ddp,diloco", replace(TINY, pace=Pace.DYNAMIC), [0], {})
    assert [plan.pace for plan in plans] == [Pace.WAIT, Pace.DYNAMIC]


def test_a_report_without_plotly_says_how_to_get_it_before_any_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    code, _, err = ending(capsys, "--html", tmp_path / "report.html")
    assert (code, err.split()[0]) == (78, "SWT-E102")
    assert "swarmtrain[report]" in err


def test_a_report_holds_the_script_the_table_and_three_figures(
    capsys, monkeypatch, tmp_path, corpus
):
    offline = ModuleType("plotly.offline")
    offline.get_plotlyjs = lambda: "var Plotly = 'the script';"
    monkeypatch.setitem(sys.modules, "plotly", ModuleType("plotly"))
    monkeypatch.setitem(sys.modules, "plotly.offline", offline)
    path = tmp_path / "report.html"
    assert ending(capsys, *QUICK, "--html", path)[0] == 0
    page = path.read_text()
    assert "var Plotly = 'the script';" in page
    assert page.count("Plotly.newPlot(") == 3
    assert "http" not in page
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_nothing_in_a_report_can_end_its_script():
    page = html.page([replace(RUN, strategy="</script><b>")], "<i>", "")
    assert "</script><b>" not in page
    assert "<i>" not in page


def test_rows_are_means_with_the_spread_over_seeds():
    runs = [RUN, replace(RUN, seed=1, val_loss=3.0), replace(RUN, codec="none", val_loss=None)]
    one, other = rows(runs)
    assert (one.loss, one.seeds, other.loss, other.spread) == (2.5, 2, None, None)
    assert one.spread == pytest.approx(0.5**0.5)
    lines = text_table([one, other]).splitlines()
    assert lines[1].split() == ["diloco", "int8", "2", "2.5000", "0.7071", "1.29", "kB", "645", "B",
                                "3.5"]  # fmt: skip
    assert "diverged" in lines[2]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999 B"), (1290, "1.29 kB"), (4.2e9, "4.2 GB")]
)
def test_bytes_are_told_in_decimal_units(count, text):
    assert human_bytes(count) == text

"""`swarmtrain compare`: what it prints, keeps and refuses."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from compare_text import TINY, small_corpus

from swarmtrain.cli import compare
from swarmtrain.cli.main import main
from swarmtrain.compare import html, request, seats, sweep
from swarmtrain.compare.plan import Pace
from swarmtrain.compare.results import Point, RunResult, Shelf, rows
from swarmtrain.compare.table import text_table
from swarmtrain.foundation.errors import UserError
from swarmtrain.page import plots
from swarmtrain_optimizers.codecs import CODECS
from swarmtrain_optimizers.robust import RULES
from swarmtrain_optimizers.strategies.registry import BUILT_IN

QUICK = (
    "--model", "tiny", "--steps", "2", "--peers", "2", "--inner-steps", "1", "--processes", "1",
)  # fmt: skip

RUN = RunResult(
    "diloco", "int8", 0, 2.0, None, 0.0, 0.0, 12288, 64, 2, 0, 0, 1290, 645, 3.5, 0.5, ("ab",),
    (Point(0, 0, 0.0, 5.5, 0.0), Point(64, 1290, 3.5, 2.0, 0.0)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory) -> Path:
    """The user's cache, so that no test writes into the real one."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return place


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


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--strategies", "dilocco"], "diloco?"),
        (["--strategies", "diloco,diloco"], "twice"),
        (["--strategies", "diloco:width=3"], "of its own"),
        (["--strategies", "diloco:beta=0.5"], "of its own"),
        (["--strategies", "sparseloco:beta=1.5"], "from 0 to 1, it is 1.5"),
        (["--strategies", "delayed_nesterov:arrivals=1.5"], "cannot be the arrivals"),
        (["--strategies", "diloco:inner_steps=many"], "many"),
        (["--codec", "int9"], "int9"),
        (["--net", "pigeon"], "pigeon"),
        (["--model", "large"], "large"),
        (["--speeds", "1,1"], "4 peers"),
        (["--speeds", "1,1,0,nan"], "0 in '1,1,0,nan'"),
        (["--speeds", "1,1,one,1"], "4 peers"),
        (["--dynamic"], "--speeds"),
        (["--dynamic", "--speeds", "2,2,2,2"], "equally fast"),
        (["--hostile", "4"], "hostile"),
        (["--drop", "nan"], "drop"),
        (["--robust", "hope"], "hope"),
        (["--strategies", "noloco:codec=topk"], "anchor"),
        (["--strategies", "noloco:codec=int4"], "anchor"),
        (["--strategies", "diloco,noloco", "--codec", "e3m0"], "int8 or none"),
        (["--strategies", "diloco:inner_steps=9", "--robust", "flag", "--peers", "2"], "2 peers"),
        (["--strategies", "diloco:pace=dynamic"], "equally fast"),
        (["--strategies", "diloco:pace=apart", "--speeds", "1,1,1,1"], "equally fast"),
        (["--strategies", "sparseloco:codec=topk-5000"], "blocks of"),
        (["--strategies", "diloco:codec=int4-99999"], "topk-K"),
        (["--strategies", "noloco:robust=median"], "median"),
        (["--strategies", "eager:pace=apart", "--speeds", "1,1,1,2"], "cannot go apart"),
        (["--strategies", "ddp:inner=muon"], "muon"),
        (["--strategies", "noloco:outer_lr=0.4"], "momentum 0.5"),
        (["--strategies", "streaming", "--inner-steps", "5"], "no multiple of 2"),
        (["--strategies", "sparseloco,ddp", "--outer-momentum", "0.5"], "sparseloco, ddp takes no"),
        (["--strategies", "local", "--codec", "int8"], "--codec changes nothing"),
        (["--strategies", "local", "--drop", "0.3"], "--drop changes nothing"),
        (["--strategies", "diloco", "--attack", "nan"], "without --hostile"),
        (["--strategies", "diloco:codec=int8:codec=none"], "names a setting twice"),
        (["--strategies", "ddp", "--inner-steps", "20"], "--inner-steps changes nothing"),
        (["--strategies", "ddp", "--dynamic", "--speeds", "1,1,1,2"], "--dynamic changes nothing"),
        (["--strategies", "diloco:rounding=up"], "nearest, stochastic"),
        (["--strategies", "sparseloco:rounding=stochastic"], "int8, int4 and e3m0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_value(capsys, words, hint):
    code, _, err = ending(capsys, *words)
    assert (code, err.split()[0]) == (2, "SWT-E610")
    assert hint in err


def test_an_attack_that_there_is_not_is_refused_with_those_that_there_are(capsys):
    assert main(["compare", "--hostile", "1", "--attack", "words"]) == 2
    err = capsys.readouterr().err
    assert "'words'" in err and "'sign-flip', 'noise', 'nan'" in err


def test_settings_of_one_strategy_win_over_those_of_all_and_these_over_presets():
    words = "diloco,diloco:outer_lr=0.5:pace=dynamic:error_feedback=yes"
    base = replace(TINY, speeds=(1.0, 1.0, 0.5))
    one, other = request.plans(words, base, [3], {"outer_lr": 0.7})
    assert (one.outer_lr, one.pace, one.error_feedback) == (0.7, Pace.WAIT, False)
    assert (other.outer_lr, other.pace, other.error_feedback) == (0.5, Pace.DYNAMIC, True)
    assert (one.outer_momentum, one.seed) == (BUILT_IN["diloco"].rates.outer_momentum, 3)


INERT = [
    "diloco:fragments=4", "diloco:mixing=0.5", "diloco:delay_steps=1",
    "sparseloco:error_feedback=yes",
    "sparseloco:outer_momentum=0.5", "noloco:error_feedback=no", "ddp:outer_lr=50",
    "ddp:pace=dynamic", "ddp:inner_steps=5", "local:codec=int8", "local:outer_lr=1",
    "local:drop=0.3", "local:hostile=1", "local:robust=median", "local:inner_steps=3",
    "local:rounding=stochastic",
]  # fmt: skip


@pytest.mark.parametrize("word", INERT)
def test_a_setting_that_would_change_nothing_is_refused_and_those_that_do_are_named(word):
    name, _, setting = word.partition(":")
    base = replace(TINY, speeds=(1.0, 1.0, 0.5))
    with pytest.raises(UserError, match="changes nothing") as caught:
        request.plans(word, base, [0], {})
    assert f"{name} takes no {setting.partition('=')[0]}" in caught.value.what
    assert "inner_lr" in caught.value.remedy


def test_settings_for_all_may_change_nothing_in_some():
    ddp, diloco, local = request.plans("ddp,diloco,local", TINY, [0], {"outer_lr": 0.5})
    assert (ddp.outer_lr, diloco.outer_lr, local.outer_lr) == (1.0, 0.5, 1.0)


def test_a_strategy_takes_what_a_run_file_gives_it_and_its_own():
    streaming, sparseloco = (request.takes(BUILT_IN[name]) for name in ("streaming", "sparseloco"))
    assert {"outer_momentum", "error_feedback", "fragments", "delay_steps", "mixing"} <= {
        *streaming
    }
    assert sparseloco[-1] == "beta" and "outer_momentum" not in sparseloco
    assert set(request.takes(BUILT_IN["local"])) == {
        "inner", "inner_lr", "pace", "last_merge", "budget", "when"
    }  # fmt: skip


def test_every_codec_and_every_strategy_can_be_asked_for_by_name():
    for codec in CODECS:
        assert [plan.codec for plan in request.plans(f"diloco:codec={codec}", TINY, [0], {})]
    for name in BUILT_IN:
        assert request.plans(name, TINY, [0], {})
    assert set(request.RULES) == set(RULES)


def test_ddp_waits_though_the_others_do_not():
    plans = request.plans("ddp,diloco", replace(TINY, pace=Pace.DYNAMIC), [0], {})
    assert [plan.pace for plan in plans] == [Pace.WAIT, Pace.DYNAMIC]


def test_a_report_without_plotly_says_how_to_get_it_before_any_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    plots.script.cache_clear()
    code, _, err = ending(capsys, "--html", tmp_path / "report.html")
    assert (code, err.split()[0]) == (78, "SWT-E102")
    assert "pip install plotly" in err


def test_a_report_holds_the_script_the_table_and_three_figures(capsys, plotly, tmp_path, corpus):
    path = tmp_path / "report.html"
    assert ending(capsys, *QUICK, "--html", path)[0] == 0
    page = path.read_text()
    assert "var Plotly = 'the script';" in page
    assert page.count("Plotly.newPlot(") == 3
    assert "http" not in page
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


@pytest.fixture
def plotly(monkeypatch) -> None:
    """The script that draws, whether or not it is installed."""
    monkeypatch.setattr(plots, "script", lambda: b"var Plotly = 'the script';")


@pytest.mark.parametrize("name", ["missing/report.html", "."])
def test_a_report_that_cannot_be_written_is_refused_before_any_run(
    capsys, monkeypatch, tmp_path, plotly, name
):
    monkeypatch.setattr(sweep, "run_all", lambda *_: pytest.fail("a run was made"))
    code, _, err = ending(capsys, *QUICK, "--html", tmp_path / name)
    assert (code, err.split()[0]) == (2, "SWT-E610")
    assert str(tmp_path / name) in err
    assert list(tmp_path.iterdir()) == []


def test_results_are_printed_though_their_report_can_no_longer_be_written(
    capsys, monkeypatch, tmp_path, plotly, corpus
):
    def fail(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "write", fail)
    code, out, err = ending(capsys, *QUICK, "--html", tmp_path / "report.html", "--json")
    assert (code, err.splitlines()[-2].split()[0]) == (2, "SWT-E610")
    assert json.loads(out)["results"][0]["strategy"] == "diloco"


# ---- where finished runs are kept, and what they take


def test_finished_runs_are_kept_though_no_place_was_named(capsys, cache, corpus):
    assert ", kept" not in ending(capsys, *QUICK)[2]
    assert len(list((cache / "swarmtrain" / "compare").glob("*.json"))) == 1
    assert ", kept" in ending(capsys, *QUICK)[2]
    assert ", kept" in ending(capsys, *QUICK, "--strategies", "diloco:codec=int8")[2]


def test_a_cache_that_cannot_be_made_stops_nothing(capsys, monkeypatch, tmp_path, corpus):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, out, err = ending(capsys, *QUICK)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "Cannot keep finished runs in" in err
    code, _, err = ending(capsys, *QUICK, "--out", tmp_path / "file")
    assert (code, err.split()[0]) == (73, "SWT-E403")
    assert "--out" in err


def test_a_place_where_nothing_can_be_written_is_refused_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="Permission denied"):
        Shelf(tmp_path)


def test_a_cache_that_fails_later_is_told_once_and_a_named_place_stops_the_sweep(tmp_path):
    heard = []
    shelf = Shelf(tmp_path / "cache", heard.append)
    named = Shelf(tmp_path / "named")
    for place in ("cache", "named"):
        (tmp_path / place).rmdir()
    shelf.keep("key", TINY.as_json(), RUN)
    shelf.keep("other", TINY.as_json(), RUN)
    assert [error.code for error in heard] == ["SWT-E403"]
    assert (shelf.directory, shelf.find("key")) == (None, None)
    with pytest.raises(UserError, match="Cannot keep"):
        named.keep("key", TINY.as_json(), RUN)


def test_a_run_is_kept_when_it_ends_and_not_when_those_before_it_do(tmp_path, monkeypatch, corpus):
    slow, quick = (replace(TINY, steps=2, seed=seed) for seed in (0, 1))

    def stopped(plans, processes, may_begin, text):
        yield quick, RUN, 1.0
        raise KeyboardInterrupt

    shelf = Shelf(tmp_path)
    monkeypatch.setattr(sweep, "run_plans", stopped)
    with pytest.raises(KeyboardInterrupt):
        sweep.run_all([slow, quick], shelf, 2, lambda result, is_kept: None)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_someone_who_stops_a_sweep_reads_where_its_finished_runs_are(capsys, cache, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_all", stopped)
    code, _, err = ending(capsys, *QUICK)
    assert code == 130
    assert f"kept in {cache}" in err


def test_there_is_a_process_for_every_core_and_none_too_many(monkeypatch, tmp_path, corpus):
    wanted = []

    def seen(plans, processes, may_begin, text):
        wanted.append(processes)
        return iter([(plan, RUN, 1.0) for plan in plans])

    monkeypatch.setattr(seats, "cores", lambda: 5)
    monkeypatch.setattr(sweep, "run_plans", seen)
    unsaid = QUICK[: QUICK.index("--processes")]
    for count in ("1", "3", "8"):
        main(["compare", *unsaid, "--out", str(tmp_path / count), "--seeds", count])
    assert wanted == [1, 3, 5]


def test_what_is_the_same_run_is_made_once(corpus):
    plans = request.plans("diloco,diloco:codec=int8", replace(TINY, steps=2), [0], {})
    heard = []
    results = sweep.run_all(plans, Shelf(None), 1, lambda result, _: heard.append(result.strategy))
    assert heard == [result.strategy for result in results] == ["diloco", "diloco:codec=int8"]
    assert results[0] == replace(results[1], strategy="diloco")


def test_skipped_ops_are_told(capsys):
    compare._tell(replace(RUN, skipped=3), False)
    compare._tell(RUN, True)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("2 ops, 3 skipped")
    assert second.endswith("2 ops, kept")


def test_nothing_in_a_report_can_end_its_script():
    page = html.page([replace(RUN, strategy="</script><b>")], "<i>", "")
    assert "</script><b>" not in page
    assert "<i>" not in page


def test_bytes_and_time_have_logarithmic_axes_in_a_report():
    found = re.findall(r'"type": "(log|linear)"', html.page([RUN], "", ""))
    assert found == ["linear", "log", "log"]


def test_nothing_that_has_no_logarithm_is_drawn_over_one():
    silent = [replace(point, bytes_up_per_peer=0) for point in RUN.curve]
    page = html.page([replace(RUN, strategy="local", curve=tuple(silent))], "", "")
    drawn = [
        json.loads(found) for found in re.findall(r'newPlot\("\w+", (\[.*?\]), \{"xaxis', page)
    ]
    assert [[trace["x"] for trace in traces] for traces in drawn] == [[[0.0, 64.0]], [], [[3.5]]]


def test_rows_are_means_with_the_spread_over_seeds():
    runs = [RUN, replace(RUN, seed=1, val_loss=3.0), replace(RUN, codec="none", val_loss=None)]
    one, other = rows(runs)
    assert (one.loss, one.seeds, other.loss, other.spread) == (2.5, 2, None, None)
    assert one.spread == pytest.approx(0.5**0.5)
    lines = text_table([one, other]).splitlines()
    assert lines[1].split() == ["diloco", "int8", "2", "2.5000", "0.7071", "2", "1.29", "kB", "645",
                                "B", "1.750", "3.5"]  # fmt: skip
    assert "diverged" in lines[2]


def test_a_row_says_how_many_of_its_rounds_had_a_result():
    runs = [replace(RUN, ops=0, skipped=6), replace(RUN, seed=1, ops=3, skipped=3)]
    untrained, half = text_table(rows(runs[:1])), text_table(rows(runs))
    assert " 0 of 6 " in untrained
    assert " 1.5 of 6 " in half
    assert "<td>0 of 6</td>" in html.page(runs[:1], "", "")


def test_a_round_of_what_never_exchanges_has_no_length(capsys):
    (row,) = rows([replace(RUN, ops=0)])
    (skipping,) = rows([replace(RUN, ops=1, skipped=6)])
    assert (row.round_seconds, skipping.round_seconds) == (None, 0.5)
    assert text_table([row]).splitlines()[1].split()[-2:] == ["-", "3.5"]
    page = html.page([replace(RUN, ops=0), replace(RUN, seed=1)], "", "")
    assert "<th>s/round</th>" in page
    assert "<td>1.750</td>" in page

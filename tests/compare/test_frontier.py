"""The search for who loses least for its bytes and seconds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compare_text import TINY, small_corpus

from swarmtrain.cli import compare
from swarmtrain.cli.main import main
from swarmtrain.compare import frontier, html, request, sweep
from swarmtrain.compare.frontier import BYTES, Found, Search, search
from swarmtrain.compare.plan import NETS, Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.foundation.errors import UserError

QUICK = ("--frontier", "--model", "tiny", "--steps", "4", "--peers", "2", "--processes", "1")


def place(words: str, loss: float | None, num_bytes: float, seconds: float = 1.0) -> Found:
    costs = {BYTES: num_bytes, **dict.fromkeys(NETS, seconds)}
    return Found(words, words.partition(":")[0], {}, loss, costs)


def of(*points: Found) -> Search:
    return Search("tiny", 2, 4, 3, 1, points)


def test_a_frontier_has_whom_nobody_beats_in_both() -> None:
    cheap, dear, beaten, lost = (
        place("a", 3.0, 10), place("b", 2.0, 100), place("c", 2.5, 200), place("d", None, 1),
    )  # fmt: skip
    found = of(beaten, dear, lost, cheap)
    assert found.frontier(BYTES) == (cheap, dear)
    assert found.frontier("dsl") == (dear,)  # equal seconds: the lowest loss


def test_who_is_as_good_as_ddp_is_measured_by_its_best_point() -> None:
    ddp, better = place("ddp:codec=int8", 2.1, 100), place("ddp", 2.0, 400)
    good, bad = place("diloco", 2.039, 4), place("noloco", 2.05, 2)
    found = of(ddp, better, good, bad)
    assert found.baseline == better
    assert found.as_good() == (better, good)
    assert "diloco, 100 x fewer bytes" in frontier.best_in_words(found)[0]
    assert "name ddp" in frontier.best_in_words(of(good))[0]
    assert of(good).as_good() == ()


def ran(plan: Plan, loss: float | None) -> RunResult:
    return RunResult(
        plan.label, plan.codec, plan.seed, loss, None, 0.0, 0.0, 8, 8, 2, 0, 0, 64, 8, 1.0, 0.5,
        ("ab",), (), seconds_by_net=dict.fromkeys(NETS, 1.0),
    )  # fmt: skip


def test_every_point_has_as_many_tries_and_the_best_runs_for_all_seeds() -> None:
    points = [replace(TINY, label=f"diloco:inner_steps={n}", inner_steps=n) for n in (2, 4)]
    asked: list[list[Plan]] = []

    def run(plans: list[Plan]) -> list[RunResult]:
        asked.append(list(plans))
        return [ran(one, abs(one.inner_lr - 0.004) if one.inner_lr > 0.002 else None)
                for one in plans]  # fmt: skip

    found, results = search(points, 3, range(5, 7), run)
    tuned, final = asked
    assert [one.inner_lr for one in tuned] == [0.002, 0.004, 0.001] * 2
    assert {one.seed for one in tuned} == {5}
    assert [(one.inner_lr, one.seed) for one in final] == [(0.004, 5), (0.004, 6)] * 2
    assert len(results) == 4 and (found.tries, found.seeds) == (3, 2)
    assert found.points[0].words == "diloco:inner_steps=2:inner_lr=0.004"
    assert found.points[0].settings["outer.inner_steps"] == 2
    assert found.points[0].costs == {BYTES: 64, **dict.fromkeys(NETS, 1.0)}
    request.plans(found.points[0].words, TINY, [0], {})  # what is printed can be asked for


@pytest.mark.parametrize("words", ["diloco:inner_lr=0.1", "diloco:pipeline=2x3"])
def test_points_that_cannot_be_searched_are_refused_before_any_run(words: str) -> None:
    points = request.plans(words, replace(TINY, size="sweep"), [0], {})
    with pytest.raises(UserError) as caught:
        search(points, 2, range(1), lambda plans: pytest.fail("a run was made"))
    assert caught.value.code == "SWT-E610"


def test_alternatives_are_a_point_each() -> None:
    found = request.plans("ddp,diloco:inner_steps=2/4:codec=int8/e3m0", TINY, [0], {})
    assert [one.label for one in found] == [
        "ddp",
        *(f"diloco:inner_steps={n}:codec={c}" for n in (2, 4) for c in ("int8", "e3m0")),
    ]
    with pytest.raises(UserError, match="twice"):
        request.plans("diloco:inner_steps=2/2", TINY, [0], {})


def test_the_grid_can_be_run_at_the_usual_length() -> None:
    base = Plan("", "", "")
    points = request.plans(frontier.GRID, base, [0], {})
    assert len(points) > 20
    sweep.check(points)


def test_the_command_prints_points_and_commands_and_keeps_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = small_corpus()
    monkeypatch.setattr(sweep, "build_corpus", lambda piece_bytes: corpus)
    words = "ddp,diloco:inner_steps=1/2"
    asked = ["compare", *QUICK, "--strategies", words, "--tries", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(compare.sys, "argv", ["swarmtrain", *asked])
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert err.count("kept") == 3, "the best of each point is there already"
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["strategy", "codec", "rounds"]
    (command,) = [line for line in lines if line.startswith("  2  ")]
    assert "--frontier" not in command and "--tries" not in command
    assert f"--model tiny --steps 4 --peers 2 --processes 1 --out {tmp_path}" in command
    assert sum(line.startswith("Within 2 % of ddp's loss: ") for line in lines) == 1 + len(NETS)
    found = frontier.kept(tmp_path)
    assert found is not None and [one.strategy for one in found.points] == [
        "ddp", "diloco", "diloco",
    ]  # fmt: skip
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["frontiers"][BYTES] == [one.words for one in found.frontier(BYTES)]
    single = command.split()[1:]
    assert main(single[1:]) == 0, "a printed command is one"
    assert "kept" in capsys.readouterr().err


def test_what_was_kept_and_is_torn_is_nothing(tmp_path: Path) -> None:
    assert frontier.kept(tmp_path) is None
    frontier.keep(of(place("ddp", 2.0, 1)), tmp_path)
    assert frontier.kept(tmp_path) == of(place("ddp", 2.0, 1))
    (tmp_path / frontier.FILE).write_text('{"points": [1]}')
    assert frontier.kept(tmp_path) is None


def test_tries_without_a_search_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--tries", "2"]) == 2
    assert "--tries changes nothing without --frontier" in capsys.readouterr().err


def test_a_report_draws_each_cost_over_two_logarithmic_axes() -> None:
    found = of(place("ddp", 2.0, 100), place("diloco", 2.5, 4))
    page = html.page([], "", "", found)
    assert page.count('"type": "log"') == 2 * (1 + len(NETS)) + 2
    assert '"of bytes"' in page and '"of dsl"' in page and '"frontier"' in page

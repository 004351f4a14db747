"""What `plan` offers of what `compare --frontier` has found."""

import json
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.compare import frontier
from swarmtrain.compare.frontier import BYTES, Found, Search
from swarmtrain.compare.plan import NETS
from swarmtrain.config.settings import (
    ExchangeSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.foundation import dirs
from swarmtrain.plan.suggestion import MEASURED, in_words, suggested

RUN = RunConfig(run=RunSection(name="tests"))


def place(strategy: str, loss: float, num_bytes: float, dsl_s: float, lan_s: float) -> Found:
    settings = {
        "outer.strategy": strategy, "outer.inner_steps": 500, "exchange.codec": "two_bit",
        "outer.error_feedback": True,
    }  # fmt: skip
    costs = {BYTES: num_bytes, **dict.fromkeys(NETS, dsl_s), "lan": lan_s}
    return Found(f"{strategy}:inner_steps=500", strategy, settings, loss, costs)


DDP = place("ddp", 2.0, 4000, 100, 12)
FAST = place("fedavg_m", 2.02, 40, 10, 11)
SMALL = place("diloco", 2.03, 1, 10, 12)
WORSE = place("noloco", 2.1, 1, 1, 1)
FOUND = Search("sweep", 4, 2000, 3, 1, (DDP, FAST, SMALL, WORSE))


def test_the_fastest_of_those_as_good_as_ddp_over_the_slowest_link_is_offered() -> None:
    offered = suggested(RUN, ["lan", "dsl"], FOUND)
    assert offered is not None and offered.settings["outer.strategy"] == "diloco"  # fewer bytes
    assert (offered.link, offered.less_time, offered.fewer_bytes) == ("dsl", 10.0, 4000.0)
    over_lan = suggested(RUN, ["lan"], FOUND)
    assert over_lan is not None and over_lan.settings["outer.strategy"] == "fedavg_m"
    first, second = in_words(offered)
    assert 'outer.strategy = "diloco", outer.inner_steps = 500' in first
    assert "outer.error_feedback = true" in first
    assert "1.015 of the loss of ddp" in second and "1/4000 of its bytes" in second


def test_nothing_is_offered_that_the_run_has_or_cannot_have() -> None:
    has = RunConfig(
        run=RunSection(name="tests"), outer=OuterSection("diloco", 500),
        exchange=ExchangeSection(codec="two_bit"),
    )  # fmt: skip
    assert suggested(has, ["dsl"], FOUND) is None
    assert suggested(RUN, ["dsl"], Search("sweep", 4, 2000, 3, 1, (DDP, WORSE))) is None
    assert suggested(RUN, ["dsl"], Search("sweep", 4, 2000, 3, 1, (SMALL,))) is None
    staged = RunConfig(run=RunSection(name="tests"), pipeline=PipelineSection(stages=2))
    found = suggested(staged, ["lan"], Search("sweep", 4, 2000, 3, 1, (DDP, FAST)))
    assert found is None, "stages cannot have it"


def test_plan_offers_what_the_last_search_of_this_machine_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run_file = tmp_path / "run.toml"
    run_file.write_text('[run]\nname = "tests"\n')
    asked = ["plan", str(run_file), "--peers", "4*laptop@dsl"]
    dirs.make_owned(dirs.compared_dir())
    frontier.keep(FOUND, dirs.compared_dir())
    assert main(asked) == 0
    assert "Suggestion" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["suggestion"]
    assert told["settings"]["outer.strategy"] == "diloco" and told["link"] == "dsl"
    (dirs.compared_dir() / frontier.FILE).unlink()
    assert main([*asked, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["suggestion"]["settings"] == MEASURED.points[1].settings
    )

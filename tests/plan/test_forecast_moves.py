"""Forecasts of moves."""

import json
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.foundation.errors import UserError
from swarmtrain.plan.forecast import parse_peers
from swarmtrain.plan.forecast_moves import in_words, parse_now, spreading
from tests.plan.test_forecast import config_of


def test_peers_of_one_kind_spread_until_all_stages_are_as_fast_as_they_can_be() -> None:
    found = spreading(config_of(), parse_peers("7*laptop@fibre"), (5, 1, 1))
    assert found.moves and all(move.stage == 0 for move in found.moves)
    assert sum(found.end) == 7 and found.end[0] == 5 - len(found.moves)
    assert found.share <= 0.5 and found.moves[-1].share == 1
    lines = in_words(found)
    assert lines[0].startswith("Begin        5, 1, 1 peers by stage: ")
    assert lines[1].startswith("Move 1       laptop@fibre from stage 0 to stage ")
    assert lines[-1].endswith(f" peers by stage, after {len(found.moves)} moves")
    again = spreading(config_of(), parse_peers("7*laptop@fibre"), found.end)
    assert not again.moves and again.share == 1


@pytest.mark.parametrize("text", ["5,1", "5,1,2", "7,0,0", "5,1,x", "", "5,1,1,0", "-5,1,11"])
def test_a_start_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_now(text, config_of(), 7)
    assert caught.value.code == "SWT-E610" and "5,1,1" in caught.value.remedy


def test_the_command_tells_of_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "tests"\n[model]\nlayers = 6\n[pipeline]\nstages = 3\n')
    words = ["plan", str(path), "--peers", "7*laptop@fibre", "--now", "5, 1, 1"]
    assert main(words) == 0
    assert "Move 2" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["begin"] == [5, 1, 1] and told["moves"]
    assert main([*words, "--measured", str(tmp_path)]) == 2
    assert "Give one of them" in capsys.readouterr().err

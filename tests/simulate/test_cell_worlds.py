"""Worlds in which means are summed in cells."""

import json

import pytest

from swarmtrain.cli.main import main


def test_worlds_in_cells_are_one_command(capsys):
    words = ["simulate", "--seed", "3", "--peers", "8", "--cells", "2", "--ops", "2", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["commits"] == 2
    assert not told["violations"]


@pytest.mark.parametrize(
    "words",
    [["--kind", "pair"], ["--kind", "gather"], ["--experts", "2"], ["--pipelines"], ["--stages"]],
)
def test_what_has_no_cells_is_refused_in_one_sentence(words, capsys):
    assert main(["simulate", "--peers", "12", "--cells", "3", *words]) == 2
    assert "only means of one group have cells" in " ".join(capsys.readouterr().err.split())


def test_cells_that_are_too_small_are_refused_with_the_number_of_peers_that_they_need(capsys):
    assert main(["simulate", "--peers", "11", "--cells", "3"]) == 2
    assert "--peers 12 or more" in " ".join(capsys.readouterr().err.split())

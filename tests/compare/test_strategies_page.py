"""The table that chooses a strategy: it names them all, and its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from swarmtrain.cli import compare
from swarmtrain.cli.main import app, main
from swarmtrain_optimizers.strategies.registry import BUILT_IN

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\|.*\|.*\|.*\|.*\|$", line) and not line.startswith(("| your swarm", "|---"))
]


def test_every_strategy_has_a_row():
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[1])}
    assert set(BUILT_IN) <= named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3])
def test_its_command_is_understood(row, monkeypatch):
    name, *words = shlex.split(row[3].strip("`"))
    if name == "compare":
        chosen = []
        monkeypatch.setattr(compare, "_run", lambda plans, *rest, **kept: chosen.extend(plans))
        assert main([name, *words]) == 0
        assert chosen
    else:
        group = typer.main.get_command(app)
        command = group.get_command(None, name)
        command.make_context(name, words)

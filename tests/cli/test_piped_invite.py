"""Ways for an invite to reach `swarmtrain join` that no list of processes shows."""

import io
import sys

import pytest

from swarmtrain.cli import join as command
from swarmtrain.cli.main import main


@pytest.fixture
def loaded(monkeypatch):
    """Notes what would be loaded instead of loading torch into this process."""
    names: list[str] = []
    monkeypatch.setattr(command, "import_module", names.append)
    return names


def test_a_piped_invite_is_read_after_the_trainer_is_loaded(capsys, monkeypatch, loaded, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"  hello\nmore")))
    assert main(["join", "--invite-file", "-", "--state-dir", str(tmp_path)]) == 77
    assert loaded == ["swarmtrain.peer.run"]
    assert "SWT-E312" in capsys.readouterr().err


def test_an_input_that_ends_without_an_invite_is_a_clear_error(capsys, monkeypatch, loaded):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["join", "--invite-file", "-"]) == 77
    assert "SWT-E312" in capsys.readouterr().err


def test_in_a_terminal_an_invite_is_asked_for(capsys, monkeypatch):
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.setattr(command, "can_ask", lambda: True)
    monkeypatch.setattr(command.typer, "prompt", lambda text, err: " hello ")
    assert main(["join"]) == 77
    assert "SWT-E312" in capsys.readouterr().err


def test_without_a_terminal_it_is_said_how_an_invite_is_handed_over(capsys, monkeypatch):
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    assert main(["join"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("SWT-E310  ")
    for way in ("--invite-file FILE", "standard input", "SWARMTRAIN_INVITE"):
        assert way in err
    assert "swarm://" not in err

"""The command: one line per finding or one object, and an exit status for scripts."""

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.foundation import dirs
from swarmtrain_transport.credentials.invite import Invite


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dirs, "runs_dir", lambda: tmp_path / "runs")
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    root.handlers[:], root.level = before[0], before[1]


def test_without_an_invite_it_looks_at_this_machine_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for name in ("python", "torch", "arithmetic", "cores", "memory", "disk", "files", "clock"):
        assert f"  {name} " in told
    assert "coordinator" not in told and not (tmp_path / "runs").exists()


def test_what_is_wrong_is_the_exit_status_and_stands_in_one_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        invite = Invite("127.0.0.1", nobody.getsockname()[1], "tiny", bytes(32), bytes(16))
        monkeypatch.setenv("SWARMTRAIN_INVITE", str(invite))
        assert main(["doctor", "--json"]) == 69
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["ok"], told["exit"]) == (False, 69)
    (bad,) = [one for one in told["findings"] if one["level"] == "bad"]
    assert (bad["name"], bad["code"]) == ("connection", "SWT-E203")
    assert str(invite).partition("#")[2] not in out + err


def test_what_is_no_invite_is_refused_as_by_join(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "hello"]) == 77
    assert "SWT-E312" in capsys.readouterr().err

"""`swarmtrain limits`, as a volunteer types it."""

import json

import pytest

from swarmtrain.cli.main import main
from swarmtrain.config.options import parse_pause
from swarmtrain.foundation.errors import UserError


@pytest.fixture(autouse=True)
def peer(tmp_path):
    """Make the directory that of a peer."""
    (tmp_path / "identity.json").touch()


def test_limits_in_a_place_where_no_peer_is_are_refused(tmp_path, capfd):
    (tmp_path / "identity.json").unlink()
    (tmp_path / "ledger.sqlite").touch()
    assert main(["limits", "set", "--duty", "50%", "--state-dir", str(tmp_path)]) == 2
    assert "would hold for nobody" in capfd.readouterr().err
    assert not (tmp_path / "limits.json").exists()


def test_limits_are_set_shown_and_refused(tmp_path, capfd):
    at = ("--state-dir", str(tmp_path))
    assert main(["limits", "set", "--hours", "22-7", "--duty", "50%", "--no-battery", *at]) == 0
    assert capfd.readouterr().out == "Limits: hours 22-7, 50 % of the time, not on battery.\n"
    assert main(["limits", "set", "--hours", "", "--busy", "0.5", *at]) == 0
    capfd.readouterr()
    assert main(["limits", "show", "--json", *at]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["hours"], told["duty"], told["battery"], told["busy"]) == ("", 0.5, False, 0.5)
    for words in (("--hours", "9-9"), ("--duty", "0%"), ("--nice", "20"), ("--hours", "soon")):
        assert main(["limits", "set", *words, *at]) == 2
        assert capfd.readouterr().err
    assert main(["limits", "show", "--state-dir", str(tmp_path / "none")]) == 66
    (tmp_path / "limits.json").write_text("{")
    assert main(["limits", "show", *at]) == 2
    assert "makes no sense" in capfd.readouterr().err


def test_limits_on_the_link_are_set_and_taken_away(tmp_path, capfd, monkeypatch):
    at = ("--state-dir", str(tmp_path))
    monkeypatch.setenv("SWARMTRAIN_DOWN", "1mbit")  # of `join` alone
    assert main(["limits", "set", "--up", "10mbit", "--daily", "20GB", *at]) == 0
    assert capfd.readouterr().out == "Limits: 1.25 MB/s up, 20 GB a day.\n"
    assert main(["limits", "set", "--up", "", "--memory", "2GB", "--keep", "0", *at]) == 0
    told = capfd.readouterr().out
    assert told.startswith("Limits: 20 GB a day, 2 GB of memory, 0 of disk for others.\n")
    assert "from its next start" in told
    for words in (("--up", "10mb"), ("--up", "1kbit"), ("--daily", "20"), ("--memory", "much")):
        assert main(["limits", "set", *words, *at]) == 2
        assert capfd.readouterr().err
    for text in ('{"up": 5}', '{"daily": -2}', '{"disk": 1e3}', '{"up": true}', "[]"):
        (tmp_path / "limits.json").write_text(text)
        assert main(["limits", "show", *at]) == 2
        capfd.readouterr()


def test_a_pause_is_of_a_year_at_most():
    assert parse_pause("2h") == 7200.0
    with pytest.raises(UserError, match="longer than a year"):
        parse_pause("367d")

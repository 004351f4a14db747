"""`swarmtrain limits`, as a volunteer types it."""

import json

from swarmtrain.cli.main import main


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

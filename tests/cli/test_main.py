"""Every ending of a command has words on stderr and the documented exit status."""

import json
import logging
import sys
from pathlib import Path

import pytest

from swarmtrain import __main__ as command
from swarmtrain import __version__, status
from swarmtrain.cli.main import main
from swarmtrain.foundation import dirs
from swarmtrain.foundation.error_table import TABLE
from swarmtrain.foundation.errors import Interrupted, UserError
from swarmtrain_transport.credentials.invite import Invite

INVITE = Invite("127.0.0.1", 8400, "tiny", bytes(32), bytes(16))


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """State under a directory of the test's own, and the log as it was."""
    monkeypatch.setattr(dirs, "runs_dir", lambda: tmp_path / "state" / "runs")
    monkeypatch.setattr(dirs, "reports_dir", lambda: tmp_path / "state" / "reports")
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    root.handlers[:], root.level = before[0], before[1]


@pytest.fixture
def answer(monkeypatch):
    """Let `swarmtrain status` meet this answer or this fault."""

    def install(ending: dict | Exception) -> None:
        def ask(state_dir: Path) -> dict:
            if isinstance(ending, BaseException):
                raise ending
            return ending

        monkeypatch.setattr(status, "ask", ask)

    return install


def ending(capsys, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_help_and_version_end_well(capsys):
    code, out, err = ending(capsys, "--help")
    assert code == 0
    assert err == ""
    for name in ("up", "join", "peer", "status", "demo", "explain"):
        assert f"  {name} " in out
    assert ending(capsys, "--version")[1].startswith(f"swarmtrain {__version__} ")


@pytest.mark.parametrize("words", [["nonsense"], ["demo", "--peers", "many"], ["up"]])
def test_misuse_of_the_command_line_is_status_2(capsys, words):
    code, out, err = ending(capsys, *words)
    assert code == 2
    assert out == ""
    assert "Usage" in err


@pytest.mark.parametrize(
    ("words", "code", "status_"),
    [
        (["join"], "SWT-E310", 2),
        (["peer", "start"], "SWT-E310", 2),
        (["join", "hello"], "SWT-E312", 77),
        (["join", str(INVITE)[:-1]], "SWT-E312", 77),
        (["join", str(INVITE), "--listen", "here"], "SWT-E611", 2),
        (["join", str(INVITE), "--name", "../up"], "SWT-E610", 2),
        (["join", str(INVITE), "--invite-file", "x"], "SWT-E610", 2),
        (["join", "--invite-file", "no/such/file"], "SWT-E610", 2),
        (["up", "no/such/run.toml"], "SWT-E602", 66),
        (["up", "run.toml", "--listen", "8400"], "SWT-E611", 2),
        (["up", "run.toml", "--public-host", "a b"], "SWT-E611", 2),
        (["status", "--state-dir", "no/such/dir"], "SWT-E806", 66),
        (["status"], "SWT-E806", 66),
        (["demo", "--peers", "2"], "SWT-E610", 2),
        (["demo", "--rounds", "4"], "SWT-E610", 2),
        (["explain", "SWT-E999"], "SWT-E612", 2),
    ],
)
def test_bad_input_is_one_message_without_a_traceback(capsys, words, code, status_):
    got, out, err = ending(capsys, *words)
    assert got == status_
    assert out == ""
    assert err.startswith(code + "  ")
    assert err.rstrip().endswith(f"[exit {status_}]")
    assert "Traceback" not in err


def test_an_invite_comes_from_the_environment_when_none_is_given(capsys, monkeypatch):
    monkeypatch.setenv("SWARMTRAIN_INVITE", "hello")
    assert ending(capsys, "join")[0] == 77


def test_an_invite_comes_from_a_file_when_one_is_named(capsys, tmp_path):
    file = tmp_path / "invite"
    file.write_text(str(INVITE)[:-3] + "\n")
    assert "SWT-E312" in ending(capsys, "join", "--invite-file", file)[2]


def test_a_run_file_with_an_unknown_key_is_told_with_the_right_one(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "t"\n[outer]\ninner_stpes = 3\n')
    code, _, err = ending(capsys, "up", file)
    assert code == 78
    assert "Did you mean `inner_steps`?   (line 4)" in err


def test_a_state_directory_that_cannot_be_made_is_status_73(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "t"\n')
    code, _, err = ending(capsys, "up", file, "--state-dir", file / "below")
    assert code == 73
    assert err.startswith("SWT-E403")


def test_a_user_error_from_below_ends_with_its_own_status(capsys, answer):
    answer(UserError("SWT-E701", "The run has its 64 peers.", "", "Try again later."))
    code, out, err = ending(capsys, "status", "--state-dir", ".")
    assert (code, out) == (75, "")
    assert err == ("SWT-E701  The run has its 64 peers.\n          Try again later.   [exit 75]\n")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(KeyboardInterrupt(), 130), (Interrupted(143), 143), (OSError(28, "full", "x"), 73)],
)
def test_endings_that_are_no_bugs_have_their_status(capsys, answer, fault, expected):
    answer(fault)
    assert ending(capsys, "status", "--state-dir", ".")[0] == expected


def test_a_bug_leaves_a_private_report_without_secrets(capsys, answer, tmp_path):
    answer(RuntimeError(f"odd {INVITE}"))
    code, out, err = ending(capsys, "status", "--state-dir", ".")
    assert (code, out) == (1, "")
    assert err.startswith("SWT-E901  Unexpected fault (a bug): RuntimeError: odd swarm://")
    assert "Traceback" not in err
    (report,) = (tmp_path / "state" / "reports").iterdir()
    assert str(report) in err
    assert report.stat().st_mode & 0o777 == 0o600
    text = report.read_text()
    assert "Traceback" in text
    secret = str(INVITE).partition("#")[2]
    assert secret not in text
    assert secret not in err


def test_a_bug_shows_its_traceback_when_asked(capsys, answer):
    answer(RuntimeError("odd"))
    for words in (["-v", "status"], ["status", "-v"]):
        assert "Traceback" in ending(capsys, *words, "--state-dir", ".")[2]


def test_a_bug_is_shown_when_no_report_can_be_written(capsys, answer, tmp_path):
    (tmp_path / "state").write_text("a file where a directory should be")
    answer(RuntimeError("odd"))
    code, _, err = ending(capsys, "status", "--state-dir", ".")
    assert code == 1
    assert "Traceback" in err


def test_an_internal_fault_that_a_part_found_itself_is_reported_too(capsys, answer, tmp_path):
    answer(UserError("SWT-E901", "The record does not continue the log."))
    assert ending(capsys, "status", "--state-dir", ".")[0] == 1
    assert len(list((tmp_path / "state" / "reports").iterdir())) == 1


def test_status_is_json_on_stdout_when_asked(capsys, answer):
    view = {"run": "tiny", "round": 3, "peers": []}
    answer(view)
    code, out, err = ending(capsys, "status", "--json", "--state-dir", ".")
    assert (code, err) == (0, "")
    assert json.loads(out) == view


def test_status_for_people_has_a_row_per_peer(capsys, answer):
    peers = [
        {"name": "quiet-otter", "state": "training", "round": 3, "loss": 2.25, "bytes_up": 1500000,
         "state_root": "ab" * 32},
    ]  # fmt: skip
    answer({"run": "tiny", "losses": {"2": 3.0, "10": 2.5}, "waiting_for": "", "peers": peers})
    _, out, _ = ending(capsys, "status", "--state-dir", ".")
    lines = out.splitlines()
    assert lines[0] == "directory        ."
    assert lines[1].split() == ["run", "tiny"]
    assert lines[2] == "validation loss  2.500 nats after round 10"
    assert lines[-2].split() == ["peer", "state", "round", "loss", "up", "state", "root"]
    assert lines[-1].split() == ["quiet-otter", "training", "3", "2.250", "1.5", "MB", "ab" * 8]


@pytest.mark.parametrize("word", ["SWT-E203", "swt-e203", "E203", "203"])
def test_explain_finds_an_id_however_it_is_written(capsys, word):
    code, out, err = ending(capsys, "explain", word)
    assert (code, err) == (0, "")
    assert out.startswith("SWT-E203  ")
    assert "[exit 69]" in out


def test_explain_lists_every_id(capsys):
    out = ending(capsys, "explain")[1]
    assert [line.split()[0] for line in out.splitlines()] == list(TABLE)


def test_joining_introduces_the_run_and_hands_over_what_was_asked(capsys, monkeypatch, tmp_path):
    taken = []
    module = type(sys)("swarmtrain.peer.run")
    module.run_peer = lambda options, *, say, emit: taken.append(options) or 0
    monkeypatch.setitem(sys.modules, "swarmtrain.peer.run", module)
    code, out, err = ending(
        capsys,
        "join",
        INVITE,
        "--name",
        "otter",
        "--threads",
        2,
        "--freeze-in-round",
        3,
        "--up",
        "10mbit",
    )
    assert (code, out) == (0, "")
    assert "Run         tiny, coordinator 127.0.0.1:8400" in err
    assert "Limits      1.25 MB/s up\n" in err
    assert str(INVITE).partition("#")[2] not in err
    (options,) = taken
    assert options.invite == INVITE
    (place,) = options.state_dirs
    assert place == tmp_path / "state" / "runs" / "tiny" / "peers" / "otter"
    assert place.stat().st_mode & 0o777 == 0o700
    assert (str(options.listen), options.threads, options.freeze_in_round) == ("127.0.0.1:0", 2, 3)


def test_an_interrupt_while_the_command_line_loads_is_one_like_any_other(monkeypatch, capsys):
    class Slow:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "swarmtrain.cli.main", Slow())
    assert command.main() == 130
    assert capsys.readouterr().err == ""

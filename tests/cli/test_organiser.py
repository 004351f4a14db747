"""`invite`, `peers` and `run` as their own processes, with a coordinator beside them."""

import json
import subprocess

import pytest
from test_up import command, environment, running

from swarmtrain.cli.invite import parse_hours
from swarmtrain.cli.peers import sheet
from swarmtrain.foundation.errors import UserError
from swarmtrain_transport.credentials.invite import Invite


def ended(*words: object, home: object = None) -> subprocess.CompletedProcess:
    extra = {"XDG_STATE_HOME": str(home)} if home is not None else {}
    done = subprocess.run(
        command(*words), env={**environment(), **extra}, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_invites_are_made_listed_and_withdrawn(tmp_path):
    file, state = tmp_path / "run.toml", tmp_path / "state"
    file.write_text('[run]\nname = "tiny"\n')
    at = ("--state-dir", state)
    with running(file, "--listen", "127.0.0.1:0", *at) as (_, ready):
        made = ended("invite", "create", "--uses", 1, "--expires", "2h", "--name", "bob", *at)
        assert made.returncode == 0 and "1 new peer" in made.stderr
        invite = Invite.parse(made.stdout)
        assert made.stdout == f"{invite}\n"
        standing = Invite.parse(ready["invite"])
        assert (invite.port, invite.cert_sha256) == (standing.port, standing.cert_sha256)
        assert invite.secret != standing.secret
        listed = ended("invite", "ls", *at)
        rows = [line.split()[1:6] for line in listed.stdout.splitlines()]
        assert ["bob", "peer", "open", "0", "of"] in rows
        assert str(invite).partition("#")[2] not in listed.stdout + listed.stderr
        gone = ended("invite", "revoke", "bob", "--json", *at)
        assert json.loads(gone.stdout)["state"] == "revoked"
        again = json.loads(ended("invite", "ls", "--json", *at).stdout)["invites"]
        assert {one["name"]: one["state"] for one in again} == {
            "page": "open", "": "open", "bob": "revoked",
        }  # fmt: skip
        link = ended("invite", "create", "--role", "observer", "--name", "eve", *at)
        assert link.stdout.startswith(f"https://{invite.host}:{invite.port}/#")
        assert "shows the run" in link.stderr
        wrong = ended("invite", "create", "--role", "king", *at)
        assert wrong.returncode == 2 and "peer or observer" in wrong.stderr
        unknown = ended("invite", "revoke", "carol", *at)
        assert unknown.returncode == 66 and unknown.stderr.startswith(
            "SWT-E809  There is no invite"
        )
        assert "invite ls" in unknown.stderr


def test_the_newest_coordinator_is_meant_and_a_closed_run_shows_in_its_status(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "tiny"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
        with running(file, "--listen", "127.0.0.1:0"):
            peer = tmp_path / "home/swarmtrain/runs/tiny/peers/ann"  # newer, but takes no orders
            peer.mkdir(parents=True)
            (peer / "status.json").write_text("{}")
            closed = ended("run", "close")
            assert closed.returncode == 0 and "Nobody new" in closed.stdout
            coordinator = tmp_path / "home/swarmtrain/runs/tiny/coordinator"
            shown = ended("status", "--state-dir", coordinator)
            assert "newcomers        are not let in" in shown.stdout
            assert json.loads(ended("run", "open", "--json").stdout) == {"door": "open"}
            assert ended("peers", "ls").stdout.split()[:3] == ["name", "id", "state"]
        stopped = ended("peers", "ls")
        assert stopped.returncode == 69 and stopped.stderr.startswith("SWT-E204")


@pytest.mark.parametrize(
    ("text", "hours"), [("90m", 1.5), ("24h", 24.0), ("7d", 168.0), ("0.5h", 0.5), ("never", 0.0)]
)
def test_durations_are_read_with_their_unit(text, hours):
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1h", "h", "1w", "0h", "1e9d", "99999999999d", "nan h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UserError) as caught:
        parse_hours(text)
    assert caught.value.code == "SWT-E610"


def test_a_peers_sheet_leaves_out_what_is_empty():
    answer = {
        "name": "ann", "peer": "ab" * 32, "state": "banned", "ban_reason": "noise", "invite": "",
        "round": 0, "since_round": 2, "since_group": 0, "contributed": 3, "excluded": 4,
        "last_reason": "late", "last_round": 7, "last_group": 0,
        "reasons": {"late": 1, "refused:scale": 3}, "accused_by": {"bob (0b0b)": 2}, "now": None,
    }  # fmt: skip
    lines = list(sheet(answer))
    assert "last reason      late (round 7)" in lines
    assert not any(line.startswith(("invite", "sent")) for line in lines)
    assert lines[-3].split(maxsplit=2) == ["3", "x", "refused:scale"]
    assert lines[-1].strip() == "2 x on the word of bob (0b0b)"
    grouped = list(sheet(answer | {"last_group": 1, "since_group": 1}))
    assert "since round      2 of group 1" in grouped
    assert "last reason      late (round 7 of group 1)" in grouped
    now = {"norm": 0.98, "cosine": -0.5, "bytes_up": 0, "bytes_down": 0, "silent_s": 0.0}
    assert "cosine           -0.50 with what the others gave" in sheet(answer | {"now": now})

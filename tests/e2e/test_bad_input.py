"""Everything that people get wrong when they join or start: one clear message, one exit status.

All commands of a test run at once, because each takes seconds to load torch and none needs
another's end.
"""

import socket
from dataclasses import replace

import pytest
import torch
from e2e_rig import Place, Running, Up, place
from torch import nn

import swarmtrain
from swarmtrain.cli.main import main
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.foundation import numerics
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.wire.records import Record

pytestmark = pytest.mark.timeout(400)

OWN_MODEL = """
[model]
kind = "custom"
[data]
source = "own"
[exchange]
block = 64
chunk_values = 65536
"""

OTHER_MODEL = """
import sys, torch, swarmtrain
from swarmtrain.foundation.errors import UserError, render
model = torch.nn.Linear(5, 7)
try:
    swarmtrain.join(model, torch.optim.SGD(model.parameters(), lr=0.1), name="other")
except UserError as error:
    print(render(error), file=sys.stderr)
    sys.exit(error.exit_status)
"""


def refused(running: Running, status: int, code: str) -> str:
    """The message of a command that ended as it should."""
    assert (running.end(), running.process.returncode) == (status, status), str(running)
    lines = running.said.splitlines()
    (first,) = [index for index, line in enumerate(lines) if line.startswith("SWT-E")]
    message = "\n".join(lines[first:])
    assert message.startswith(f"{code}  "), str(running)
    assert message.endswith(f"[exit {status}]"), str(running)
    assert len(lines[first:]) >= 2, "what it means or what to do is missing"
    return message


@pytest.fixture
def quiet_log(monkeypatch):
    """The command in this process must not tie the log to a stream that ends with the test."""
    monkeypatch.setattr("swarmtrain.cli.log.set_up", lambda *, verbose: None)


def joining(invite: Invite, state_dir, capsys) -> tuple[int, str]:
    """Status and error id of `swarmtrain join` in this process."""
    status = main(["join", str(invite), "--state-dir", str(state_dir), "--yes"])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("SWT-E")]
    return status, line.split()[0]


def test_settings_that_cannot_work_are_told_with_line_and_remedy(tmp_path):
    with place(tmp_path) as here, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        good = here.run_file('[run]\nname = "good"\n', "good")
        misspelt = here.run_file('[run]\nname = "bad"\n[outer]\ninner_stpes = 5\n', "bad")
        unknown_key = here.command("up", misspelt, "--listen", "127.0.0.1:0")
        no_port = here.command("up", good, "--listen", f"127.0.0.1:{port}")
        forged = here.command("join", "swarm://127.0.0.1:8400/good#" + "A" * 67)
        message = refused(unknown_key, 78, "SWT-E601")
        assert "inner_stpes" in message and "inner_steps" in message and "4" in message
        assert str(port) in refused(no_port, 78, "SWT-E201")
        refused(forged, 77, "SWT-E312")


def _bad_joins(here: Place, open_run: Invite, spent: Invite, port: int) -> None:
    """Five ways not to come in, all at once."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        unheard = replace(open_run, port=nobody.getsockname()[1])
        wrong_key = replace(open_run, cert_sha256=bytes(32))
        joins = {
            "unheard": (here.join(str(unheard), "unheard"), 69, "SWT-E203"),
            "wrong-key": (here.join(str(wrong_key), "wrong-key"), 77, "SWT-E301"),
            "spent": (here.join(str(spent), "spent"), 77, "SWT-E311"),
            "port": (
                here.join(str(open_run), "port", "--listen", f"127.0.0.1:{port}"), 78, "SWT-E201",
            ),
            "shapes": (
                here.start("-c", OTHER_MODEL, SWARMTRAIN_INVITE=str(open_run)), 78, "SWT-E804",
            ),
        }  # fmt: skip
        told = {name: refused(*expected) for name, expected in joins.items()}
    assert "42 values" in told["shapes"] and "12" in told["shapes"]
    assert str(port) in told["port"]
    assert str(unheard.port) in told["unheard"]


def test_every_way_not_to_come_in_has_its_message_and_its_status(tmp_path, capsys, quiet_log):
    uses_one = "[admission]\ninvite_uses = 1\n"
    expired = "[admission]\ninvite_expires_hours = 1e-9\n"
    with place(tmp_path) as here, socket.create_server(("127.0.0.1", 0)) as taken:
        ups = {
            name: here.up(
                here.run_file(f'[run]\nname = "{name}"\n{OWN_MODEL}{extra}', name), state=name
            )
            for name, extra in (("open", ""), ("spent", uses_one), ("late", expired))
        }
        invites = {name: Invite.parse(up.invite) for name, up in ups.items()}
        with (
            _member(tmp_path, invites["open"]) as one,
            _member(tmp_path, invites["spent"]) as other,
        ):
            _bad_joins(here, invites["open"], invites["spent"], taken.getsockname()[1])
        forged = replace(invites["open"], secret=bytes(16))
        for invite, code in ((forged, "SWT-E313"), (invites["late"], "SWT-E314")):
            assert joining(invite, tmp_path / code, capsys) == (77, code)
        assert one.error is None and other.error is None


def test_who_brings_what_the_run_is_not_for_is_told_before_it_is_in(tmp_path, capsys, quiet_log):
    with place(tmp_path) as here:
        built_in = here.up(here.run_file('[run]\nname = "built"\n', "built"), state="built")
        custom = here.up(
            here.run_file(f'[run]\nname = "custom"\n{OWN_MODEL}', "custom"), state="custom"
        )
        hooked = here.start("-c", OTHER_MODEL, SWARMTRAIN_INVITE=built_in.invite)
        changed = built_in.invite.replace("/built#", "/other#")
        invite = Invite.parse(built_in.invite)
        renamed = replace(invite, run="renamed")  # with a checksum of its own
        assert joining(Invite.parse(custom.invite), tmp_path / "a", capsys) == (78, "SWT-E607")
        assert joining(renamed, tmp_path / "b", capsys) == (77, "SWT-E316")
        assert main(["join", changed, "--yes"]) == 77
        assert "SWT-E312" in capsys.readouterr().err
        assert not list((tmp_path / "state-home").rglob("other"))
        message = refused(hooked, 78, "SWT-E609")
        assert "byte-transformer" in message and "42 values" in message
        for up in (built_in, custom):
            up.stop()
            assert len(records_of(up)) == 1, "a misfit is in the ledger"


def records_of(up: Up) -> tuple[Record, ...]:
    store = Store.open_to_read(up.state_dir)
    try:
        return store.records()
    finally:
        store.close()


def _member(folder, invite: Invite) -> swarmtrain.Swarm:
    """A peer in this process, so that the run has a model and the invite a use less."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state_dir = folder / "members" / invite.run
    return swarmtrain.join(model, optimizer, str(invite), state_dir=state_dir, strict=True)


def test_a_machine_that_computes_other_bits_is_not_let_in(tmp_path, capsys, monkeypatch, quiet_log):
    monkeypatch.setattr(numerics, "EXPECTED", {"division": "0" * 64})
    invite = Invite("127.0.0.1", 1, "run", bytes(32), bytes(16))
    assert joining(invite, tmp_path, capsys) == (78, "SWT-E101")

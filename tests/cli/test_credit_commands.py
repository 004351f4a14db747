"""`me` and `receipts` as their users call them."""

import json
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.credit.lifetime import Keeper
from swarmtrain.foundation import dirs
from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport.credentials.identity import Identity
from tests.credit.real_ledger import RUN_FILE, RUN_KEY, bodies, ledger_of
from tests.transport.rig import A


def written(directory: Path, key: Identity = RUN_KEY) -> Path:
    """Write a peer's state directory of a run with this key."""
    directory.mkdir()
    storage = PeerStorage(directory)
    storage.append_records(ledger_of(bodies(), key))
    storage.of(0).keep_run(RUN_FILE)
    storage.close()
    return directory


@pytest.fixture
def peer(tmp_path, monkeypatch) -> Path:
    """State directory of a peer with the key of A, as far as that is public."""
    monkeypatch.setenv(dirs.LIFETIME, str(tmp_path / "lifetime"))
    directory = written(tmp_path / "peer")
    identity = Identity(A, bytes(32), bytes(32), bytes(32))
    monkeypatch.setattr(identity_file, "load", lambda path: identity)
    return directory


def test_totals_stay_when_the_state_directory_has_gone(peer, tmp_path, capfd):
    assert main(["me"]) == 0 and "Nothing yet" in capfd.readouterr().out
    assert main(["me", "--card", str(tmp_path / "card.svg")]) == 66
    keeper = Keeper(dirs.lifetime_dir(), A, "otter")
    for record in ledger_of(bodies()):
        keeper.take(record)
    keeper.knows(RUN_FILE)
    keeper.write(keeper.file((1000, 2000), 1_800_000_000.0))
    capfd.readouterr()
    assert main(["me", "--card", str(tmp_path / "card.svg")]) == 0
    shown = capfd.readouterr().out
    assert "otter" in shown and "In all 3 rounds" in shown and "own word" in shown
    assert (tmp_path / "card.svg").read_text().startswith("<svg")
    (dirs.lifetime_dir() / "x.json").write_text("{")
    assert main(["me", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["runs"][0]["rounds"] == 3 and told["own_word"] and len(told["damaged"]) == 1
    assert main(["me", "--card", str(tmp_path / "no" / "card.svg")]) == 2
    assert "SWT-E610" in capfd.readouterr().err


def test_receipts_are_made_and_checked_by_whoever_gets_them(peer, tmp_path, capfd):
    folder = str(tmp_path / "receipts")
    for _ in range(2):
        assert main(["receipts", "save", folder, "--state-dir", str(peer)]) == 0
    assert "3 receipts" in capfd.readouterr().out
    assert main(["receipts", "verify", folder]) == 0
    shown = capfd.readouterr().out
    assert "3, of 1 to 3" in shown and RUN_KEY.peer_id.hex() in shown and "--run-key" in shown
    key = RUN_KEY.peer_id.hex().upper()
    assert main(["receipts", "verify", folder, "--run-key", key, "--ledger", str(peer)]) == 0
    assert "--ledger" not in capfd.readouterr().out
    assert main(["receipts", "verify", folder, "--run-key", "ab" * 32]) == 65
    capfd.readouterr()
    for none in ("", "xyz", key[:-1]):
        assert main(["receipts", "verify", folder, "--run-key", none]) == 2
        assert "is no run key" in capfd.readouterr().err


def test_receipts_of_other_runs_beside_a_ledger_are_named(peer, tmp_path, capfd):
    folder = tmp_path / "receipts"
    assert main(["receipts", "save", str(folder), "--state-dir", str(peer)]) == 0
    foreign = str(written(tmp_path / "foreign", Identity.create()))
    assert main(["receipts", "save", str(folder), "--state-dir", foreign]) == 0
    assert main(["receipts", "verify", str(folder)]) == 0
    capfd.readouterr()
    assert main(["receipts", "verify", str(folder), "--ledger", str(peer), "--json"]) == 65
    said = capfd.readouterr()
    told = json.loads(said.out)
    assert [len(told[one]) for one in ("receipts", "refused")] == [3, 3]
    assert "of another run than the ledger" in said.err and ".receipt" in said.err


def test_a_directory_without_its_run_file_makes_no_receipts(peer, tmp_path, capfd):
    (peer / "run.msgpack").unlink()
    assert main(["receipts", "save", str(tmp_path / "r"), "--state-dir", str(peer)]) == 66
    assert "run.msgpack, so no receipt" in capfd.readouterr().err


def test_one_bad_receipt_among_good_ones_is_named(peer, tmp_path, capfd):
    folder = tmp_path / "receipts"
    assert main(["receipts", "save", str(folder), "--state-dir", str(peer)]) == 0
    (folder / "bad.receipt").write_bytes(b"odd")
    capfd.readouterr()
    assert main(["receipts", "verify", str(folder), "--json"]) == 65
    said = capfd.readouterr()
    told = json.loads(said.out)
    assert len(told["receipts"]) == 3 and len(told["refused"]) == 1
    assert "SWT-E813" in said.err and "bad.receipt" in said.err


def test_what_is_no_receipt_and_no_peer_gets_one_clear_word(peer, tmp_path, capfd):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, status, code in (
        (["verify", str(empty)], 66, "SWT-E814"),
        (["verify", str(tmp_path / "none")], 66, "SWT-E814"),
        (["verify", "/dev/zero"], 65, "SWT-E813"),
        (["save", str(peer / "ledger.bin"), "--state-dir", str(peer)], 2, "SWT-E610"),
        (["save", str(empty), "--state-dir", str(empty)], 66, "SWT-E806"),
        (["save", str(empty), "--state-dir", str(tmp_path / "none")], 66, "SWT-E806"),
    ):
        assert main(["receipts", *words]) == status
        assert code in capfd.readouterr().err

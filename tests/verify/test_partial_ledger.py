"""A peer's directory proves and tells what it can where its copy of the ledger has a gap."""

import json
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.peer.disk.storage import IMAGE_FILE, PeerStorage
from swarmtrain.verify.peer_state import prove_peer
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.snapshots import image_of
from swarmtrain_transport.wire.records import Record, Snapshot
from tests.verify.history import History


def partial(directory: Path, *, frees: bool = True) -> tuple[History, Record]:
    """Rounds 1 to 3, a SNAPSHOT, rounds 4 and 5; of the first three nothing is kept."""
    history = History(directory)
    for _ in range(3):
        history.commit()
    image = image_of(history.view, history.ledger.reader)
    history.add(Snapshot(content_hash(image), len(image)))
    snapshot = history.records[-1]
    for _ in range(2):
        history.commit()
    history.storage.begin_ledger(history.records[0], snapshot, image, frees=frees)
    history.storage.close()
    return history, snapshot


def test_what_is_left_is_proved_and_the_proof_says_from_where(tmp_path, capsys) -> None:
    history, snapshot = partial(tmp_path / "peer")
    proof = prove_peer(tmp_path / "peer")
    assert proof.ok, proof.problem
    assert proof.from_record == snapshot.index and f"record {snapshot.index} on" in proof.proves
    assert proof.to_op == 5 and proof.state_root == history.roots[5].hex()
    assert main(["verify", str(tmp_path / "peer")]) == 0
    assert f"from {snapshot.index} on" in capsys.readouterr().out


def test_a_copy_begins_again_where_it_was_cut(tmp_path) -> None:
    history, snapshot = partial(tmp_path / "peer")
    storage = PeerStorage(tmp_path / "peer")
    begins = storage.beginning()
    assert begins is not None and begins.snapshot == snapshot
    assert list(storage.records) == history.records[snapshot.index + 1 :]
    storage.append_records(history.records[5 : snapshot.index])
    storage.append_records(history.records[1:5])
    storage.close()
    whole = PeerStorage(tmp_path / "peer")
    assert whole.beginning() is None and list(whole.records) == history.records
    assert whole.ledger.read(3, snapshot.index + 2) == history.records[3 : snapshot.index + 2]
    whole.close()


def test_a_copy_whose_image_is_lost_keeps_what_is_before_the_gap(tmp_path) -> None:
    history, _ = partial(tmp_path / "peer")
    (tmp_path / "peer" / IMAGE_FILE).write_bytes(b"no image")
    proof = prove_peer(tmp_path / "peer")
    assert not proof.ok and "are not here" in proof.problem
    storage = PeerStorage(tmp_path / "peer")
    assert storage.beginning() is None and list(storage.records) == history.records[:1]
    storage.close()


def test_an_altered_image_is_not_proved(tmp_path) -> None:
    partial(tmp_path / "peer")
    path = tmp_path / "peer" / IMAGE_FILE
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    proof = prove_peer(tmp_path / "peer")
    assert not proof.ok and "SNAPSHOT" in proof.problem


@pytest.mark.parametrize("number", [4, 5])
def test_rounds_after_the_snapshot_are_told(tmp_path, capsys, number) -> None:
    partial(tmp_path / "peer")
    assert main(["why", str(number), "--state-dir", str(tmp_path / "peer"), "--json"]) == 0
    story = json.loads(capsys.readouterr().out)["story"]
    assert story[0] == f"Round {number} was planned with ann."


def test_an_earlier_round_is_said_to_be_elsewhere(tmp_path, capsys) -> None:
    partial(tmp_path / "peer")
    assert main(["why", "2", "--state-dir", str(tmp_path / "peer")]) == 66
    said = " ".join(capsys.readouterr().err.split())
    assert "SWT-E808" in said and "after round 3" in said and "--state-dir" in said

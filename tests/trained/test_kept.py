"""Checkpoints in state directories: listed, proved, and removed but for the newest that hold."""

import json
import shutil
from pathlib import Path

import pytest

from swarmtrain import checkpoint
from swarmtrain.cli.main import main
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.trained.kept import ATTESTED, SILENT, kept_in, prune
from swarmtrain.verify.peer_state import prove_peer
from tests.verify.history import History


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped peer with checkpoints of rounds 0 to 3."""
    history = History(tmp_path_factory.mktemp("kept") / "ann")
    for _ in range(3):
        history.commit()
        history.save()
    return history.close()


@pytest.fixture
def peer(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "ann"))


def folder(peer: Path, op: int) -> Path:
    return peer / "checkpoints" / checkpoint.folder_name(op)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def rounds(peer: Path) -> list[int]:
    return [checkpoint.op_of(path) for path in checkpoint.folders(peer / "checkpoints")]


def test_a_list_reads_manifests_alone(peer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(folder(peer, 2) / "model.safetensors")  # of the right size
    assert main(["ckpt", "ls", str(peer), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(one["part"], one["round"], one["ledger"]) for one in found] == [
        ("whole", number, ATTESTED) for number in range(4)
    ]
    assert not any(one["problem"] or one["checked"] for one in found)
    size = sum(path.stat().st_size for path in folder(peer, 3).iterdir())
    assert found[3]["num_bytes"] == size and found[3]["age_s"] >= 0
    (folder(peer, 1) / "outer.safetensors").unlink()
    assert main(["ckpt", "ls", str(peer)]) == 0
    told = capsys.readouterr().out
    assert "outer.safetensors cannot be read" in told and told.count("not read") == 3


def test_a_check_reads_every_byte(peer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "verify", str(peer)]) == 0
    assert capsys.readouterr().out.count("checked") == 4
    spoil(folder(peer, 2) / "model.safetensors")
    assert main(["ckpt", "verify", str(peer)]) == 65
    told = capsys.readouterr()
    assert told.out.count("checked") == 3 and told.out.count("damaged  /") == 1
    assert "SWT-E803" in told.err and "1 checkpoint of 4" in told.err


def test_a_whole_checkpoint_of_another_state_is_found(peer: Path) -> None:
    loaded = checkpoint.load(folder(peer, 3))
    layout = checkpoint.Layout.from_parameters(loaded.parameters, 16)
    arrays = [(name, one.clone()) for name, one in loaded.arrays(layout)]
    arrays[0][1][0] += 1
    checkpoint.save(peer / "checkpoints", loaded.checkpoint.facts, layout, arrays)
    (*good, bad) = kept_in(peer, check=True)
    assert not any(one.problem for one in good)
    assert "says that it is another" in bad.problem


def test_one_that_may_not_be_read_hides_no_other(
    peer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = checkpoint.claim

    def forbidden(path: Path) -> checkpoint.RunFacts:
        if path == folder(peer, 1):
            raise PermissionError(13, "Permission denied")
        return claim(path)

    monkeypatch.setattr(checkpoint, "claim", forbidden)
    found = kept_in(peer)
    assert [one.round for one in found] == [0, 1, 2, 3]
    assert ["Permission denied" in one.problem for one in found] == [False, True, False, False]


def test_the_newest_that_hold_stay(peer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "prune", str(peer), "--keep", "2"]) == 0
    assert "2 checkpoints would be removed" in capsys.readouterr().out
    assert rounds(peer) == [0, 1, 2, 3]
    assert main(["ckpt", "prune", str(peer), "--keep", "2", "--yes"]) == 0
    assert "Removed 2 checkpoints" in capsys.readouterr().out
    assert rounds(peer) == [2, 3]
    assert prove_peer(peer).ok
    assert main(["ckpt", "prune", str(peer), "--keep", "2", "--yes"]) == 0
    assert "Nothing is older than the newest 2 that hold" in capsys.readouterr().out
    assert prune(peer, 0, removes=True) == [folder(peer, 2)]  # one stays whatever is asked


def test_damaged_ones_and_states_that_nobody_attests_count_for_none(peer: Path) -> None:
    spoil(folder(peer, 3) / "model.safetensors")
    loaded = checkpoint.load(folder(peer, 2))
    facts = checkpoint.RunFacts(
        **{one: getattr(loaded.checkpoint.facts, one) for one in ("run", "config_hash", "group")},
        op=2, state_root=b"x" * 32,
    )  # fmt: skip
    layout = checkpoint.Layout.from_parameters(loaded.parameters, 16)
    checkpoint.save(peer / "checkpoints", facts, layout, loaded.arrays(layout))
    assert kept_in(peer)[2].ledger == SILENT
    assert prune(peer, 1, removes=True) == [folder(peer, 0)]
    assert rounds(peer) == [1, 2, 3]
    spoil(folder(peer, 1) / "manifest.json")
    assert prune(peer, 1, removes=True) == []


def test_a_running_peers_checkpoints_are_looked_at_and_left(
    peer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(peer, tmp_path / "bob"))
    storage = PeerStorage(peer)
    try:
        assert not any(one.problem for one in kept_in(peer, check=True))
        with pytest.raises(UserError) as caught:
            prune(peer, 1, removes=True)
        assert caught.value.code == "SWT-E404"
        assert main(["ckpt", "prune", str(peer), "--keep", "1", "--yes"]) == 75
        assert main(["ckpt", "prune", str(peer), str(other), "--keep", "1", "--yes"]) == 0
        runs = PeerStorage(other)
        assert main(["ckpt", "prune", str(peer), str(other), "--keep", "1", "--yes"]) == 75
        runs.close()
    finally:
        storage.close()
    assert "is left as it is" in capsys.readouterr().err
    assert rounds(peer) == [0, 1, 2, 3] and rounds(other) == [3]


def test_links_are_not_followed_and_a_directory_that_does_not_hold_loses_nothing(
    peer: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    folder(peer, 0).rename(elsewhere)
    folder(peer, 0).symlink_to(elsewhere)
    assert [one.round for one in kept_in(peer)] == [1, 2, 3]
    assert prune(peer, 1, removes=True) == [folder(peer, 1), folder(peer, 2)]
    assert (elsewhere / "manifest.json").exists()
    spoil(peer / "run.msgpack")
    (found,) = kept_in(peer, check=True)
    assert "does not hold together" in found.ledger and not found.checked
    with pytest.raises(UserError) as caught:
        prune(peer, 1, removes=True)
    assert caught.value.code == "SWT-E807"

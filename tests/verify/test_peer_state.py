"""A peer's directory proves its state, and one altered byte in any of its files is found."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain.cli.main import main
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.group_storage import result_paths
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.verify.peer_state import prove_peer
from swarmtrain_transport.coordinator.status import TextStatus
from swarmtrain_transport.wire.records import Rewind
from tests.verify.history import RUN, History, usual


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, History]:
    history = usual(tmp_path_factory.mktemp("verify") / "ann")
    return history.close(), history


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "copy"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def problem_of(directory: Path) -> str:
    proof = prove_peer(directory)
    assert not proof.ok and proof.state_root == ""
    assert proof.problem
    return proof.problem


def test_a_whole_directory_is_proved_from_its_oldest_checkpoint(whole):
    directory, history = whole
    proof = prove_peer(directory)
    assert proof.problem == ""
    assert proof.ok
    assert (proof.from_op, proof.to_op, proof.ops) == (0, 6, 6)
    assert proof.state_root == history.roots[6].hex()
    assert (proof.run, proof.run_key) == ("proved", RUN.peer_id.hex())
    assert proof.records == len(history.records)
    assert proof.text == TextStatus(1, 2, 9)


def test_a_checkpoint_that_names_another_place_in_the_text_is_found(copy):
    path = sorted(copy.glob("checkpoints/*/manifest.json"))[-1]
    path.write_bytes(path.read_bytes().replace(b'"used": 2', b'"used": 3'))
    assert "another place in the text" in problem_of(copy)


def test_it_is_proved_again_and_nothing_was_changed(whole):
    directory, _ = whole
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert prove_peer(directory).ok
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_without_the_oldest_results_the_proof_starts_at_a_newer_checkpoint(copy):
    for path in result_paths(copy)[:2]:
        path.unlink()
    proof = prove_peer(copy)
    assert proof.ok and (proof.from_op, proof.to_op) == (4, 6)


def test_a_last_round_whose_result_never_came_is_left_out(copy):
    result_paths(copy)[-1].unlink()
    proof = prove_peer(copy)
    assert proof.ok and (proof.to_op, proof.ledger_op) == (5, 6)


def test_a_result_that_is_missing_in_between_is_a_problem(copy):
    result_paths(copy)[-2].unlink()
    assert "result of round 5 is missing" in problem_of(copy)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ledger.bin", "ledger"),
        ("run.msgpack", "run file"),
        ("identity.json", "identity.json"),
        ("results/00000001.bin", "00000001.bin"),
        ("results/00000006.bin", "00000006.bin"),
        ("checkpoints/op-000000/manifest.json", "op-000000"),
        ("checkpoints/op-000004/model.safetensors", "op-000004"),
        ("checkpoints/op-000004/outer.safetensors", "op-000004"),
    ],
)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0])
def test_one_altered_byte_in_any_file_is_found_and_the_file_is_named(copy, name, word, part):
    path = copy / name
    flip(path, int(part * (path.stat().st_size - 1)))
    assert word in problem_of(copy)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ledger.bin", "ledger is empty"),
        ("run.msgpack", "missing"),
        ("identity.json", "missing"),
        ("checkpoints/op-000004/manifest.json", "damaged"),
    ],
)
def test_a_missing_file_is_named(copy, name, word):
    (copy / name).unlink()
    assert word in problem_of(copy)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.integers(1, 255))
def test_whatever_happens_to_a_byte_of_the_ledger_no_other_state_is_proved(whole, place, mask):
    directory, history = whole
    path = directory / "ledger.bin"
    before = path.read_bytes()
    data = bytearray(before)
    data[int(place * (len(data) - 1))] ^= mask
    try:
        path.write_bytes(data)
        proof = prove_peer(directory)
    finally:
        path.write_bytes(before)
    assert not proof.ok or proof.state_root == history.roots[6].hex()


def test_a_ledger_that_attests_another_state_is_a_problem(tmp_path):
    history = History(tmp_path / "ann")
    history.commit(attest=False)
    right, history.driver.root = history.driver.root, b"x" * 32
    history.add_attest(1)
    history.driver.root = right
    assert "not the one that the ledger attests" in problem_of(history.close())


def test_a_checkpoint_that_nothing_vouches_for_is_a_problem(tmp_path):
    history = History(tmp_path / "ann")
    history.commit(attest=False)
    path = history.save()
    shutil.rmtree(path.parent / "op-000000")
    assert "attests no state" in problem_of(history.close())


def test_what_the_run_went_back_behind_is_left_aside(tmp_path):
    """Rounds 2 and 3 are cancelled and made again; files of the old ones lie about."""
    history = usual(tmp_path / "ann")
    history.add(Rewind(1, "nobody holds round 2"))
    cancelled = prove_peer(history.close())
    assert cancelled.ok and (cancelled.from_op, cancelled.to_op) == (0, 1)
    assert cancelled.state_root == history.roots[1].hex()


def test_a_checkpoint_of_a_round_that_the_ledger_does_not_know_is_a_problem(copy):
    folder = copy / "checkpoints" / "op-000004"
    folder.rename(copy / "checkpoints" / "op-000009")
    assert "op-000009" in problem_of(copy)


def test_a_directory_without_checkpoints_proves_nothing(copy):
    shutil.rmtree(copy / "checkpoints")
    assert "no checkpoint" in problem_of(copy)


def test_a_running_peers_directory_is_not_looked_at(copy):
    storage = PeerStorage(copy)
    with pytest.raises(UserError) as caught:
        prove_peer(copy)
    assert caught.value.code == "SWT-E404"
    storage.close()
    assert prove_peer(copy).ok


def test_the_command_prints_one_object_and_its_status_tells(copy, capsys):
    assert main(["verify", str(copy), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["problem"] == ""
    assert {"ops", "from_op", "to_op", "state_root"} <= told.keys()
    assert main(["verify", str(copy)]) == 0
    assert "Proved." in capsys.readouterr().out
    flip(copy / "results" / "00000006.bin", 12)
    assert main(["verify", str(copy), "--json"]) == 65
    out, err = capsys.readouterr()
    assert not json.loads(out)["ok"]
    assert "SWT-E807" in err and "00000006.bin" in err


def test_a_directory_in_which_nothing_ran_is_told(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 66
    assert "SWT-E806" in capsys.readouterr().err

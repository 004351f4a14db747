"""A directory proves every group that its ledger names, and says per group what it has proved."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from swarmtrain.cli.main import main
from swarmtrain.peer.disk.group_storage import PROOFS, result_path, result_paths
from swarmtrain.verify.coordinator_state import prove_coordinator
from swarmtrain.verify.peer_state import prove_peer
from swarmtrain.verify.wrong_sums import wrong_sums
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.wire.records import Books
from tests.verify.history import History, LaterGroup
from tests.verify.test_coordinator_state import kept as kept_log
from tests.verify.test_peer_state import flip
from tests.verify.test_wrong_sums import Committed, kept


def of_two(directory: Path) -> tuple[History, LaterGroup]:
    """Rounds 1 to 3 of group 0, amid them rounds 1 and 2 of group 1."""
    first = History(directory)
    first.commit()
    second = LaterGroup(first)
    second.commit()
    first.commit()
    second.skip()
    first.commit()
    second.commit()
    return first, second


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[History, LaterGroup]:
    first, second = of_two(tmp_path_factory.mktemp("groups") / "ann")
    first.close()
    return first, second


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole[0].directory, tmp_path / "copy"))


def test_every_group_is_proved(whole) -> None:
    first, second = whole
    proof = prove_peer(first.directory)
    assert proof.ok and proof.problem == ""
    of_first, of_second = proof.groups
    assert (of_first.group, of_first.from_record, of_first.to_op) == (0, 0, 3)
    assert of_first.state_root == proof.state_root == first.roots[3].hex()
    assert (of_second.group, of_second.from_record, of_second.to_op) == (1, second.index, 3)
    assert (of_second.from_op, of_second.ops) == (0, 3)
    assert of_second.state_root == second.roots[3].hex()


def test_an_altered_result_of_the_second_group_is_found(copy: Path, capsys) -> None:
    path = result_path(copy / "groups" / "1", 3)
    flip(path, path.stat().st_size - 1)
    proof = prove_peer(copy)
    assert not proof.ok and proof.problem.startswith("Group 1: ") and "slice" in proof.problem
    assert [one.ok for one in proof.groups] == [True, False]
    assert main(["verify", str(copy)]) == 65
    assert "Group 1" in capsys.readouterr().err


def test_a_result_of_the_second_group_that_was_taken_out_is_found(copy: Path) -> None:
    result_path(copy / "groups" / "1", 1).unlink()
    assert "round 1 is missing" in prove_peer(copy).problem


def test_a_group_whose_state_was_taken_out_is_found(copy: Path) -> None:
    shutil.rmtree(copy / "groups" / "1" / "checkpoints")
    assert "Group 1: There is no checkpoint" in prove_peer(copy).problem
    shutil.rmtree(copy / "groups")
    proof = prove_peer(copy)
    assert not proof.ok and proof.problem.startswith("Group 1: ")


def test_a_folder_of_a_group_that_the_ledger_lacks_is_found(copy: Path) -> None:
    shutil.copytree(copy / "groups" / "1", copy / "groups" / "2")
    assert "that the ledger lacks" in prove_peer(copy).problem


def test_of_a_group_of_others_the_decisions_are_proved(tmp_path: Path, capsys) -> None:
    first = History(tmp_path / "ann")
    LaterGroup(first, is_in=False)
    first.commit()
    directory = first.close()
    proof = prove_peer(directory)
    assert proof.ok, proof.problem
    assert proof.groups[1].state_root == "" and "no more" in proof.groups[1].proves
    assert main(["verify", str(directory)]) == 0
    assert "only the decisions" in capsys.readouterr().out


def test_the_command_says_of_each_group_from_where_it_is_proved(whole, capsys) -> None:
    first, second = whole
    assert main(["verify", str(first.directory)]) == 0
    said = capsys.readouterr().out
    assert "0, from record 0 on" in said and f"1, from record {second.index} on" in said
    assert first.roots[3].hex() in said and second.roots[3].hex() in said
    assert main(["verify", str(first.directory), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 2


def test_a_run_of_one_group_is_told_as_ever(tmp_path: Path, capsys) -> None:
    history = History(tmp_path / "ann")
    history.commit()
    assert main(["verify", str(history.close()), "--json"]) == 0
    assert "groups" not in json.loads(capsys.readouterr().out)


def test_a_coordinators_directory_proves_the_decisions_of_every_group(whole, tmp_path) -> None:
    first, second = whole
    proof = prove_coordinator(kept_log(first, tmp_path / "up"))
    assert proof.ok
    assert [(one.from_record, one.to_op) for one in proof.groups] == [(0, 3), (second.index, 3)]
    assert proof.groups[1].state_root == second.roots[3].hex()


def test_people_of_a_run_in_stages_read_of_stages(tmp_path: Path, capsys) -> None:
    first, _ = of_two(tmp_path / "ann")
    first.add(Books(0, 8, 8, (8, 8), (), 2, bytes(32)))
    first.close()
    directory = kept_log(first, tmp_path / "up")
    assert prove_coordinator(directory).in_stages is True
    assert main(["verify", str(directory)]) == 0
    text = capsys.readouterr().out
    assert "Proved of stage 0, 1." in text and "group" not in text


def test_a_wrong_sum_convicts_in_its_own_group_alone(tmp_path: Path) -> None:
    committed = Committed(is_wrong=True)
    op = committed.view
    op.plan = msgspec.structs.replace(op.plan, group=1)
    proof = msgspec.structs.replace(committed.proof(), group=1)
    kept(tmp_path, proof.to_bytes())
    (found,) = wrong_sums(tmp_path, GroupView(group=1, commits={1: op}))
    assert found.owner == committed.drawn.owner.hex()
    (found,) = wrong_sums(tmp_path, GroupView(commits={1: op}))
    assert found.owner == "" and "group 1" in found.problem
    assert (tmp_path / PROOFS).is_dir() and not result_paths(tmp_path)

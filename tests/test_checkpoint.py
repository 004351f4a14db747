import errno
import hashlib
import json
import logging
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from swarmtrain import checkpoint
from swarmtrain.checkpoint import CheckpointDamaged, CheckpointError, CheckpointFull, RunFacts
from swarmtrain.models.tensors import Layout, LayoutMismatch

BLOCK = 64
FILES = ("manifest.json", "model.safetensors", "outer.safetensors")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3, bias=False))


LAYOUT = Layout.of(model(), BLOCK)


def facts(op: int) -> RunFacts:
    return RunFacts(run="demo", config_hash=b"c" * 32, op=op, state_root=bytes([op]) * 32)


def state(op: int) -> list[tuple[str, Tensor]]:
    anchor = torch.zeros(LAYOUT.padded)
    anchor[: LAYOUT.num_values] = torch.arange(LAYOUT.num_values) + op / 8
    return [("anchor", anchor), ("momentum", torch.full((LAYOUT.padded,), float(op)))]


def save(directory: Path, op: int) -> checkpoint.Checkpoint:
    return checkpoint.save(directory, facts(op), LAYOUT, state(op))


def assert_equal_state(first: list[tuple[str, Tensor]], second: list[tuple[str, Tensor]]) -> None:
    assert [name for name, _ in first] == [name for name, _ in second]
    for (name, a), (_, b) in zip(first, second, strict=True):
        assert torch.equal(a, b), name


def test_a_saved_state_is_loaded_bit_for_bit_with_its_facts(tmp_path: Path) -> None:
    saved = save(tmp_path / "new" / "folder", op=12)
    assert saved.path.name == "op-000012"
    loaded = checkpoint.load(saved.path, manifest_hash=saved.manifest_hash)
    assert loaded.checkpoint == saved
    assert loaded.checkpoint.facts == facts(12)
    assert_equal_state(loaded.arrays(LAYOUT), state(12))


def test_a_loaded_state_outlives_its_folder(tmp_path: Path) -> None:
    loaded = checkpoint.load(save(tmp_path, op=1).path)
    save(tmp_path, op=2)
    checkpoint.prune(tmp_path, keep=1)
    assert not loaded.checkpoint.path.exists()
    assert_equal_state(loaded.arrays(LAYOUT), state(1))


def test_the_model_file_loads_with_safetensors_alone(tmp_path: Path) -> None:
    saved = save(tmp_path, op=1)
    fresh = model()
    fresh.load_state_dict(load_file(saved.path / "model.safetensors"), strict=True)
    assert torch.equal(LAYOUT.read(fresh), state(1)[0][1])


def test_two_peers_write_identical_bytes(tmp_path: Path) -> None:
    first, second = save(tmp_path / "ada", op=3), save(tmp_path / "bob", op=3)
    assert first.manifest_hash == second.manifest_hash
    for name in FILES:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()


def test_the_manifest_names_every_file_by_hash_and_is_named_by_its_own(tmp_path: Path) -> None:
    saved = save(tmp_path, op=3)
    raw = (saved.path / "manifest.json").read_bytes()
    manifest = json.loads(raw)
    assert hashlib.sha256(raw).digest() == saved.manifest_hash
    assert sorted(path.name for path in saved.path.iterdir()) == sorted(FILES)
    for name, described in manifest["files"].items():
        data = (saved.path / name).read_bytes()
        assert described == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert manifest["layout"] == LAYOUT.digest.hex()
    assert manifest["state_root"] == (bytes([3]) * 32).hex()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["changed", "cut", "longer", "missing", "empty"])
def test_a_damaged_file_is_found_before_anything_is_used(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, op=1)
    newest = save(tmp_path, op=2)
    path = newest.path / name
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "cut": data[:middle],
                "longer": data + b"\0",
                "empty": b"",
            }[damage]
        )
    with pytest.raises(CheckpointDamaged, match=r"op-000002 is damaged.*Nothing of it was used"):
        checkpoint.load(newest.path, manifest_hash=newest.manifest_hash)
    if name != "manifest.json" or damage != "changed":
        with caplog.at_level(logging.WARNING):
            found = checkpoint.latest(tmp_path)
        assert found is not None
        assert found.checkpoint.facts.op == 1
        assert "op-000002" in caplog.text


def test_a_whole_checkpoint_that_the_ledger_does_not_name_is_refused(tmp_path: Path) -> None:
    saved = save(tmp_path, op=1)
    with pytest.raises(CheckpointDamaged, match="ledger"):
        checkpoint.load(saved.path, manifest_hash=b"x" * 32)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("op", "three"),
        ("state_root", "not hex"),
        ("arrays", ["anchor", "anchor"]),
        ("files", {"../escape": {"bytes": 1, "sha256": ""}}),
        ("surprise", 1),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    saved = save(tmp_path, op=1)
    path = saved.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CheckpointDamaged):
        checkpoint.load(saved.path)


@pytest.mark.parametrize("failing_name", FILES)
@pytest.mark.parametrize("failing_op", [2, 1])
def test_a_full_disk_leaves_the_previous_checkpoint_as_it_was(
    tmp_path: Path, failing_name: str, failing_op: int
) -> None:
    # failing_op 1 writes the same op again: even then the old folder must survive.
    before = save(tmp_path, op=1)

    def write_until_full(path: Path, data: checkpoint.Contents) -> None:
        data = data if isinstance(data, bytes) else b"".join(data)
        if path.name == failing_name:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        checkpoint.write_file(path, data)

    with pytest.raises(CheckpointFull, match="Free some space"):
        checkpoint.save(
            tmp_path, facts(failing_op), LAYOUT, state(failing_op), write=write_until_full
        )
    assert [path.name for path in tmp_path.iterdir()] == ["op-000001"]
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.checkpoint == before
    assert_equal_state(found.arrays(LAYOUT), state(1))


def test_a_real_write_that_the_system_cuts_short_leaves_the_previous_checkpoint(
    tmp_path: Path,
) -> None:
    # A limit on file sizes is the one full disk that needs no privileges.
    before = save(tmp_path, op=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(CheckpointFull, match="Free some space"):
            save(tmp_path, op=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["op-000001"]
    assert checkpoint.load(before.path).checkpoint == before


def test_other_write_errors_are_not_called_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="permissions") as caught:
        save(tmp_path / "file", op=1)
    assert not isinstance(caught.value, CheckpointFull)


def test_saving_an_op_again_replaces_a_damaged_folder(tmp_path: Path) -> None:
    saved = save(tmp_path, op=1)
    (saved.path / "model.safetensors").write_bytes(b"damaged")
    assert save(tmp_path, op=1) == saved
    assert checkpoint.load(saved.path).checkpoint == saved
    assert [path.name for path in tmp_path.iterdir()] == ["op-000001"]


def test_latest_is_the_highest_op_and_ignores_half_written_and_foreign_folders(
    tmp_path: Path,
) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.latest(tmp_path) is None
    for op in (2, 10, 9):
        save(tmp_path, op)
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / "op-latest").mkdir()
    (tmp_path / "op-000011").mkdir()
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.checkpoint.facts.op == 10


def test_pruning_keeps_the_newest_and_clears_interrupted_writes(tmp_path: Path) -> None:
    for op in (1, 2, 3):
        save(tmp_path, op)
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / "notes.txt").write_bytes(b"mine")
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "op-000002",
        "op-000003",
    ]
    with pytest.raises(ValueError, match="keep"):
        checkpoint.prune(tmp_path, keep=0)
    checkpoint.prune(tmp_path / "nowhere", keep=1)


def test_checkpoints_of_a_cancelled_past_go_and_do_not_displace_those_to_come(
    tmp_path: Path,
) -> None:
    for op in (1, 5, 9):
        save(tmp_path, op)
    checkpoint.forget_after(tmp_path, 4)
    save(tmp_path, 5)
    checkpoint.prune(tmp_path, keep=2)
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["op-000001", "op-000005"]
    checkpoint.forget_after(tmp_path / "nowhere", 0)


def test_a_checkpoint_of_another_model_or_block_is_refused(tmp_path: Path) -> None:
    loaded = checkpoint.load(save(tmp_path, op=1).path)
    with pytest.raises(LayoutMismatch, match=r"0\.weight is 5 x 7, and should be 9 x 7"):
        loaded.arrays(Layout.of(nn.Sequential(nn.Linear(7, 9)), BLOCK))
    with pytest.raises(LayoutMismatch, match="types"):
        loaded.arrays(Layout.of(model().to(torch.bfloat16), BLOCK))
    with pytest.raises(LayoutMismatch, match="block"):
        loaded.arrays(Layout.of(model(), 7))


def test_a_state_without_an_anchor_or_with_values_in_its_padding_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="anchor"):
        checkpoint.save(tmp_path, facts(1), LAYOUT, state(1)[1:])
    for value in (1.0, -0.0):
        arrays = state(1)
        arrays[0][1][-1] = value
        with pytest.raises(ValueError, match="padding"):
            checkpoint.save(tmp_path, facts(1), LAYOUT, arrays)
    assert not list(tmp_path.iterdir())


def test_the_newest_checkpoint_is_named_from_manifests_alone_and_a_cut_off_one_passed_over(
    tmp_path,
):
    assert checkpoint.claimed(tmp_path) is None
    older, newer = save(tmp_path, op=1), save(tmp_path, op=2)
    assert checkpoint.claimed(tmp_path) == newer.facts
    path = newer.path / checkpoint.OUTER_FILE
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoint.claimed(tmp_path) == older.facts


def test_a_manifest_names_its_group_unless_it_is_the_first(tmp_path):
    later = replace(facts(1), group=3)
    saved = checkpoint.save(tmp_path, later, LAYOUT, state(1))
    assert checkpoint.load(saved.path).checkpoint.facts == later
    assert b'"group": 3' in (saved.path / checkpoint.MANIFEST_FILE).read_bytes()
    first = save(tmp_path, op=1)
    assert b"group" not in (first.path / checkpoint.MANIFEST_FILE).read_bytes()


def test_a_manifest_says_where_the_run_was_in_its_text(tmp_path):
    there = replace(facts(1), text=(2, 3, 9))
    saved = checkpoint.save(tmp_path, there, LAYOUT, state(1))
    assert checkpoint.load(saved.path).checkpoint.facts == there
    said = json.loads((saved.path / checkpoint.MANIFEST_FILE).read_bytes())
    assert said["text"] == {"pass": 2, "used": 3, "pieces": 9}
    without = save(tmp_path, op=1)
    assert "text" not in json.loads((without.path / checkpoint.MANIFEST_FILE).read_bytes())


def test_a_file_of_tensors_is_made_as_safetensors_makes_it() -> None:
    tensors = {
        "blocks.10.w": torch.randn(3, 4), "blocks.9.w": torch.randn(2), "ä": torch.tensor(1.5),
        "none": torch.empty(0, 3),
    }  # fmt: skip
    for metadata in (None, {"format": "pt"}, {"of": '{"a": "\\u00e4 "b""}'}):
        made = b"".join(checkpoint.tensor_file(tensors, metadata))
        assert made == safetensors.torch.save(tensors, metadata=metadata)

"""Weights that a run begins with, at the coordinator: looked at, and given out by hash."""

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.control_lane import INITIAL_PIECE_BYTES
from swarmtrain.coordinator.initial import Initial, keep, kept, open_initial
from swarmtrain.errors import UserError
from swarmtrain.models.byte_transformer import build_model

MODEL = ModelSection(layers=1, width=16, heads=2, context=16)
CONFIG = RunConfig(run=RunSection(name="tests"), model=MODEL)
CUSTOM = RunConfig(run=RunSection(name="tests"), model=ModelSection(kind="custom"))


def saved(folder: Path, **changes: torch.Tensor | None) -> Path:
    """A model's file; parameters are changed, added or left out."""
    state = dict(build_model(MODEL, seed=3).state_dict())
    for name, tensor in changes.items():
        state.pop(name, None)
        if tensor is not None:
            state[name] = tensor
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    return folder


def refused(place: Path, config: RunConfig = CONFIG) -> UserError:
    with pytest.raises(UserError) as caught:
        open_initial(place, config)
    assert caught.value.remedy
    return caught.value


def test_pieces_are_given_out_by_hash_and_make_the_file(tmp_path: Path) -> None:
    large = torch.arange(600_000, dtype=torch.float32)
    folder = saved(tmp_path / "model", large=large)
    found = open_initial(folder, CUSTOM)
    listed = found.piece(bytes.fromhex(found.name))
    assert listed == found.hashes and len(listed) == 3 * 32
    pieces = [found.piece(listed[at : at + 32]) or b"" for at in range(0, len(listed), 32)]
    assert [len(one) for one in pieces[:2]] == [INITIAL_PIECE_BYTES] * 2
    assert b"".join(pieces) == (folder / "model.safetensors").read_bytes()
    assert found.piece(listed[1:33]) is None and found.piece(bytes(32)) is None


def test_a_file_that_changes_afterwards_is_not_given_out(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    found = open_initial(folder / "model.safetensors", CONFIG)
    first = found.hashes[:32]
    assert found.piece(first)
    saved(folder, **{"norm.weight": torch.zeros(16)})
    assert found.piece(first) is None
    (folder / "model.safetensors").unlink()
    assert found.piece(first) is None


def test_other_shapes_are_told_by_the_first_three_differences(tmp_path: Path) -> None:
    changes = {
        "embedding.weight": torch.zeros(256, 8),
        "blocks.0.mlp_up.weight": None,
        "norm.weight": torch.zeros(16, dtype=torch.int64),
        "other": torch.zeros(2),
        "more": torch.zeros(2),
    }
    error = refused(saved(tmp_path / "model", **changes))
    assert error.code == "SWT-E451"
    assert "embedding.weight is 256 x 8, and should be 256 x 16" in error.what
    assert "blocks.0.mlp_up.weight is missing" in error.what
    assert "is none of the model's, and 2 more" in error.what
    error = refused(saved(tmp_path / "whole", **{"norm.weight": torch.zeros(16).bool()}))
    assert "norm.weight is of type BOOL" in error.what


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 7, b"\xff" * 20, (4).to_bytes(8, "little") + b"[1]x",
        (2).to_bytes(8, "little") + b"[]",
        (60).to_bytes(8, "little")
        + json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    assert refused(path).code == refused(path, CUSTOM).code == "SWT-E454"
    assert refused(tmp_path / "nothing").code == "SWT-E454"


def test_it_is_known_in_later_lives(tmp_path: Path) -> None:
    assert kept(tmp_path) is None
    made = Initial("/somewhere", hashlib.sha256(b"piece").digest())
    keep(tmp_path, made)
    assert kept(tmp_path) == made
    (tmp_path / "initial.msgpack").write_bytes(b"nonsense")
    with pytest.raises(UserError) as caught:
        kept(tmp_path)
    assert caught.value.code == "SWT-E454"

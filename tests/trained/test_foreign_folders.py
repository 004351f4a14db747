"""Folders that somebody else has made: what they hold may not hang, fill or steer this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from swarmtrain.cli.main import main
from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models import hf
from swarmtrain.trained.export import export
from swarmtrain.trained.opened import open_trained
from tests.trained.test_export import peer

MODEL = ModelSection(layers=1, width=16, heads=2, context=16)
SMALL = RunConfig(run=RunSection(name="tests"), model=MODEL)

MODEL_FILE, FACTS, MANIFEST = "model.safetensors", "swarmtrain.json", "manifest.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path / "out", [peer(tmp_path / "state" / "a", 0, config=SMALL)])
    return tmp_path / "out"


def change(path: Path, change_it: Callable[[Any], object]) -> None:
    said = json.loads(path.read_bytes())
    change_it(said)
    path.write_text(json.dumps(said))


def with_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Other weights, and a manifest that vouches for them."""
    import hashlib

    data = safetensors.torch.save(tensors)
    (folder / MODEL_FILE).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    change(folder / MANIFEST, lambda said: said.update(model_sha256=digest))


@pytest.mark.parametrize("name", [MODEL_FILE, FACTS, MANIFEST, "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "terabytes", "folder"])
def test_what_is_no_file_or_has_no_end_is_refused_at_once(
    folder: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
    assert main(["generate", str(folder), "x", "--tokens", "1"]) not in (0, 70)
    said = capsys.readouterr().err
    assert "SWT-E803" in said or "SWT-E806" in said, said


@pytest.mark.parametrize(
    "name",
    ["ledger.bin", "run.msgpack", "identity.json", "lock", "where.json", "ledger-image.bin",
     "results/00000001.bin", "proofs/00000001.proof", "checkpoints/op-000000/manifest.json",
     "checkpoints/op-000000/model.safetensors", "checkpoints/op-000000/outer.safetensors",
     "ledger.sqlite"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_command_waits_for_what_is_no_file_in_a_state_directory(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = peer(tmp_path / "a", 0, config=SMALL)
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for words in (
        ["verify", str(directory)],
        ["export", str(directory), "--to", str(tmp_path / "out")],
        ["why", "1", "--state-dir", str(directory)],
        ["status", "--state-dir", str(directory)],
        ["generate", str(directory), "x", "--tokens", "1"],
    ):
        assert main(words) != 70, capsys.readouterr().err


def test_a_files_head_is_compared_before_a_model_of_other_sizes_gets_memory(folder: Path) -> None:
    """The model of these few bytes would take 13 GB."""
    sizes = {"layers": 64, "width": 2048, "heads": 2, "context": 60_000}
    change(folder / FACTS, lambda said: said["model"].update(sizes))
    with pytest.raises(UserError, match="SWT-E451"):
        open_trained(str(folder))  # which makes no model yet


@pytest.mark.parametrize(
    "sizes",
    [{"layers": 10**15}, {"width": -4}, {"context": 10**12}, {"vocabulary": 10**15}, {"heads": 0},
     {"kind": "huggingface", "config": "[" * 10_000}, {"kind": "nobody's"}],
)  # fmt: skip
def test_settings_outside_their_ranges_are_refused_before_anything_is_counted(
    folder: Path, sizes: dict[str, Any]
) -> None:
    change(folder / FACTS, lambda said: said["model"].update(sizes))
    with pytest.raises(UserError) as caught:
        open_trained(str(folder))
    assert caught.value.code == "SWT-E803" and "model." in caught.value.what


@pytest.mark.parametrize("name", [FACTS, MANIFEST])
def test_deep_nesting_is_refused_in_words(folder: Path, name: str) -> None:
    (folder / name).write_text('{"format": ' + "[" * 100_000 + "}")
    with pytest.raises(UserError, match="SWT-E803"):
        open_trained(str(folder))


@pytest.mark.parametrize(
    "head",
    [b"{}", b"[" * 100_000, b'{"a":1}', b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
     b'{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}',
     b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":[' + b"999999999999," * 99_999 + b"1]}}"],
)  # fmt: skip
def test_heads_of_weights_that_make_no_sense_are_refused(folder: Path, head: bytes) -> None:
    (folder / MODEL_FILE).write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    with pytest.raises(UserError, match=r"SWT-E(803|451)"):
        open_trained(str(folder))


def test_a_head_that_claims_to_be_endless_is_refused(folder: Path) -> None:
    (folder / MODEL_FILE).write_bytes((1 << 63).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="SWT-E803"):
        open_trained(str(folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_weights_that_are_no_numbers_are_told_by_name(
    folder: Path, value: float, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tensors = safetensors.torch.load_file(folder / MODEL_FILE)
    with_weights(folder, {name: torch.full_like(one, value) for name, one in tensors.items()})
    (tmp_path / "text").write_text("some words to judge by\n" * 9)
    for words in (["generate", str(folder), "x"],
                  ["evaluate", str(folder), "--data", str(tmp_path / "text")]):  # fmt: skip
        assert main(words) == 65
        assert "SWT-E455" in capsys.readouterr().err


def test_names_in_a_folder_do_not_steer_the_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder / FACTS, lambda said: said.update(run="x\x1b[2J\x9b31m\u202e\nProved."))
    main(["generate", str(folder), "x"])
    tensors = safetensors.torch.load_file(folder / MODEL_FILE)
    change(folder / FACTS, lambda said: said.update(run="tests"))
    with_weights(folder, {f"{name}\x1b]0;x\x07": one for name, one in tensors.items()})
    main(["generate", str(folder), "x"])
    strange = tmp_path / "a\x1b[31m\x9b"
    (tmp_path / "state" / "a").rename(strange)
    main(["generate", f"{strange}\x1b", "x"])
    main(["export", str(strange), "--to", str(tmp_path / "new\x1b[1m")])
    main(["verify", str(strange)])
    main(["verify", str(strange), "--json"])
    found = capsys.readouterr()
    for said in (found.out, found.err):
        assert not set(said) & {"\x1b", "\x9b", "\x07", "\u202e"}
    assert "\u241b" in found.err and "\u241b" in found.out


def test_a_tokenizer_that_is_a_link_to_something_private_is_not_exported(tmp_path: Path) -> None:
    directory = peer(tmp_path / "a", 0, config=SMALL)
    (tmp_path / "private").write_text("secret")
    (directory / "tokenizer.json").symlink_to(tmp_path / "private")
    export(tmp_path / "out", [directory])
    assert not any("secret" in path.read_text(errors="replace")
                   for path in (tmp_path / "out").iterdir())  # fmt: skip


def test_a_librarys_model_is_sketched_before_it_gets_memory() -> None:
    pytest.importorskip("transformers")
    said = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
    }  # fmt: skip
    section = ModelSection(kind="huggingface", context=16, config=json.dumps(said))
    shapes = {key: tuple(one.shape) for key, one in hf.build_model(section, 0).named_parameters()}
    assert hf.shapes_of(section, shapes) == shapes
    huge = {**said, "hidden_size": 1 << 20, "intermediate_size": 1 << 22}
    large = ModelSection(kind="huggingface", context=16, config=json.dumps(huge))
    assert hf.shapes_of(large, shapes).keys() == shapes.keys()
    many = ModelSection(
        kind="huggingface", context=16, config=json.dumps({**said, "num_hidden_layers": 2000})
    )
    with pytest.raises(UserError, match="more than the 21 parameters"):
        hf.shapes_of(many, shapes)

"""Weights that a run begins with, at the coordinator: looked at, and given out by hash."""

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from swarmtrain.config.settings import (
    ModelSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.coordinator.initial import Initial, keep, kept, open_initial, other_tokens
from swarmtrain.foundation.control_lane import INITIAL_PIECE_BYTES
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.models.weights_file import moment_name
from swarmtrain.peer.training.state_image import image_of
from swarmtrain.pipeline.cut import run_stages
from swarmtrain.pipeline.span import Span
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN
from swarmtrain_transport.coordinator.members.validation import genesis_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import Offer

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


def offered(config: RunConfig, module: nn.Module, **moments: float) -> bytes:
    """Root of the first state that a peer makes of a model, and of moments that are all alike."""
    layout = Layout.of(module, config.exchange.block)
    vector = layout.read(module)
    strategy = strategy_of(config, layout)
    strategy.set_initial(vector)
    arrays = dict(strategy.state_arrays())
    for name, value in moments.items():
        arrays[name] = torch.zeros(layout.padded)
        arrays[name][: layout.num_values] = value
    strategy.load_state(arrays)
    return image_of(strategy, layout.digest, layout.num_values, 0, copy=False).manifest.root


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"local"}))
def test_the_first_state_of_given_weights_is_known_for_every_strategy(
    tmp_path: Path, name: str
) -> None:
    config = RunConfig(
        run=RunSection(name="tests"),
        model=MODEL,
        outer=OuterSection(strategy=name, inner_steps=4, lr=0.9, momentum=0.5),
    )
    folder = saved(tmp_path / "model")
    (root,) = open_initial(folder, config).first_roots(config)
    assert root == offered(config, build_model(MODEL, seed=3))


@pytest.mark.parametrize("name", sorted(one for one in BUILT_IN if BUILT_IN[one].moments))
def test_moments_are_part_of_the_first_state_of_a_run_by_the_same_strategy(
    tmp_path: Path, name: str
) -> None:
    config = RunConfig(
        run=RunSection(name="tests"), model=MODEL,
        outer=OuterSection(strategy=name, inner_steps=4, lr=0.9, momentum=0.5),
    )  # fmt: skip
    model, moments = build_model(MODEL, seed=3), BUILT_IN[name].moments
    given = {
        moment_name(strategy, array, key): torch.full_like(one, 0.25).detach()
        for key, one in model.named_parameters()
        for strategy, arrays in ((name, (*moments, "waiting")), ("other", moments))
        for array in arrays
    }
    (root,) = open_initial(saved(tmp_path / "model", **given), config).first_roots(config)
    assert root == offered(config, model, **dict.fromkeys(moments, 0.25))


def test_moments_of_another_shape_are_refused(tmp_path: Path) -> None:
    name = moment_name("diloco", "momentum", "norm.weight")
    error = refused(saved(tmp_path / "model", **{name: torch.zeros(8)}))
    assert f"{name} is 8, and should be 16" in error.what


def test_it_is_known_of_bfloat16_and_of_each_stage(tmp_path: Path) -> None:
    model = build_model(MODEL, seed=3).bfloat16()
    halves = dict(model.state_dict())
    staged = RunConfig(
        run=RunSection(name="tests"), model=MODEL,
        pipeline=PipelineSection(stages=("embedding", "head")),
    )  # fmt: skip
    for weights in (halves, dict(model.float().state_dict())):
        folder = saved(tmp_path / str(len(list(tmp_path.iterdir()))), **weights)
        roots = open_initial(folder, staged).first_roots(staged)
        built, cut = run_stages(staged)
        span = Span(built, cut, range(2), seed=0)
        for stage, module in span.modules.items():
            with torch.no_grad():
                for key, parameter in module.named_parameters():
                    parameter.copy_(weights[key])
            assert roots[stage] == offered(staged, module)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_it_is_not_known_of_other_types_or_without_the_file(
    tmp_path: Path, kind: torch.dtype
) -> None:
    weights = {
        name: tensor.to(kind) for name, tensor in build_model(MODEL, seed=3).state_dict().items()
    }
    folder = saved(tmp_path / "model", **weights)
    found = open_initial(folder, CONFIG)
    assert found.first_roots(CONFIG) == found.first_roots(CUSTOM) == (b"",)
    (folder / "model.safetensors").unlink()
    assert found.first_roots(CONFIG) == (b"",)


def test_a_first_state_of_other_weights_is_refused() -> None:
    offer = Offer(b"r" * 32, 10, b"l" * 32)
    assert genesis_of(offer, 2, root=b"r" * 32) == genesis_of(offer, 2)
    with pytest.raises(RemoteFault, match="other weights"):
        genesis_of(offer, 2, root=b"x" * 32)


def test_what_people_have_in_place_of_an_export_says_the_way(tmp_path: Path) -> None:
    """A pickle is known by how it begins and never opened: it could run code."""
    torch.save(build_model(MODEL, seed=3).state_dict(), tmp_path / "saved.safetensors")
    assert "never opened" in refused(tmp_path / "saved.safetensors").remedy
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "pytorch_model.bin").write_bytes(b"anything")
    assert "never opened" in refused(tmp_path / "library").remedy
    (tmp_path / "library" / "model.safetensors.index.json").write_text("{}")
    assert "several files" in refused(tmp_path / "library").remedy
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "ledger.bin").write_bytes(b"")
    assert f"swarmtrain export {tmp_path / 'peer'}" in refused(tmp_path / "peer").remedy


def test_a_type_that_nothing_reads_is_named(tmp_path: Path) -> None:
    norm = torch.zeros(16).to(torch.float8_e4m3fn)
    error = refused(saved(tmp_path / "model", **{"norm.weight": norm}))
    assert error.code == "SWT-E454" and "norm.weight is of type F8_E4M3" in error.what


def test_a_model_of_other_tokens_is_warned_of(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    assert other_tokens(folder, CONFIG) == ""
    for said, warns in (("bytes", False), ("ab" * 32, True)):
        (folder / "swarmtrain.json").write_text(json.dumps({"data": {"tokenizer": said}}))
        assert bool(other_tokens(folder, CONFIG)) is warns
    for nonsense in ("[]", "{", '{"data": []}', '{"data": {"tokenizer": {}}}'):
        (folder / "swarmtrain.json").write_text(nonsense)
        other_tokens(folder, CONFIG)

"""A model in whose run routes left stages out is used without one of them, and says so."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from test_export import CONFIG, peer

from swarmtrain.cli.main import main
from swarmtrain.config.settings import PipelineSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.pipeline.missing import without
from swarmtrain.trained.collect import collect
from swarmtrain.trained.opened import open_trained

STAGES = ("embedding", "blocks.1", "blocks.2", "blocks.3", "head")
SKIPPING = msgspec.structs.replace(CONFIG, pipeline=PipelineSection(stages=STAGES, visit=4))


def test_it_is_the_model_with_fewer_layers(tmp_path: Path) -> None:
    whole, lacking = tmp_path / "whole", tmp_path / "lacking"
    peer(whole / "a", 0, 1, 2, 3, 4, config=SKIPPING)
    peer(lacking / "a", 0, 1, config=SKIPPING)
    peer(lacking / "b", 3, 4, config=SKIPPING)
    trained = open_trained(str(lacking))
    assert trained.name == "tests after round 0 without stage 2, which nobody here has"
    assert trained.config.model.layers == CONFIG.model.layers - 1
    model, all_of_it = (
        open_trained(str(one)).model(torch.device("cpu")) for one in (lacking, whole)
    )
    del all_of_it.blocks[2]
    tokens = torch.arange(12).reshape(1, 12)
    assert torch.equal(model(tokens), all_of_it(tokens))


def test_generate_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer(tmp_path / "a", 0, 1, 3, 4, config=SKIPPING)
    assert main(["generate", str(tmp_path / "a"), "def ", "--tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"].endswith(
        "without stage 2, which nobody here has"
    )
    assert main(["generate", str(tmp_path / "a"), "def ", "--tokens", "3"]) == 0
    assert "without stage 2, which nobody here has: 3 tokens in" in capsys.readouterr().err


@pytest.mark.parametrize("has", [(0, 1, 2, 3), (1, 2, 3, 4), (0, 1, 4), (0, 4)])
def test_no_more_may_be_missing_than_a_route_leaves_out_nor_an_end(
    tmp_path: Path, has: tuple[int, ...]
) -> None:
    peer(tmp_path / "a", *has, config=SKIPPING)
    with pytest.raises(UserError, match="None of these directories has a whole checkpoint"):
        open_trained(str(tmp_path))


def test_an_export_is_of_all_stages_and_so_is_a_model_that_no_route_has_left_out(
    tmp_path: Path,
) -> None:
    peer(tmp_path / "a", 0, 1, 3, 4, config=SKIPPING)
    with pytest.raises(UserError, match="checkpoint of stage 2"):
        collect([tmp_path])
    plain = msgspec.structs.replace(CONFIG, pipeline=PipelineSection(stages=STAGES))
    peer(tmp_path / "b" / "a", 0, 1, 3, 4, config=plain)
    with pytest.raises(UserError, match="checkpoint of stage 2"):
        open_trained(str(tmp_path / "b"))


def test_layers_close_up_in_their_order() -> None:
    model = build_model(SKIPPING.model, 0)
    config, left = without(SKIPPING, dict(model.named_parameters()), [1, 3])
    own = dict(model.named_parameters())
    # Stages: embedding and layer 0, layer 1, layer 2, layer 3, head.
    assert config.model.layers == 2 and not any(name.startswith("blocks.2") for name in left)
    for name, values in left.items():
        old = name.replace("blocks.1", "blocks.2")
        assert values is own[old]

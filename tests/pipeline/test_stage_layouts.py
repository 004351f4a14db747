"""Stages of a run's built-in model: the same cut and layouts with torch and without."""

import pytest

from swarmtrain.config.settings import ModelSection, PipelineSection, RunConfig, RunSection
from swarmtrain.config.stages import stage_cut, stage_layouts
from swarmtrain.models.byte_transformer import ByteTransformer
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.cut import run_stages
from swarmtrain.pipeline.span import Span

MODEL = ModelSection(layers=4, width=32, heads=2, context=16)


def config_of(stages: int | tuple[str, ...], model: ModelSection = MODEL) -> RunConfig:
    return RunConfig(
        run=RunSection(name="tests"), model=model, pipeline=PipelineSection(stages=stages)
    )


@pytest.mark.parametrize("stages", [1, 2, 3, 6, ("embedding", "blocks.1", "head")])
def test_a_peer_makes_what_the_coordinator_has_worked_out(stages: int | tuple[str, ...]) -> None:
    config = config_of(stages)
    model, cut = run_stages(config)
    assert cut == stage_cut(config)
    layouts = stage_layouts(config)
    assert len(layouts) == len({*layouts}) == config.pipeline.num_stages
    for stage, digest in enumerate(layouts):
        span = Span(model, cut, range(stage, stage + 1), seed=0)
        assert Layout.of(span.modules[stage], 64).digest == digest
    everything = Span(model, cut, range(len(cut)), seed=0)
    assert [Layout.of(part, 64).digest for part in everything.modules.values()] == list(layouts)


def test_a_model_in_one_piece_is_one_stage_with_its_own_layout() -> None:
    whole = ByteTransformer(config_of(1).model)
    assert stage_layouts(config_of(1)) == (Layout.of(whole, 64).digest,)


def test_layouts_of_a_model_that_peers_bring_are_not_known() -> None:
    assert stage_layouts(config_of(3, ModelSection(kind="custom"))) == (b"", b"", b"")

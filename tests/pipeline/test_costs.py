"""Costs of stages, beside what torch holds and counts."""

import pytest
import torch
from torch import Tensor

from swarmtrain.config.settings import (
    InnerSection,
    ModelSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.costs import (
    PROCESS_BYTES,
    most_slots_of,
    serving_words,
    slots_of,
    stage_needs,
    under_way_of,
)
from swarmtrain.pipeline.cut import passed, run_stages
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.speed import flops_per_s
from swarmtrain_transport.pipeline.coordinator.assignment import memory_of

MODEL = ModelSection(layers=6, width=128, heads=4, context=64)


def config_of(stages: int, model: ModelSection = MODEL) -> RunConfig:
    return RunConfig(
        run=RunSection(name="tests"), model=model, inner=InnerSection(batch=8),
        pipeline=PipelineSection(stages=stages, micro_batch=2, activations="none"),
    )  # fmt: skip


def test_an_embedding_that_is_a_stage_takes_some_time() -> None:
    config = RunConfig(
        run=RunSection(name="tests"), model=ModelSection(layers=1, width=16, heads=2, context=16),
        pipeline=PipelineSection(stages=3, micro_batch=1),
    )  # fmt: skip
    first, *others = (need.flops for need in stage_needs(config))
    assert 0 < first < min(others)


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        ModelSection(layers=6, width=256, heads=8, context=128),
        ModelSection(
            kind="transformer", layers=6, width=256, heads=8, context=128, kv_heads=4,
            vocabulary=500, tied=False,
        ),
    ],
)  # fmt: skip
def test_activations_are_what_waits_for_a_backward_pass(model: ModelSection) -> None:
    config = config_of(3, model)
    parts, cut = run_stages(config)
    given = torch.zeros(2, model.context, dtype=torch.int64)
    for stage, need in enumerate(stage_needs(config)):
        span = Span(parts, cut, range(stage, stage + 1), seed=0)
        weights = {one.untyped_storage().data_ptr() for one in span.modules[stage].parameters()}
        held: dict[int, Tensor] = {}

        def keep(tensor: Tensor, held=held, weights=weights) -> Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            _, output = span._with_graph(given, (stage,), 0)
        waits = sum(
            tensor.untyped_storage().nbytes()
            for place, tensor in held.items()
            if place not in weights
        )
        assert waits <= need.pass_bytes <= 1.5 * waits
        given = output.detach()


def test_operations_are_those_that_torch_counts() -> None:
    config = config_of(3)
    example = torch.zeros(2, MODEL.context, dtype=torch.int64)
    counted = [one.cost.flops for one in passed(built_in(MODEL), example)]
    for blocks, need in zip(run_stages(config)[1], stage_needs(config), strict=True):
        assert need.flops == pytest.approx(sum(counted[block] for block in blocks), rel=0.15)


def test_stages_of_a_large_model_take_their_share_of_it() -> None:
    large = ModelSection(layers=12, width=640, heads=10, context=64)
    whole = memory_of(stage_needs(config_of(1, large)), range(1)) - PROCESS_BYTES
    for stage in range(3):
        part = memory_of(stage_needs(config_of(3, large)), range(stage, stage + 1)) - PROCESS_BYTES
        assert part <= whole / 3 * 1.15


def test_a_span_takes_less_than_its_stages_apart() -> None:
    needs = stage_needs(config_of(3))
    apart = sum(memory_of(needs, range(stage, stage + 1)) for stage in range(3))
    assert apart - memory_of(needs, range(3)) == sum(need.entry_bytes for need in needs[1:])


def test_what_is_not_known_is_not_said() -> None:
    custom = config_of(3, ModelSection(kind="custom"))
    assert memory_of(stage_needs(custom), range(3)) == 0
    assert serving_words(custom, range(1, 3)) == "serves stages 1 to 2 (of 0 to 2)"
    words = serving_words(config_of(3), range(1, 2), "as it asked")
    assert words.startswith("serves stage 1 (of 0 to 2; blocks.2 to blocks.3; about 4")
    assert words.endswith(" MB): as it asked")


def test_own_micro_batches_under_way_are_no_more_than_a_step_and_than_others() -> None:
    def both(stages: int, batch: int, micro_batch: int = 0) -> tuple[int, int]:
        config = RunConfig(
            run=RunSection(name="t"), inner=InnerSection(batch=batch),
            pipeline=PipelineSection(stages=stages, micro_batch=micro_batch),
        )  # fmt: skip
        return under_way_of(config, slots_of(config)), slots_of(config)

    assert both(3, 8, 4) == (2, 6) and both(3, 8, 8) == (1, 6) and both(2, 32, 1) == (4, 4)
    assert both(3, 48) == (6, 6) and both(3, 8) == (6, 6) and both(1, 8) == (0, 0)


def test_slots_beyond_the_least_number_are_those_that_memory_has_room_for() -> None:
    small, none = config_of(3), config_of(1)
    assert most_slots_of(small) == 4 * slots_of(small) and not most_slots_of(none)
    large = config_of(3, ModelSection(kind="custom"))
    assert most_slots_of(large) == slots_of(large) + 4


def test_speed_is_of_the_fastest_of_some_products() -> None:
    times = iter([0, 4, 4, 5, 5, 5.5, *[6 + index % 2 * 0.125 for index in range(10)]])
    assert flops_per_s(1, torch.device("cpu"), clock=lambda: next(times)) == int(
        float(f"{2 * 512 * 256 * 1024 * 8:.1e}")
    )

"""Cuts of a model into stages, by what its blocks cost."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarmtrain.config.settings import ModelSection
from swarmtrain.config.stages import Cost, built_in_costs, cut, hop_bytes
from swarmtrain.foundation.errors import UserError
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in, of_modules
from swarmtrain.pipeline.cut import passed, stages_of
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_transport.limits import FRAME_BYTES_MAX

SMALL = ModelSection(layers=4, width=64, heads=4, context=32)
IDS = torch.zeros(2, 32, dtype=torch.int64)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(output, labels, reduction="sum")


def dearest(costs: list[Cost], stages: tuple[range, ...]) -> float:
    """The largest share of time or memory that a stage has."""
    flops, num_values = sum(one.flops for one in costs), sum(one.num_values for one in costs)
    return max(
        max(
            sum(costs[index].flops for index in stage) / flops,
            sum(costs[index].num_values for index in stage) / num_values,
        )
        for stage in stages
    )


def test_no_other_cut_has_a_cheaper_dearest_stage() -> None:
    rng = random.Random(2)
    for _ in range(60):
        count = rng.randint(1, 8)
        costs = [Cost(rng.choice([0, 1, 5, 9]) + 0.1, rng.randint(0, 9)) for _ in range(count)]
        costs[0] = Cost(costs[0].flops, 1)
        named = {str(index): one for index, one in enumerate(costs)}
        for num_stages in range(1, count + 1):
            found = cut(named, num_stages)
            assert [index for stage in found for index in stage] == list(range(count))
            assert len(found) == num_stages and all(found)
            best = min(
                dearest(costs, tuple(map(range, (0, *stops), (*stops, count))))
                for stops in itertools.combinations(range(1, count), num_stages - 1)
            )
            assert dearest(costs, found) == pytest.approx(best)


def test_equal_blocks_are_cut_evenly_although_one_dear_block_decides() -> None:
    costs = {str(index): Cost(6 if index == 8 else 1, 0) for index in range(9)}
    assert cut(costs, 3) == (range(4), range(4, 8), range(8, 9))


def test_a_large_head_has_fewer_layers_and_a_large_embedding_too() -> None:
    wide = {"embedding": Cost(0, 16), **{f"b{i}": Cost(12, 12) for i in range(6)}}
    stages = cut({**wide, "head": Cost(24, 24)}, 3)
    assert [len(stage) for stage in stages] == [3, 3, 2]


def test_a_cut_into_64_of_514_blocks_takes_no_time() -> None:
    costs = built_in_costs(ModelSection(layers=512, width=64))
    stages = cut(costs, 64)
    assert len(stages) == 64 and max(map(len, stages)) <= 10


def test_a_list_of_first_blocks_is_taken_as_it_is() -> None:
    costs = built_in_costs(SMALL)
    assert cut(costs, ["embedding", "blocks.3"]) == (range(4), range(4, 6))
    with pytest.raises(ValueError, match="must name blocks once each"):
        cut(costs, ["embedding", "head", "blocks.3"])


def test_what_is_known_of_the_built_in_model_is_what_is_found_on_the_meta_device() -> None:
    """Attention is counted in full there; the text that comes later is masked."""
    known, found = built_in_costs(SMALL), passed(built_in(SMALL), IDS)
    assert [one.num_values for one in known.values()] == [one.cost.num_values for one in found]
    for one, (name, cost) in zip(found, known.items(), strict=True):
        masked = 2 * SMALL.context * SMALL.width * name.startswith("blocks.")
        assert one.cost.flops == IDS.numel() * (cost.flops + masked)
    assert stages_of(built_in(SMALL), 3, IDS, "int8") == cut(known, 3)


class Pair(nn.Module):
    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, hidden


class Place(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.argmax(-1)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([nn.Linear(4, 4), nn.Linear(5, 4)], "block `1` does not take what comes to it"),
        ([nn.Linear(4, 4), Pair(), nn.Linear(4, 4)], "block `1` gives tuple"),
        ([nn.Linear(4, 4), Place(), nn.Embedding(4, 4)], "block `1` gives torch.int64"),
    ],
)
def test_blocks_that_do_not_follow_each_other_are_refused(modules, words: str) -> None:
    with pytest.raises(UserError) as caught:
        stages_of(of_modules(modules, loss), 2, torch.zeros(3, 4), "none")
    assert words in caught.value.what and caught.value.code == "SWT-E613"


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(UserError, match="must be from 1 to 2, the blocks of this model; it is 3"):
        stages_of(of_modules([nn.ReLU(), nn.ReLU()], loss), 3, torch.zeros(3, 4), "none")


@pytest.mark.parametrize(
    ("activations", "rows"), [("none", 512), ("float16", 1024), ("int8", 2030)]
)
def test_a_micro_batch_larger_than_a_frame_is_refused(activations: str, rows: int) -> None:
    width = FRAME_BYTES_MAX // 512 // 4
    with torch.device("meta"):
        model = of_modules([nn.Linear(4, width), nn.Linear(width, 1)], loss)
    stages_of(model, 2, torch.zeros(rows - 10, 4), activations)
    with pytest.raises(UserError, match="Set a smaller"):
        stages_of(model, 2, torch.zeros(rows + 100, 4), activations)


def test_shared_weights_are_refused_where_two_stages_have_them() -> None:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    model = of_modules([first, nn.ReLU(), last], loss)
    with pytest.raises(UserError, match="two stages share the same weights"):
        stages_of(model, 2, torch.zeros(3, 4), "none")


def test_bytes_of_a_hop_are_never_fewer_than_those_of_the_codec() -> None:
    model = ModelSection(width=1024)
    assert [hop_bytes(1, model, one) for one in ("none", "float16")] == [4096, 2048]
    assert hop_bytes(1, model, "int8") >= 1024 + 2 * 1024 // 16
    for rank, tokens in ((1, 256), (7, 256), (16, 257), (64, 256), (100, 60_000)):
        model, subspace = ModelSection(vocabulary=tokens), Subspace(rank, 128, tokens, 0)
        form = Boundary(ActivationCodec.INT8, (2, 5, 128), subspace).input_form
        assert hop_bytes(10, model, f"subspace-{rank}") >= form.num_bytes

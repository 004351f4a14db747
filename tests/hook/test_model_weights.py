"""Reading and replacing the weights of a model that somebody else made."""

import pytest
import torch
from torch import nn

from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain_optimizers.strategies.base import Moved


def test_float32_weights_are_replaced_in_place_and_read_back_exactly():
    model = nn.Linear(3, 2)
    before = list(model.parameters())
    weights = ModelWeights(model, Layout.of(model, 16))
    vector = weights.read_weights()
    vector[:8] += torch.arange(8) / 3
    weights.write_weights(vector)
    assert torch.equal(weights.read_weights(), vector)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))


def test_what_bfloat16_cannot_hold_is_given_back_until_a_step_changes_it():
    model = nn.Linear(3, 2).to(torch.bfloat16)
    weights = ModelWeights(model, Layout.of(model, 16))
    vector = torch.zeros(16)
    vector[:8] = 1 + torch.arange(1, 9) / 1000  # none of these is a bfloat16
    weights.write_weights(vector)
    rounded = Layout.of(model, 16).read(model)
    assert not torch.equal(rounded, vector)
    assert torch.equal(weights.read_weights(), vector)
    # A step moves one value; the others still give back exactly what was written.
    with torch.no_grad():
        model.bias[0] += 1
    moved = weights.read_weights()
    assert torch.equal(moved[:6], vector[:6])
    assert torch.equal(moved[7:], vector[7:])
    assert abs(float(moved[6] - vector[6]) - 1) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_live_weights_are_read_part_by_part_where_they_lie(dtype: torch.dtype):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)).to(dtype)
    layout = Layout.of(model, 16)
    weights = ModelWeights(model, layout)
    vector = weights.read_weights()
    vector[: layout.num_values] += torch.arange(layout.num_values) / 3
    weights.write_weights(vector)
    with torch.no_grad():
        model[0].weight += 1
    live, whole = weights.live_weights(), weights.read_weights()
    assert live.numel() == layout.padded
    for start, stop in ((0, 3), (5, 9), (4, layout.padded), (layout.num_values, layout.padded)):
        assert torch.equal(live[start:stop], whole[start:stop])
    shared = live[0:2].untyped_storage().data_ptr() == model[0].weight.untyped_storage().data_ptr()
    assert shared == (dtype == torch.float32)
    with torch.no_grad():
        model[0].weight += 1
    assert torch.equal(weights.live_weights()[0:17], weights.read_weights()[:17])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_that_moved_in_parts_are_as_if_all_were_written(dtype: torch.dtype):
    def made() -> tuple[ModelWeights, list[nn.Parameter]]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 3)).to(dtype)
        model[1].weight.data = model[1].weight.data.t().contiguous().t()
        assert not model[1].weight.is_contiguous()
        return ModelWeights(model, Layout.of(model, 16)), list(model.parameters())

    (whole, parameters), (parts, others) = made(), made()
    moved = Moved(((2, 7), (9, 13), (14, 17), (21, 32)), torch.arange(23) / 3)
    whole.write_weights(moved.put_in(whole.read_weights()))
    parts.write_moved(moved)
    for one, other in zip(parameters, others, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.read_weights()[:23], parts.read_weights()[:23])


def test_float64_weights_survive_a_round_trip_within_float32():
    model = nn.Linear(3, 2).double()
    weights = ModelWeights(model, Layout.of(model, 16))
    vector = weights.read_weights()
    weights.write_weights(vector)
    assert torch.equal(weights.read_weights(), vector)
    assert model.weight.dtype == torch.float64


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_what_is_beyond_a_types_range_is_held_at_its_largest_and_given_back(dtype: torch.dtype):
    model = nn.Linear(3, 2).to(dtype)
    layout = Layout.of(model, 16)
    weights = ModelWeights(model, layout)
    vector = torch.zeros(16)
    vector[:4] = torch.tensor([3.402e38, -3.402e38, 7e4, 0.5])
    weights.write_weights(vector)
    held = layout.read(model)
    largest = torch.finfo(dtype).max
    assert held[:2].tolist() == [largest, -largest]
    assert torch.equal(weights.read_weights(), vector)


def test_a_nan_that_is_written_is_gone_when_a_number_is():
    model = nn.Linear(3, 2).to(torch.float16)
    weights = ModelWeights(model, Layout.of(model, 16))
    vector = torch.zeros(16)
    vector[0] = torch.nan
    weights.write_weights(vector)
    assert weights.read_weights()[1:].eq(0).all()
    with torch.no_grad():
        model.weight[0, 0] = 0.25  # somebody's own mending
    assert weights.read_weights()[0] == 0.25

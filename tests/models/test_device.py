"""Models on devices, and the copies between them and host memory."""

import pytest
import torch
from torch import nn

from swarmtrain.config.options import Ways, parse_device
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models import copies
from swarmtrain.models.device import device_of, onto
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.trainer import BuiltinTrainer

has_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:12", "mps"])
def test_a_device_that_can_be_named_is_read(name: str) -> None:
    assert parse_device(name) == name


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "CPU", "cpu:0", "meta", "cuda:1x"])
def test_another_word_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(UserError, match=r"is no device") as found:
        parse_device(name)
    assert "cuda:1 or mps" in found.value.remedy


def test_auto_is_a_device_that_is_there() -> None:
    assert torch.ones(1, device=device_of("auto")).item() == 1
    assert device_of("cpu") == torch.device("cpu")


def test_a_card_that_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(UserError, match="There is no device cuda:99 here") as found:
        device_of("cuda:99")
    assert found.value.code == "SWT-E460" and "finds: cpu" in found.value.meaning


def test_a_trainer_on_a_device_that_is_not_there_says_so() -> None:
    with pytest.raises(UserError, match="There is no device cuda:99"):
        BuiltinTrainer(
            RunConfig(run=RunSection(name="x")), batches=pytest.fail, validation=(), seed=1,
            ways=Ways(device="cuda:99"),
        )  # fmt: skip


def test_parameters_of_any_float_type_and_order_in_memory_are_read_and_written() -> None:
    model = nn.ModuleDict({
        "plain": nn.Linear(3, 2), "short": nn.Linear(2, 2).to(torch.bfloat16),
        "long": nn.Linear(2, 1).double(), "turned": nn.Conv2d(2, 2, 2),
    })  # fmt: skip
    model["turned"].to(memory_format=torch.channels_last)
    layout = Layout.of(model, block=16)
    weights = ModelWeights(model, layout)
    vector = torch.linspace(-1, 1, layout.padded)
    vector[layout.num_values :] = 0
    weights.write_weights(vector)
    assert torch.equal(weights.read_weights(), vector)


@has_card
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_card_and_the_host_hold_the_same_values(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_VALUES", 1000)  # several turns of the buffers
    model = nn.Sequential(nn.Linear(40, 70), nn.Linear(70, 3), nn.Linear(3, 3))
    model.to(dtype)[:2].to("cuda")  # the last part stays: mixed devices
    layout = Layout.of(model, block=16)
    vector = torch.randn(layout.padded).to(dtype).float()
    vector[layout.num_values :] = 0
    layout.write(model, vector)
    for name, view in layout.named_views(vector).items():
        assert torch.equal(model.get_parameter(name).detach().cpu().float(), view)
    assert torch.equal(layout.read(model), vector)


@has_card
def test_a_written_vector_may_change_at_once_and_a_step_waits_for_it() -> None:
    model = nn.Linear(4000, 4000, bias=False, device="cuda")
    layout = Layout.of(model, block=16)
    for value in (1.0, 2.0, 3.0):
        vector = torch.full((layout.padded,), value)
        layout.write(model, vector)
        vector.zero_()
        model.weight.data.mul_(2)
        assert layout.read(model).unique().tolist() == [2 * value]


def test_values_that_are_there_already_are_not_copied():
    values = torch.ones(3)
    assert onto(values, torch.device("cpu")) is values
    assert onto(values, torch.device("meta")).is_meta

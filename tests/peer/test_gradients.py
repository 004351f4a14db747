"""Ways to compute a batch's gradient: all give the same one."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from swarmtrain.config.options import AS_WRITTEN, MICRO_BATCH_AUTO, Ways, parse_micro_batch
from swarmtrain.config.settings import InnerSection, ModelSection, RunConfig, RunSection
from swarmtrain.data.batches import Batch
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.build import build_model
from swarmtrain.peer.training.gradients import Gradients

CONFIG = RunConfig(
    run=RunSection(name="test"),
    model=ModelSection(kind="transformer", layers=2, width=32, heads=2, context=16, vocabulary=50),
    inner=InnerSection(batch=8),
)


def batch() -> Batch:
    ids = torch.randint(0, 50, (8, 17), generator=torch.Generator().manual_seed(1))
    return Batch(ids[:, :-1], ids[:, 1:])


def made(ways: Ways = AS_WRITTEN, **inner: Any) -> tuple[nn.Module, Gradients]:
    config = msgspec.structs.replace(CONFIG, inner=InnerSection(batch=8, **inner))
    model = build_model(config, seed=2)
    return model, Gradients(model, config, ways)


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([one.grad.reshape(-1) for one in model.parameters() if one.grad is not None])


def plain() -> tuple[float, Tensor]:
    model, gradients = made()
    loss = gradients.make(batch())
    return loss, gradient_of(model)


@pytest.mark.parametrize("examples", [1, 3, 4, 100])
def test_parts_of_any_size_give_the_gradient_of_the_whole_batch(examples: int) -> None:
    expected_loss, expected = plain()
    model, gradients = made(Ways(micro_batch=examples))
    assert gradients.make(batch()) == pytest.approx(expected_loss, rel=1e-6)
    assert torch.allclose(gradient_of(model), expected, rtol=1e-4, atol=1e-7)


def test_the_run_file_names_parts_and_a_peer_may_take_others() -> None:
    assert made(accumulate=4)[1].micro_batch == 2
    assert made(Ways(micro_batch=5), accumulate=4)[1].micro_batch == 5


def test_activations_made_again_are_the_same_and_fewer_wait() -> None:
    expected_loss, expected = plain()
    model, gradients = made(activation_checkpointing=True)
    assert gradients.make(batch()) == expected_loss
    assert torch.equal(gradient_of(model), expected)

    def waiting(model: nn.Module) -> int:
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: held.append(one) or one, id):
            model(batch().x_BT)
        return sum(one.numel() for one in held)

    assert waiting(model) < waiting(made()[0]) / 2


def test_bfloat16_computes_nearly_the_same_and_leaves_weights_as_they_are() -> None:
    expected_loss, expected = plain()
    model, gradients = made(precision="bfloat16")
    assert gradients.make(batch()) == pytest.approx(expected_loss, rel=1e-2)
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    found = gradient_of(model)
    assert not torch.equal(found, expected)
    assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.99
    assert made(precision="auto")[1].make(batch()) == expected_loss  # no GPU is seen by tests


class Small(nn.Module):
    """A model on a device that holds three examples."""

    def __init__(self, model: nn.Module, error: Exception) -> None:
        super().__init__()
        self.model, self.error = model, error

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if len(tokens_BT) > 3:
            raise self.error
        logits_BTV: Tensor = self.model(tokens_BT)
        return logits_BTV


FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", FULL)
def test_a_full_memory_offers_a_smaller_micro_batch_and_changes_nothing(error: Exception) -> None:
    model = Small(build_model(CONFIG, seed=2), error)
    before = [one.clone() for one in model.parameters()]
    with pytest.raises(UserError, match="--micro-batch 4, or --micro-batch auto") as told:
        Gradients(model, CONFIG, Ways()).make(batch())
    assert told.value.code == "SWT-E622"
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("error", FULL)
def test_an_automatic_micro_batch_halves_until_it_fits(error: Exception) -> None:
    expected_loss, expected = plain()
    model = Small(build_model(CONFIG, seed=2), error)
    gradients = Gradients(model, CONFIG, Ways(micro_batch=MICRO_BATCH_AUTO))
    assert gradients.make(batch()) == pytest.approx(expected_loss, rel=1e-6)
    assert gradients.micro_batch == 2
    assert torch.allclose(gradient_of(model), expected, rtol=1e-4, atol=1e-7)


def test_an_automatic_micro_batch_goes_by_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system would end the process, not the step."""

    def free(available: int) -> SimpleNamespace:
        return SimpleNamespace(available=available, total=10**12)

    monkeypatch.setattr("psutil.virtual_memory", lambda: free(400_000))
    assert made(Ways(micro_batch=MICRO_BATCH_AUTO))[1].micro_batch in range(1, 8)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(0))
    assert made(Ways(micro_batch=MICRO_BATCH_AUTO))[1].micro_batch == 1


def test_another_error_stays_what_it_is() -> None:
    model = Small(build_model(CONFIG, seed=2), RuntimeError("mat1 and mat2 cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        Gradients(model, CONFIG, Ways(micro_batch=MICRO_BATCH_AUTO)).make(batch())


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"no C\+\+ compiler") as told:
        made(Ways(compile=True))
    assert told.value.code == "SWT-E624"


def test_a_micro_batch_is_a_number_or_auto() -> None:
    assert (parse_micro_batch("auto"), parse_micro_batch("12")) == (MICRO_BATCH_AUTO, 12)
    for text in ("0", "-1", "all"):
        with pytest.raises(UserError, match="micro-batch"):
            parse_micro_batch(text)

"""Losses beside the weights: where a model is moved, what is left of it, and what a peer makes."""

import msgspec
import pytest
import torch
from torch import nn

from swarmtrain.config.settings import ExchangeSection, OuterSection
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.probing import Probe
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.strategies.base import Given, Probing
from swarmtrain_optimizers.strategies.one_byte.scalars import Signs
from tests.peer.test_trainer import CONFIG, trainer

torch.set_num_threads(1)
DIRECTION = Signs(12, 1 / 256)
ONE_BYTE = msgspec.structs.replace(
    CONFIG,
    outer=OuterSection(strategy="one_byte", inner_steps=3, lr=1.0, momentum=0.0),
    exchange=ExchangeSection(block=64),
)


class Tied(nn.Module):
    """One table at both ends, and a parameter of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.shift = nn.Parameter(torch.ones(4))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.table(x)) + self.shift)


class Reaching(Tied):
    """Its head is none of its modules."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.frozen(self.table(x)) + self.shift) @ self.table.weight.T


def looked_at(model: nn.Module) -> tuple[tuple[float, float], tuple[float, float], bool]:
    """Losses by `Probe` and by weights that were really moved; if all of the model was left."""
    layout = Layout.of(model, 16)
    x = torch.arange(6).view(2, 3)

    def loss() -> float:
        return float(model(x).square().mean())

    before = layout.read(model)
    kept = {name: (id(one), one.data_ptr()) for name, one in model.named_parameters()}
    found = Probe(model, layout).both_sides(DIRECTION, loss)
    is_same = torch.equal(layout.read(model), before) and kept == {
        name: (id(one), one.data_ptr()) for name, one in model.named_parameters()
    }
    wanted = []
    for side in (1, -1):
        move = DIRECTION.signs(0, layout.padded) * DIRECTION.step * side
        layout.write(model, before + move)
        with torch.no_grad():
            wanted.append(loss())
    return found, (wanted[0], wanted[1]), is_same


@pytest.mark.parametrize("kind", [Tied, Reaching])
def test_the_losses_are_those_of_moved_weights_and_the_weights_are_not_moved(
    kind: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(1)
    found, wanted, is_same = looked_at(kind())
    assert found == pytest.approx(wanted, rel=1e-6) and found[0] != found[1] and is_same
    assert bool(caplog.records) is (kind is Reaching)


def test_attention_that_reaches_into_its_own_parts_is_moved_too() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(7, 8), layer)
    found, wanted, is_same = looked_at(model)
    assert found == pytest.approx(wanted, rel=1e-6) and is_same


@pytest.mark.parametrize("kind", [Tied, Reaching])
def test_a_forward_pass_that_fails_leaves_the_weights(kind: type[nn.Module]) -> None:
    model = kind()
    layout = Layout.of(model, 16)
    before, probe = layout.read(model), Probe(model, layout)
    probe.both_sides(DIRECTION, lambda: float(model(torch.arange(3)).sum()))
    with pytest.raises(IndexError):
        probe.both_sides(DIRECTION, lambda: float(model(torch.arange(9)).sum()))
    assert torch.equal(layout.read(model), before)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_never_more_than_one_modules_weights_are_there_a_second_time() -> None:
    layers = [nn.Linear(16, 16) for _ in range(4)]
    model = nn.Sequential(*layers)
    layout = Layout.of(model, 16)
    vector = layout.lay_flat(model)
    assert vector is not None
    places = {one.data_ptr() for one in model.parameters()}
    seen: list[int] = []
    for layer in layers:
        layer.register_forward_hook(
            lambda *_: seen.append(sum(p.data_ptr() not in places for p in model.parameters())),
        )
    probe = Probe(model, layout)
    probe._is_by_module = True
    probe.both_sides(DIRECTION, lambda: float(model(torch.ones(1, 16)).sum()))
    assert max(seen) == 2  # a weight and a bias


def test_a_flat_model_is_its_vector() -> None:
    model = Tied()
    layout = Layout.of(model, 16)
    before = layout.read(model)
    vector = layout.lay_flat(model)
    assert vector is not None and torch.equal(vector, before)
    vector[: layout.num_values] += 5.0
    assert torch.equal(layout.read(model), vector)
    layout.write(model, before)
    assert torch.equal(vector, before) and model.head.weight is model.table.weight
    short = Tied().bfloat16()
    assert Layout.of(short, 16).lay_flat(short) is None


def driven(seed: int) -> tuple[Driver, object]:
    one = trainer(seed=seed, config=ONE_BYTE)
    driver = Driver(
        bytes([seed]) * 32, strategy_of(ONE_BYTE, one.layout), one,
        layout=one.layout.digest, num_values=one.layout.num_values, snapshot_rounds=1,
    )  # fmt: skip
    driver.offer()
    driver.op = 0
    return driver, one


def test_a_trainer_looks_and_its_driver_gives_bytes() -> None:
    driver, one = driven(1)
    assert isinstance(driver.strategy, Probing)
    anchor = dict(driver.strategy.state_arrays())["anchor"]
    assert next(one.model.parameters()).data_ptr() == anchor.data_ptr()
    before = one.read_weights()
    for _ in range(3):
        assert not driver.is_due
        loss = one.step_for(driver)
        driver.stepped(8)
    assert driver.is_due and 5 < loss < 6 and one.num_samples == 24
    part = driver.contribute()
    values = part.contribution._values
    assert values.numel() == 64 and values[0] == 127 and values[1:4].all()
    assert torch.equal(one.read_weights(), before)
    assert driver.fragments == (64,)
    taken = driver.strategy.take([Given(bytes([1]) * 32, 1, values)], 1)
    assert torch.equal(one.read_weights(), taken) and not torch.equal(taken, before)


def test_weights_that_cannot_be_one_vector_are_copied() -> None:
    model = nn.Linear(16, 16, dtype=torch.bfloat16)
    layout = Layout.of(model, 64)
    driver = Driver(
        bytes(32), strategy_of(ONE_BYTE, layout), ModelWeights(model, layout),
        layout=layout.digest, num_values=layout.num_values, snapshot_rounds=1,
    )  # fmt: skip
    root = driver.offer().manifest.root
    anchor = dict(driver.strategy.state_arrays())["anchor"]
    assert torch.equal(anchor, layout.read(model))
    assert driver.offer().manifest.root == root

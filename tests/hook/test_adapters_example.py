"""The example of adapters: they alone are exchanged, between production sessions in a crowd."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from swarmtrain.compare.crowd import MemoryLane
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.model_weights import ModelWeights
from tests.peer import crowd

torch.set_num_threads(1)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("adapters_example", EXAMPLES / "adapters.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_two_peers_end_with_the_same_adapters_and_their_frozen_parts_untouched(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Learner:
        """The example's loop, one inner step at a time, in the place of the crowd's toy."""

        def __init__(
            self, config: RunConfig, number: int, dtype: torch.dtype, shapes: crowd.Shapes
        ) -> None:
            self.model = example.build()
            self.frozen = {
                name: p.clone() for name, p in self.model.named_parameters() if not p.requires_grad
            }
            self.layout = Layout.of(self.model, config.exchange.block)
            weights = ModelWeights(self.model, self.layout)
            self.read_weights, self.write_weights = weights.read_weights, weights.write_weights
            self.optimizer = torch.optim.AdamW(trained(self.model).values(), lr=3e-3)
            self.chance = torch.Generator().manual_seed(number)
            self.losses: list[float] = []

        def read_gradient(self) -> torch.Tensor:
            raise AssertionError("diloco takes weights")

        def inner_step(self) -> None:
            loss = example.loss_of(self.model, self.chance)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())

    sent = 0

    class Scale(MemoryLane):
        """Weighs what peers give."""

        def open(self, peer, handler):
            link = super().open(peer, handler)
            send = link.send

            def weighed(to, frame):
                nonlocal sent
                sent += len(frame.body)
                send(to, frame)

            link.send = weighed
            return link

    monkeypatch.setattr(crowd, "Toy", Learner)
    config = config_file.load(EXAMPLES / "adapters_run.toml")
    with crowd.crowd_of(config, tmp_path, lane=Scale()) as run:
        peers = [run.add(1), run.add(2)]
        run.run()
    first, second = (trained(peer.toy.model) for peer in peers)
    assert peers[0].roots[config.run.rounds] == peers[1].roots[config.run.rounds]
    assert first and all(torch.equal(first[name], second[name]) for name in first)
    for peer in peers:
        parameters = dict(peer.toy.model.named_parameters())
        assert all(torch.equal(parameters[name], p) for name, p in peer.toy.frozen.items())
        assert peer.toy.frozen.keys().isdisjoint(first)
        assert sum(peer.toy.losses[-25:]) < 0.2 * sum(peer.toy.losses[:10]) / 10 * 25
    values = sum(p.numel() for p in first.values())
    whole = sum(p.numel() for p in peers[0].toy.model.parameters())
    assert f"{values:,} of\n{whole:,} values".replace(",", " ") in example.__doc__
    # A joiner's float32 state (anchor and momentum) and what each of two peers sends in six rounds:
    # half of its contribution to the other as a part, half of the mean back as a result.
    assert sent < 8 * values + config.run.rounds * 2 * 1.1 * values + 20_000 < whole


def test_the_example_runs_alone(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.setattr(example, "STEPS", 2)
    example.main("")
    said = capsys.readouterr().out
    assert "2562 of 135171 values are exchanged" in said
    assert "loss at the end" in said and "round" not in said


def test_no_two_examples_share_a_state_directory() -> None:
    names = [config_file.load(path).run.name for path in EXAMPLES.glob("*.toml")]
    assert len(names) > 1 and len(set(names)) == len(names)

"""A span as slow as it is told to be, and the loss of what it is judged by."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swarmtrain.config.settings import ModelSection
from swarmtrain.data.batches import validation_batches
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.evaluation import validation_loss
from swarmtrain.pipeline.paced import PacedTrainer
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.stage_trainer import StageTrainer

torch.set_num_threads(1)

MODEL = ModelSection(layers=3, width=16, heads=2, context=16)


class Clock:
    """Passes take half a second; sleep is told."""

    def __init__(self) -> None:
        self.now_s, self.slept = 0.0, []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def work(self, *others: object) -> None:
        self.now_s += 0.5


def paced(clock: Clock, monkeypatch: pytest.MonkeyPatch, unit_s: float) -> Any:
    """A trainer of two stages whose passes are the clock's."""
    for name in ("forward", "begin_backward", "end_backward"):
        monkeypatch.setattr(StageTrainer, name, lambda self, *others: clock.work())
    monkeypatch.setattr(StageTrainer, "__init__", lambda self: None)
    made: Any = PacedTrainer(unit_s=unit_s, seed=1, sleep=clock.sleep, clock=lambda: clock.now_s)
    made.steps = {1: None, 2: None}
    return made


def test_each_stage_of_a_pass_takes_its_time_and_a_backward_pass_twice(monkeypatch):
    clock = Clock()
    trainer = paced(clock, monkeypatch, 2.0)
    ends = []
    for stages in ((1, 2), (2,)):
        for make in (trainer.forward, trainer.begin_backward):
            make(SimpleNamespace(stages=stages), *[None] * (make == trainer.begin_backward), None)
            ends.append(clock.now_s)
        trainer.end_backward()
        ends.append(clock.now_s)
    took = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    assert all(0.7 * 4 <= one <= 1.3 * 4 for one in took[:3])
    assert all(0.7 * 2 <= one <= 1.3 * 2 for one in took[3:])
    assert len(set(took)) == len(took)


def test_a_pass_that_has_taken_its_time_is_not_made_longer(monkeypatch):
    clock = Clock()
    trainer = paced(clock, monkeypatch, 0.1)
    trainer.forward(SimpleNamespace(stages=(1, 2)), None)
    assert clock.slept == []


def test_the_loss_is_that_of_the_anchors_on_the_whole_model_and_the_weights_stay():
    span = Span(built_in(MODEL), [range(0, 2), range(2, 3), range(3, 5)], range(3), seed=4)
    layouts = {stage: Layout.of(module, 8) for stage, module in span.modules.items()}
    before = {stage: layout.read(span.modules[stage]) for stage, layout in layouts.items()}
    anchors = {stage: (layouts[stage], vector * 1.5) for stage, vector in before.items()}
    batches = validation_batches([bytes(range(256)) * 2], windows=5, batch=2, context=16)
    found = validation_loss(span, anchors, batches)
    whole = build_model(MODEL, 0)
    for stage, (layout, vector) in anchors.items():
        layout.write(span.modules[stage], vector)
    whole.load_state_dict(
        {k: v for one in span.modules.values() for k, v in one.state_dict().items()}
    )
    for stage, layout in layouts.items():
        layout.write(span.modules[stage], before[stage])
    total = 0.0
    with torch.no_grad():
        for batch in batches:
            logits = whole(batch.x_BT).reshape(-1, 256)
            total += float(
                torch.nn.functional.cross_entropy(logits, batch.y_BT.reshape(-1), reduction="sum")
            )
    assert found == pytest.approx(total / (5 * 16), rel=1e-5)
    again = validation_loss(span, anchors, batches)
    assert again == found
    for stage, layout in layouts.items():
        assert torch.equal(layout.read(span.modules[stage]), before[stage])

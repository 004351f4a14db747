"""The built-in trainer with each kind of model."""

import json

import pytest
import torch
from torch import Tensor, nn

from swarmtrain.config.options import MICRO_BATCH_AUTO, Ways
from swarmtrain.config.settings import InnerSection, ModelSection, RunConfig, RunSection
from swarmtrain.data.batches import ByteStream
from swarmtrain.peer.training.trainer import BuiltinTrainer, judged_windows

TEXT = b"for index in range(10):\n    print(index)\n" * 20
FACTORY = f"{__name__}.with_dropout"
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 32, "n_layer": 1,
        "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
KINDS = [
    ModelSection(kind="transformer", layers=1, width=32, heads=2, kv_heads=1, context=16),
    ModelSection(kind="huggingface", config=json.dumps(GPT2), context=16),
    ModelSection(kind=f"module:{FACTORY}", width=32, context=16),
]


def with_dropout(section: ModelSection, vocabulary: int) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(vocabulary, section.width), nn.Dropout(0.2),
        nn.Linear(section.width, vocabulary),
    )  # fmt: skip


@pytest.mark.parametrize("model", KINDS, ids=lambda model: model.kind.partition(":")[0])
def test_every_kind_learns_and_is_judged_without_dropout(model: ModelSection) -> None:
    config = RunConfig(
        run=RunSection(name="test", rounds=4), model=model,
        inner=InnerSection(lr=1e-2, warmup_steps=2, batch=8, accumulate=2),
    )  # fmt: skip
    peer = BuiltinTrainer(
        config, batches=ByteStream.of(config, [TEXT], 1).next_batch, validation=[TEXT], seed=1,
        ways=Ways(frozenset({FACTORY})),
    )  # fmt: skip
    start = peer.read_weights()
    before = peer.evaluate()
    assert peer.evaluate() == before
    for _ in range(25):
        peer.inner_step()
    assert peer.evaluate() < before - 1
    assert peer.evaluate(start) == before


def test_an_evaluation_that_does_not_fit_goes_by_smaller_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = RunConfig(run=RunSection(name="test"), model=KINDS[0], inner=InnerSection(batch=8))
    peer = BuiltinTrainer(
        config, batches=pytest.fail, validation=[TEXT], seed=1,
        ways=Ways(micro_batch=MICRO_BATCH_AUTO),
    )  # fmt: skip
    expected, forward = peer.evaluate(), peer.model.forward

    def holding_three(tokens_BT: Tensor) -> Tensor:
        if len(tokens_BT) > 3:
            raise torch.OutOfMemoryError
        logits: Tensor = forward(tokens_BT)
        return logits

    monkeypatch.setattr(peer.model, "forward", holding_three)
    assert peer.evaluate() == pytest.approx(expected)


def test_a_round_is_judged_by_no_more_than_it_trains_on() -> None:
    def judged(batch: int, steps: int) -> int:
        config = RunConfig(run=RunSection(name="test"), inner=InnerSection(batch=batch))
        outer = type(config.outer)(inner_steps=steps)
        return judged_windows(RunConfig(run=config.run, inner=config.inner, outer=outer))

    assert (judged(16, 50), judged(2, 10), judged(1, 1)) == (128, 20, 8)

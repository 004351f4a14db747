import math

import msgspec
import pytest
import torch

from swarmtrain.config.settings import (
    ExchangeSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain.data.batches import Batch, ByteStream
from swarmtrain.peer.training.trainer import BuiltinTrainer

TEXT = b"for index in range(10):\n    print(index)\n" * 20
CONFIG = RunConfig(
    run=RunSection(name="test", seed=3, rounds=4),
    model=ModelSection(layers=1, width=16, heads=2, context=16),
    inner=InnerSection(lr=1e-2, warmup_steps=5, batch=8),
    outer=OuterSection(inner_steps=10),
    exchange=ExchangeSection(block=64),
)


def trainer(seed: int = 1, config: RunConfig = CONFIG) -> BuiltinTrainer:
    batches = ByteStream.of(config, [TEXT], seed).next_batch
    return BuiltinTrainer(config, batches=batches, validation=[TEXT], seed=seed)


def test_the_same_seeds_give_the_same_bits_after_ten_steps() -> None:
    first, second = trainer(), trainer()
    assert [first.inner_step() for _ in range(10)] == [second.inner_step() for _ in range(10)]
    assert torch.equal(first.read_weights(), second.read_weights())


def test_peers_draw_their_own_weights_and_read_different_windows() -> None:
    """Only the first peer's weights count: the others download them, so none may rely on a seed."""
    first, second = trainer(seed=1), trainer(seed=2)
    assert not torch.equal(first.read_weights(), second.read_weights())
    second.write_weights(first.read_weights())
    first.inner_step()
    second.inner_step()
    assert not torch.equal(first.read_weights(), second.read_weights())


def test_training_lowers_the_validation_loss() -> None:
    peer = trainer()
    before = peer.evaluate()
    assert before == pytest.approx(math.log(256), abs=0.2)
    for _ in range(40):
        peer.inner_step()
    assert peer.evaluate() < before - 1.5


def test_a_run_file_may_name_muon_and_it_learns_too() -> None:
    inner = msgspec.structs.replace(CONFIG.inner, optimizer="muon", lr=2e-2)
    config = msgspec.structs.replace(CONFIG, inner=inner)
    peer, same = trainer(config=config), trainer(config=config)
    before = peer.evaluate()
    for _ in range(40):
        assert peer.inner_step() == same.inner_step()
    assert peer.evaluate() < before - 1.5
    assert not torch.equal(peer.read_weights(), trainer().read_weights())
    peer.continue_at(10)  # Fresh state, as AdamW's: a joiner's first step is short.
    assert peer.rate() == pytest.approx(2e-2 * trainer_rate_share(10) / 5)


def trainer_rate_share(step: int) -> float:
    """Return the trainer's share of the peak, at a founder's step."""
    founder = trainer()
    founder.step = step
    return founder.rate() / CONFIG.inner.lr


def test_evaluating_other_weights_leaves_the_live_model_alone() -> None:
    peer = trainer()
    start = peer.read_weights()
    loss_at_start = peer.evaluate()
    for _ in range(5):
        peer.inner_step()
    live = peer.read_weights()
    assert peer.evaluate(start) == loss_at_start
    assert peer.evaluate(live) == peer.evaluate() != loss_at_start
    assert torch.equal(peer.read_weights(), live)


def test_written_weights_are_what_is_trained_on() -> None:
    first, second = trainer(), trainer()
    for _ in range(3):
        first.inner_step()
    second.write_weights(first.read_weights())
    out = torch.empty(first.layout.padded)
    assert torch.equal(second.read_weights(out), first.read_weights())


@pytest.mark.parametrize("optimizer", ["adamw", "accum_adamw", "muon"])
def test_writing_the_anchor_keeps_what_the_inner_optimizer_remembers(optimizer: str) -> None:
    inner = msgspec.structs.replace(CONFIG.inner, optimizer=optimizer)
    config = msgspec.structs.replace(CONFIG, inner=inner)
    undisturbed, landed = trainer(config=config), trainer(config=config)
    for _ in range(6):
        undisturbed.inner_step()
        landed.inner_step()
        landed.write_weights(landed.read_weights())  # what a whole round of one peer ends with
        assert landed.rate() == undisturbed.rate()
    assert torch.equal(landed.read_weights(), undisturbed.read_weights())


def test_the_learning_rate_goes_by_the_runs_cumulative_steps() -> None:
    peer = trainer()
    assert peer.rate() == pytest.approx(CONFIG.inner.lr / 5)
    for _ in range(5):
        peer.inner_step()
    assert peer.rate() == pytest.approx(CONFIG.inner.lr)
    for _ in range(35):  # To the end of the run: 4 rounds of 10 steps.
        peer.inner_step()
    assert peer.rate() == pytest.approx(CONFIG.inner.lr * CONFIG.inner.lr_end_fraction)


def test_a_joiner_ramps_up_to_the_rate_of_the_others() -> None:
    founder, joiner = trainer(), trainer()
    joiner.continue_at(10)
    founder.step = 10
    assert joiner.rate() == pytest.approx(founder.rate() / 5)
    for _ in range(5):
        founder.inner_step()
        joiner.inner_step()
    assert joiner.rate() == founder.rate()
    assert joiner.step == 15


def test_a_step_without_text_changes_nothing() -> None:
    def batches() -> Batch:
        raise ValueError("no text")

    peer = BuiltinTrainer(CONFIG, batches=batches, validation=[], seed=1)
    before = peer.read_weights()
    with pytest.raises(ValueError, match="no text"):
        peer.inner_step()
    assert torch.equal(peer.read_weights(), before)
    assert (peer.step, peer.num_samples) == (0, 0)


def test_windows_and_bytes_are_counted() -> None:
    peer = trainer()
    peer.inner_step()
    peer.inner_step()
    assert (peer.step, peer.num_samples, peer.bytes_per_step) == (2, 16, 128)


def test_validation_text_may_come_after_the_start() -> None:
    peer = BuiltinTrainer(CONFIG, batches=pytest.fail, validation=[], seed=1)
    with pytest.raises(ValueError, match="use_validation"):
        peer.evaluate()
    peer.use_validation([TEXT])
    assert peer.evaluate() == trainer().evaluate()

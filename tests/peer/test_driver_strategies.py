"""The driver through strategies whose ops are parts, take gradients, or end a round later."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.peer.training.state_image import image_of
from swarmtrain.pipeline.subspace import Confine
from swarmtrain_optimizers import vectors
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import Strategy, SwarmFacts
from swarmtrain_optimizers.strategies.ddp.strategy import DDP, SGD
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.eager.strategy import Eager
from swarmtrain_optimizers.strategies.fedavg_m.strategy import FedAvgM
from swarmtrain_optimizers.strategies.streaming.strategy import Streaming
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import ArraySpec, manifest_of
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.records import Turn

torch.set_num_threads(1)
SIZE, ME, OTHER = 16, b"me", b"other"
WINDOW = Window(codec="none", block=8, e_min=-24, e_max=0)


class Held:
    """Weights that somebody trains by hand."""

    def __init__(self) -> None:
        self.vector = torch.zeros(SIZE)

    def read_weights(self, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.vector.clone()

    def write_weights(self, vector: torch.Tensor) -> None:
        self.vector = vector.clone()


class InParts(Held):
    """Counts how often all of it was copied."""

    num_copies = 0

    def live_weights(self) -> torch.Tensor:
        return self.vector

    def read_weights(self, out: torch.Tensor | None = None) -> torch.Tensor:
        self.num_copies += 1
        return super().read_weights(out)


def driven(
    strategy: Strategy,
    gradient: float = 0.0,
    held: Held | None = None,
    snapshot_rounds: int = 1,
    confine: Confine | None = None,
) -> tuple[Driver, Held]:
    held = held or Held()
    driver = Driver(
        ME,
        strategy,
        held,
        layout=bytes(32),
        num_values=SIZE,
        snapshot_rounds=snapshot_rounds,
        read_gradient=lambda: torch.full((SIZE,), gradient),
        confine=confine,
    )
    driver.offer()
    driver.op = 0
    return driver, held


def trained(driver: Driver, held: Held, num_steps: int) -> None:
    for _ in range(num_steps):
        if not driver.strategy.takes_gradients:
            held.vector = held.vector - 1
        driver.stepped(8)


def committed(op: int, values: torch.Tensor, contributors: tuple[bytes, ...]) -> OpResult:
    size = values.numel()
    piece = SliceResult(0, size, contributors, (Raw().encode(values, WINDOW),))
    return OpResult(op, WINDOW, size, size, (piece,), b"", b"", replayed=False)


def given(part: OwnPart, size: int) -> torch.Tensor:
    return part.contribution.decoded(0, size, WINDOW)


def test_a_state_is_copied_in_its_turn_and_where_nobody_could_be_given_one() -> None:
    driver, _ = driven(
        DiLoCo(SIZE, inner_steps=4, lr=1.0, momentum=0.0, error_feedback=False), snapshot_rounds=2
    )
    results = [committed(op, torch.ones(SIZE), (OTHER,)) for op in (1, 2, 3, 5)]
    results[-1] = replace(results[-1], is_kept=True)
    images = [driver.end_op(result) for result in results]
    assert [image.chunks is not None for image in images] == [False, True, False, True]


def test_a_strategy_that_acts_between_steps_moves_the_weights_after_each() -> None:
    strategy = FedAvgM(SIZE, inner_steps=4, lr=1.0, momentum=0.5)
    driver, held = driven(strategy)
    trained(driver, held, 4)
    assert torch.equal(held.vector, torch.full((SIZE,), -4.0)), "nobody has gone anywhere yet"
    driver.contribute()
    driver.end_op(committed(1, torch.full((SIZE,), 4.0), (ME, OTHER)))
    trained(driver, held, 4)
    assert torch.equal(held.vector, torch.full((SIZE,), -10.0)), "4, 4 more, and half of the first"
    assert torch.equal(given(driver.contribute(), SIZE), torch.full((SIZE,), 6.0))


def test_a_part_spans_the_rounds_since_its_peer_was_in_one() -> None:
    heard: list[tuple[float, int]] = []

    class Listening(FedAvgM):
        def hear_of_swarm(self, facts: SwarmFacts) -> None:
            heard.append((facts.rounds, facts.own_rounds))

    driver, held = driven(Listening(SIZE, inner_steps=1, lr=1.0, momentum=0.0))
    both = (ME, OTHER)
    named = {1: both, 2: (OTHER,), 3: both, 5: both, 6: (ME,), 7: (ME,), 8: (ME,), 9: both}
    for op, contributors in named.items():
        trained(driver, held, 1)
        driver.contribute()
        driver.end_op(committed(op, torch.ones(SIZE), contributors))
    # Op 4 was skipped: all had two rounds. Who is left out of three begins anew.
    assert heard[:4] == [(1.0, 1), (1.0, 1), (1.5, 2), (2.0, 2)]
    assert heard[4:] == [(1.0, 1)] * 4


def test_a_delayed_result_takes_its_place_with_the_next_contribution() -> None:
    strategy = Delayed(SIZE, inner_steps=4, lr=1.0, momentum=0.0, error_feedback=False)
    driver, held = driven(strategy)
    trained(driver, held, 4)
    assert driver.is_due
    first = driver.contribute()
    assert torch.equal(given(first, SIZE), torch.full((SIZE,), 4.0))
    assert not held.vector.any() and not driver.is_at_place and not driver.is_due
    trained(driver, held, 4)
    assert driver.is_at_place
    driver.end_op(committed(1, torch.full((SIZE,), 6.0), (ME, OTHER)))
    assert torch.equal(held.vector, torch.full((SIZE,), -4.0))
    assert driver.is_due
    second = driver.contribute()
    assert (second.op, second.samples) == (2, 32)
    assert torch.equal(given(second, SIZE), torch.full((SIZE,), 4.0))
    assert torch.equal(held.vector, torch.full((SIZE,), -6.0))
    trained(driver, held, 4)
    driver.skip(2)
    third = driver.contribute()
    assert torch.equal(given(third, SIZE), torch.full((SIZE,), 8.0))


def test_weights_that_moved_while_an_op_was_under_way_are_not_copied_to_land_in_it() -> None:
    held = InParts()
    strategy = DiLoCo(SIZE, inner_steps=4, lr=1.0, momentum=0.0, error_feedback=False)
    driver, _ = driven(strategy, held=held)
    trained(driver, held, 4)
    driver.contribute()
    trained(driver, held, 2)
    before = held.num_copies
    driver.end_op(committed(1, torch.full((SIZE,), 6.0), (ME, OTHER)))
    assert torch.equal(held.vector, torch.full((SIZE,), -8.0))
    assert held.num_copies == before


def test_an_eager_peer_goes_on_with_its_share_of_what_it_gave() -> None:
    strategy = Eager(SIZE, inner_steps=4, lr=1.0, momentum=0.0, error_feedback=False)
    driver, held = driven(strategy)
    trained(driver, held, 4)
    driver.contribute()
    assert not held.vector.any()  # nobody has told a share yet
    trained(driver, held, 4)
    driver.end_op(committed(1, torch.full((SIZE,), 6.0), (ME, OTHER)))
    driver.contribute()
    assert torch.equal(held.vector, torch.full((SIZE,), -6.0 - 4.0 / 2))
    root = driver.root
    other, _ = driven(Delayed(SIZE, inner_steps=4, lr=1.0, momentum=0.0, error_feedback=False))
    other.end_op(committed(1, torch.full((SIZE,), 6.0), (OTHER,)))
    assert other.root == root


def test_a_fragment_is_merged_where_it_lies() -> None:
    strategy = Streaming(
        SIZE,
        fragments=(((0, 8),), ((8, SIZE),)),
        inner_steps=4,
        delay_steps=1,
        mixing=0.5,
        lr=1.0,
        momentum=0.0,
        error_feedback=False,
    )
    driver, held = driven(strategy)
    trained(driver, held, 2)
    part = driver.contribute()
    assert torch.equal(given(part, 8), torch.full((8,), 2.0))
    trained(driver, held, 1)
    assert driver.is_at_place
    driver.end_op(committed(1, torch.full((8,), 1.0), (ME, OTHER)))
    assert held.vector.tolist() == [-2.0] * 8 + [-3.0] * 8
    assert not driver.is_due  # one of the next round's two steps was made meanwhile
    trained(driver, held, 1)
    assert driver.is_due
    assert torch.equal(given(driver.contribute(), 8), torch.full((8,), 4.0))


def test_an_anchor_that_lies_in_pieces_is_confined_where_it_lies() -> None:
    strategy = Streaming(
        SIZE, fragments=(((0, 4), (12, SIZE)), ((4, 12),)), inner_steps=4, delay_steps=1,
        mixing=0.5, lr=1.0, momentum=0.0, error_feedback=False,
    )  # fmt: skip

    def confine(vector: torch.Tensor, turns: tuple[Turn, ...]) -> None:
        vector[::4] = 0

    driver, held = driven(strategy, confine=confine)
    trained(driver, held, 2)
    driver.contribute()
    trained(driver, held, 1)
    image = driver.end_op(committed(1, torch.arange(8.0), (ME, OTHER)))
    anchor = dict(strategy.state_arrays())["anchor"]
    assert anchor.tolist() == [0, -1, -2, -3] + [0] * 8 + [0, -5, -6, -7]
    assert held.vector[::4].tolist() == [0] * 4
    assert image.manifest == image_of(strategy, bytes(32), SIZE, 1, copy=False).manifest


def test_fragments_are_under_way_at_once_and_each_is_merged_in_its_place() -> None:
    """Two steps from op to op, and three until a result's place: two ops overlap, not three."""
    strategy = Streaming(
        SIZE, fragments=(((0, 8),), ((8, SIZE),)), inner_steps=4, delay_steps=3, mixing=0.0,
        lr=1.0, momentum=0.0, error_feedback=False,
    )  # fmt: skip
    driver, held = driven(strategy)
    trained(driver, held, 2)
    assert driver.contribute().op == 1 and not driver.is_due
    trained(driver, held, 2)
    assert driver.is_due and not driver.is_at_place
    second = driver.contribute()
    assert (second.op, second.samples) == (2, 16)
    assert torch.equal(given(second, 8), torch.full((8,), 4.0))
    trained(driver, held, 1)
    assert driver.is_at_place
    trained(driver, held, 1)  # alone, say
    assert not driver.is_due
    driver.end_op(committed(1, torch.full((8,), 1.0), (ME, OTHER)))
    assert held.vector.tolist() == [-1.0] * 8 + [-6.0] * 8
    assert driver.is_waiting and not driver.is_at_place and driver.is_due
    third = driver.contribute()
    assert (third.op, third.samples) == (3, 16) and not given(third, 8).any()
    driver.skip(2)
    assert driver.is_waiting and driver.op == 2 and held.vector.tolist() == [-1.0] * 8 + [-6.0] * 8
    driver.end_op(committed(3, torch.full((8,), 2.0), (OTHER,)))
    assert not driver.is_waiting and held.vector.tolist() == [-3.0] * 8 + [-6.0] * 8


def streaming(**settings: float) -> Streaming:
    more: dict[str, Any] = {"inner_steps": 4, "delay_steps": 1, "lr": 0.7, "momentum": 0.9}
    return Streaming(
        SIZE, fragments=(((0, 4), (8, 12)), ((4, 8), (12, SIZE))), error_feedback=True, mixing=0.5,
        **more | settings,
    )  # fmt: skip


def eager(name: type[Delayed] = Eager) -> Delayed:
    return name(SIZE, inner_steps=2, lr=0.7, momentum=0.9, error_feedback=True)


def noise(seed: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def lived(strategy: Strategy, held: Held | None = None) -> tuple[Driver, Held]:
    """A peer after some ops, of which one is skipped and one in part without it, in chunks that no
    piece fits."""
    driver, held = driven(strategy, held=held, snapshot_rounds=100)
    for op in range(1, 8):
        while not driver.is_due:
            held.vector = held.vector - noise(10 * op)
            driver.stepped(8)
        driver.contribute()
        held.vector = held.vector - noise(10 * op + 1)
        driver.stepped(8)
        if op == 3:
            driver.skip(op)
            continue
        size = strategy.exchange(op).num_values
        mean, cut = TensorContribution(noise(op, size)), size // 2
        window = Window("int8", 2, -24, 9)
        slices = tuple(
            SliceResult(start, stop, who, tuple(
                mean.encode(at, min(at + 6, stop), window) for at in range(start, stop, 6)
            ))
            for start, stop, who in ((0, cut, (ME, OTHER)), (cut, size, (ME, OTHER)[op == 5 :]))
        )  # fmt: skip
        driver.end_op(OpResult(op, window, 6, size, slices, b"", b"", replayed=False))
    return driver, held


@pytest.mark.parametrize("make", [streaming, eager, lambda: eager(Delayed)])
def test_no_bit_depends_on_the_pieces_that_are_worked_on(
    make: Callable[[], Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for values in (1, 5, 8, 100):
        monkeypatch.setattr(vectors, "PIECE_VALUES", values)
        driver, held = lived(make())
        arrays = (*driver.strategy.state_arrays(), *driver.strategy.local_arrays())
        data = b"".join(array.numpy().tobytes() for _, array in arrays)
        found.add((driver.root, data, held.vector.numpy().tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("make", [streaming, eager])
@pytest.mark.parametrize("num_bytes", [4, 12, 40, 1 << 20])
def test_a_root_of_which_only_the_changed_chunks_were_hashed_is_that_of_all(
    make: Callable[[], Strategy], num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", num_bytes)
    driver, _ = lived(make())
    arrays = driver.strategy.state_arrays()
    specs = tuple(ArraySpec(name, SIZE) for name, _ in arrays)
    whole = manifest_of(bytes(32), specs, [array.numpy().data.cast("B") for _, array in arrays])
    assert driver.root == whole.root


def test_gradients_are_given_and_everybody_makes_the_step() -> None:
    def rate(step: int) -> float:
        return warmup_cosine(step, peak=0.5, warmup_steps=9, total_steps=99, end_fraction=0.1) * 9

    driver, held = driven(DDP(SIZE, optimizer=SGD(), schedule=rate), gradient=3.0)
    for op, whole in ((1, -0.5), (2, -1.5)):
        trained(driver, held, 1)
        assert driver.is_due
        assert torch.equal(given(driver.contribute(), SIZE), torch.full((SIZE,), 3.0))
        driver.end_op(committed(op, torch.full((SIZE,), 1.0), (ME,)))
        assert held.vector.tolist() == pytest.approx([whole] * SIZE, abs=1e-5)

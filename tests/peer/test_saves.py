"""Saves of a peer's own: they come back with the state that they were saved with, and with no
other."""

import logging
from dataclasses import replace

import pytest
import torch

from swarmtrain.checkpoint import RunFacts
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.meter import Pace
from swarmtrain.peer.training.saves import own_arrays, own_file
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.coordinator.ops.planning import pace_of
from swarmtrain_transport.result import OpResult, SliceResult

torch.set_num_threads(1)
SIZE, ME, OTHER = 16, b"me", b"other"
WINDOW = Window("none", 8, -24, 0)
FACTS = RunFacts("run", b"c" * 32, 5, b"r" * 32)
OWN = [("error_feedback", torch.linspace(-1, 1, SIZE)), ("held", torch.ones(SIZE))]


class Held:
    def __init__(self) -> None:
        self.vector = torch.zeros(SIZE)

    def read_weights(self, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.vector.clone()

    def write_weights(self, vector: torch.Tensor) -> None:
        self.vector = vector.clone()


def own_bytes() -> bytes:
    return b"".join(own_file(OWN, FACTS))


def driver_of() -> Driver:
    strategy = DiLoCo(SIZE, inner_steps=1, lr=1.0, momentum=0.0, error_feedback=True)
    driver = Driver(ME, strategy, Held(), layout=bytes(32), num_values=SIZE, snapshot_rounds=1)
    return driver


def residual(driver: Driver) -> torch.Tensor:
    return dict(driver.strategy.local_arrays())["error_feedback"]


def returned(own: torch.Tensor, op: int = 5) -> Driver:
    """A peer that has restored the state after op 5, and was told to load that of `op`."""
    driver = driver_of()
    state = {"anchor": torch.full((SIZE,), 2.0), "momentum": torch.zeros(SIZE)}
    image = driver.restored(5, state, {"error_feedback": own})
    driver.load(LoadState(op, image.manifest, tuple(bytes(c) for c in image.chunks or ())))
    return driver


def replayed(op: int, *contributors: bytes, is_replayed: bool = True) -> OpResult:
    values = torch.full((SIZE,), 0.5)
    piece = SliceResult(0, SIZE, contributors, (Raw().encode(values, WINDOW),))
    return OpResult(op, WINDOW, SIZE, SIZE, (piece,), b"", b"", is_replayed)


def test_own_arrays_come_back_bit_for_bit():
    found = own_arrays(own_bytes(), FACTS)
    assert found is not None and sorted(found) == ["error_feedback", "held"]
    assert all(torch.equal(found[name], array) for name, array in OWN)
    assert own_bytes() == own_bytes()


@pytest.mark.parametrize(
    "other",
    [
        replace(FACTS, op=6),
        replace(FACTS, state_root=b"s" * 32),
        replace(FACTS, config_hash=b"d" * 32),
    ],
)
def test_own_arrays_of_another_state_are_passed_over(other: RunFacts):
    assert own_arrays(own_bytes(), other) is None


def test_a_damaged_file_is_passed_over(caplog: pytest.LogCaptureFixture):
    whole = own_bytes()
    with caplog.at_level(logging.INFO):
        assert own_arrays(None, FACTS) is None
        for data in (b"", whole[:40], whole[:-1], whole[:-1] + b"\x55", b"\xff" * 64):
            assert own_arrays(data, FACTS) is None
    assert len(caplog.records) == 5


def test_error_feedback_comes_back_with_its_state_alone():
    own = torch.linspace(-1, 1, SIZE)
    assert torch.equal(residual(returned(own)), own)
    assert not residual(returned(own, op=6)).any()


def test_what_came_back_stays_through_rounds_without_our_part():
    own = torch.linspace(-1, 1, SIZE)
    driver = returned(own)
    driver.end_op(replayed(6, OTHER))
    assert torch.equal(residual(driver), own)
    driver.end_op(replayed(7, OTHER, ME))
    assert not residual(driver).any()


def test_a_dropped_return_changes_no_shared_bit():
    one, other = returned(torch.ones(SIZE)), returned(torch.zeros(SIZE))
    for driver in (one, other):
        driver.end_op(replayed(6, OTHER, ME))
    assert one.root == other.root
    assert torch.equal(one._weights.read_weights(), other._weights.read_weights())


def test_arrays_of_another_version_are_not_taken_back():
    driver = driver_of()
    state = {"anchor": torch.ones(SIZE), "momentum": torch.zeros(SIZE)}
    image = driver.restored(5, state, {"something": torch.ones(SIZE)})
    driver.load(LoadState(5, image.manifest, tuple(bytes(c) for c in image.chunks or ())))
    assert not residual(driver).any()


def test_pace_counts_steps_and_no_waiting():
    now_s, pace = 0.0, Pace()
    pace.made(now_s)  # nobody saw it begin
    assert pace.end_round() == 0
    for _ in range(4):
        pace.begin(now_s)
        pace.made(now_s + 0.5)
        now_s += 10.5
    assert pace.end_round() == 2
    for _ in range(2):
        pace.begin(now_s)
        now_s += 1
        pace.made(now_s)
    # The round before, 4 steps in 2 s, counts half: 2 in 1 s.
    assert pace.end_round() == pytest.approx((2 + 2) / (1 + 2))


def test_whom_to_keep_pace_with_is_the_fastest_but_no_boaster():
    wrong = [0.0, float("nan"), float("inf"), -1.0]
    assert pace_of([], hurries=True) is pace_of(wrong, hurries=True) is None
    assert pace_of([1.0, 1.0, 0.5, 0.25], hurries=True) == 1.0
    assert pace_of([None, 0.0, 2.0], hurries=True) == 2.0
    assert pace_of([1.0, 1.0, 1e9], hurries=True) == 16.0


def test_elsewhere_it_is_the_speed_that_most_reach_and_no_boast_moves_it():
    assert pace_of([], hurries=False) is None
    assert pace_of([4.0, 1.0], hurries=False) == 4.0
    assert pace_of([1e9, 1.0, 0.9, 0.3], hurries=False) == 0.9
    assert pace_of([2.0, 1.0, 0.5, 1.0, None], hurries=False) == 1.0


def test_what_was_given_before_a_replay_has_spent_it_moves_along_with_the_anchor():
    driver = returned(torch.ones(SIZE))
    driver.stepped(8)
    driver.contribute()
    driver.end_op(replayed(6, ME))
    assert driver.op == 6 and not residual(driver).any()
    assert dict(driver.strategy.state_arrays())["anchor"].tolist() == [1.5] * SIZE

"""Drivers through pair ops that are made by hand, against the formulas written out in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.peer.training.state_image import StateImage
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import PAIR_VECTORS
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.records import Turn

torch.set_num_threads(1)
VALUES, SIZE, BLOCK, CHUNK = 22, 24, 8, 16
"""Two values are padding, and the third chunk is half a difference and half an anchor."""
NAMES = (b"a", b"b", b"c")


class Held:
    """Weights that somebody trains by hand; the padding is never touched."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.vector = torch.zeros(SIZE)
        self.vector[:VALUES] = torch.randn(VALUES, generator=torch.Generator().manual_seed(number))

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        return self.vector.clone()

    def write_weights(self, vector: Tensor) -> None:
        self.vector = vector.clone()


class Naive:
    """Section 5 of the sheet, value by value: delta <- alpha delta + beta g + gamma (p - phi)."""

    def __init__(self, phi: list[float], alpha: float, beta: float, gamma: float) -> None:
        self.phi, self.delta = phi, [0.0] * len(phi)
        self.rates = alpha, beta, gamma

    def step(self, own: list[float], group: list[tuple[list[float], list[float]]]) -> None:
        """`group` holds (theta - phi, phi) of everybody in it; `own` is our phi as they have it."""
        alpha, beta, gamma = self.rates
        for at in range(len(self.phi)):
            gain = sum(gains[at] for gains, _ in group) / len(group)
            middle = sum(phi[at] for _, phi in group) / len(group)
            self.delta[at] = alpha * self.delta[at] + beta * gain + gamma * (middle - own[at])
            self.phi[at] += self.delta[at]


def driven(
    number: int,
    *,
    lr: float = 0.7,
    pull: float = 0.7,
    momentum: float = 0.5,
    confine: Callable[[Tensor, tuple[Turn, ...]], None] | None = None,
):
    held = Held(number)
    strategy = NoLoCo(SIZE, inner_steps=2, lr=lr, pull=pull, momentum=momentum)
    driver = Driver(
        NAMES[number], strategy, held, layout=bytes(32), num_values=VALUES, snapshot_rounds=2,
        confine=confine,
    )  # fmt: skip
    driver.offer()
    driver.op = 0
    return driver, held


def window_of(codec: str) -> Window:
    return Window(codec, BLOCK, -40, 8)


def given(part: OwnPart, codec: str) -> tuple[bytes, ...]:
    bounds = [(low, min(low + CHUNK, 2 * SIZE)) for low in range(0, 2 * SIZE, CHUNK)]
    return tuple(part.contribution.encode(low, high, window_of(codec)) for low, high in bounds)


def heard(part: OwnPart, codec: str) -> Tensor:
    bounds = [(low, min(low + CHUNK, 2 * SIZE)) for low in range(0, 2 * SIZE, CHUNK)]
    window = window_of(codec)
    return torch.cat([part.contribution.decoded(low, high, window) for low, high in bounds])


def half_of(op: int, pair: tuple[bytes, ...], chunks: tuple[bytes, ...], codec: str) -> OpResult:
    piece = SliceResult(0, 2 * SIZE, tuple(sorted(pair)), chunks)
    return OpResult(op, window_of(codec), CHUNK, 2 * SIZE, (piece,), b"", b"", replayed=False)


def nothing(op: int, codec: str = "none") -> OpResult:
    return OpResult(op, window_of(codec), CHUNK, 2 * SIZE, (), b"", b"", replayed=False)


def train(driver: Driver, held: Held, op: int) -> None:
    for step in range(2):
        places = torch.arange(VALUES, dtype=torch.float32)
        held.vector[:VALUES] -= torch.cos(places * (held.number + 2) + op + step) / 32
        driver.stepped(8)


def anchor_of(driver: Driver) -> Tensor:
    return dict(driver.strategy.state_arrays())["anchor"]


def plain(vector: Tensor) -> list[float]:
    return [float(value) for value in vector]


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_pairs_and_who_is_left_over_step_as_the_paper_says(codec: str):
    made = [driven(number) for number in range(3)]
    naive = [Naive(plain(anchor_of(driver)), 0.5, 0.7, 0.7) for driver, _ in made]
    for op, (one, other, alone) in enumerate([(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)], 1):
        for driver, held in made:
            train(driver, held, op)
            assert driver.is_due
        before = [plain(held.vector) for _, held in made]
        phi = [list(oracle.phi) for oracle in naive]
        parts = [driver.contribute() for driver, _ in made]
        sent = [given(part, codec) for part in parts]  # they hold until an op ends
        decoded = [plain(heard(part, codec)) for part in parts]
        for me, partner in ((one, other), (other, one)):
            pair = (NAMES[me], NAMES[partner])
            made[me][0].end_op(half_of(op, pair, sent[partner], codec))
            seen = [decoded[who] for who in (me, partner)]
            group = [([-value for value in half[:SIZE]], half[SIZE:]) for half in seen]
            naive[me].step(seen[0][SIZE:], group)
        made[alone][0].end_op(nothing(op, codec))
        gains = [now - start for now, start in zip(before[alone], phi[alone], strict=True)]
        naive[alone].step(phi[alone], [(gains, phi[alone])])
        for (driver, held), oracle in zip(made, naive, strict=True):
            assert plain(anchor_of(driver)) == pytest.approx(oracle.phi, abs=2e-6)
            assert torch.equal(held.vector, anchor_of(driver))
            assert (driver.op, driver.steps, driver.is_waiting) == (op, 0, False)
        assert [made[who][0].included for who in (one, other, alone)] == [True, True, False]
        assert [made[who][0].is_alone for who in (one, other, alone)] == [False, False, True]
        assert not any(held.vector[VALUES:].any() for _, held in made)


def test_t8_without_momentum_and_at_rates_of_one_a_pair_averages_its_weights():
    made = [driven(number, lr=1.0, pull=1.0, momentum=0.0) for number in range(2)]
    for driver, held in made:
        train(driver, held, 1)
    middle = (made[0][1].vector.double() + made[1][1].vector.double()) / 2
    parts = [driver.contribute() for driver, _ in made]
    for me, (driver, held) in enumerate(made):
        driver.end_op(half_of(1, NAMES[:2], given(parts[1 - me], "none"), "none"))
        assert torch.allclose(held.vector.double(), middle, rtol=0, atol=1e-6)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_t8_pulling_leaves_the_mean_over_peers_where_it_is(codec: str):
    means = []
    for pull in (0.55, 1.4):
        made = [driven(number, pull=pull) for number in range(2)]
        for driver, held in made:
            train(driver, held, 1)
        sent = [given(driver.contribute(), codec) for driver, _ in made]
        for me, (driver, _) in enumerate(made):
            driver.end_op(half_of(1, NAMES[:2], sent[1 - me], codec))
        means.append(sum(anchor_of(driver).double() for driver, _ in made) / 2)
    assert torch.allclose(*means, rtol=0, atol=1e-6)


def test_steps_made_while_the_half_was_late_stay_in_the_weights():
    made = [driven(number) for number in range(2)]
    for driver, held in made:
        train(driver, held, 1)
    sent = [given(driver.contribute(), "none") for driver, _ in made]
    (first, held), (second, others) = made
    others.vector[:VALUES] += 0.25
    second.stepped(8)
    first.end_op(half_of(1, NAMES[:2], sent[1], "none"))
    second.end_op(half_of(1, NAMES[:2], sent[0], "none"))
    assert torch.equal(held.vector, anchor_of(first))
    late = others.vector - anchor_of(second)
    assert torch.allclose(late[:VALUES], torch.tensor(0.25), atol=1e-6)


def state_of(driver: Driver) -> list[Tensor]:
    return [array.clone() for _, array in driver.strategy.state_arrays()]


def test_an_op_that_a_peer_gave_nothing_to_changes_nothing_but_its_number():
    driver, held = driven(0)
    train(driver, held, 1)
    weights, state = held.vector.clone(), state_of(driver)
    image = driver.end_op(nothing(7))  # of several at once, the last
    assert (driver.op, driver.steps, driver.is_alone, driver.included) == (7, 2, False, False)
    assert image.op == 7 and image.manifest.root == driver.root
    assert torch.equal(held.vector, weights)
    assert all(torch.equal(*both) for both in zip(state, state_of(driver), strict=True))
    assert driver.is_due and driver.contribute().op == 8


def test_a_skipped_op_is_no_step_and_its_work_is_given_again():
    made = [driven(number) for number in range(2)]
    driver, held = made[0]
    train(driver, held, 1)
    state = state_of(driver)
    first = heard(driver.contribute(), "none")
    driver.skip(1)
    assert all(torch.equal(*both) for both in zip(state, state_of(driver), strict=True))
    train(driver, held, 2)
    second = heard(driver.contribute(), "none")
    assert torch.equal(second[SIZE:], first[SIZE:]) and not torch.equal(second, first)


def test_the_state_that_a_peer_saves_goes_on_at_another_with_the_same_bits():
    (first, held), (other, others) = driven(0), driven(1)
    for op in (1, 2):
        train(first, held, op)
        first.contribute()
        image: StateImage = first.end_op(nothing(op))
    assert image.chunks is not None
    chunks = tuple(bytes(chunk) for chunk in image.chunks)
    loaded = other.load(LoadState(2, image.manifest, chunks))
    assert loaded.manifest.root == image.manifest.root == other.root
    assert torch.equal(others.vector, held.vector)
    others.number = held.number
    for driver, weights in ((first, held), (other, others)):
        train(driver, weights, 3)
        driver.contribute()
        driver.end_op(nothing(3))
    assert first.root == other.root


class Lost(bytes):
    """A piece of a state that cannot be read any more."""

    def __bytes__(self) -> bytes:
        raise OSError("gone")


def test_a_state_that_comes_half_is_nobodys() -> None:
    (driver, held), (other, _) = driven(0), driven(1)
    train(driver, held, 1)
    driver.contribute()
    image = driver.end_op(nothing(1))
    assert image.chunks is not None
    half = bytes(image.chunks[0])[: 4 * SIZE]
    with pytest.raises(OSError, match="gone"):
        other.load(LoadState(1, image.manifest, (half, Lost())))
    assert other.op == -1, "part of it is another's already: it is neither saved nor given out"


def test_a_step_alone_that_ends_in_the_middle_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, held = driven(0)
    train(driver, held, 1)
    driver.contribute()

    def fails(values: Tensor) -> Tensor:
        raise MemoryError

    monkeypatch.setattr("swarmtrain_optimizers.strategies.noloco.strategy.flush_tiny_", fails)
    with pytest.raises(MemoryError):
        driver.end_op(nothing(1))
    assert driver.op == -1


@pytest.mark.parametrize("length", [SIZE, 2 * SIZE - BLOCK])
def test_a_half_that_is_no_whole_half_is_refused_and_changes_nothing(length: int):
    driver, held = driven(0)
    train(driver, held, 1)
    driver.contribute()
    state = state_of(driver)
    piece = SliceResult(0, length, NAMES[:2], (bytes(4 * min(CHUNK, length)),))
    result = OpResult(1, window_of("none"), CHUNK, 2 * SIZE, (piece,), b"", b"", replayed=False)
    with pytest.raises(RemoteFault):
        driver.end_op(result)
    assert all(torch.equal(*both) for both in zip(state, state_of(driver), strict=True))


def test_an_op_moves_difference_and_anchor_of_the_whole_vector():
    driver, _ = driven(0)
    assert driver.is_paired and driver.fragments == ()
    assert driver.strategy.exchange(5).num_values == PAIR_VECTORS * SIZE


@pytest.mark.parametrize("gives", [True, False])
def test_a_subspace_turns_for_who_sits_an_op_out(*, gives: bool):
    driver, held = driven(0, confine=lambda vector, turns: vector[:3].zero_())
    train(driver, held, 1)
    if gives:
        held.vector[3] = torch.nan  # else it would make a step alone
        driver.contribute()
    driver.end_op(nothing(1))
    assert not driver.is_alone and torch.isfinite(held.vector).all()
    assert not held.vector[:3].any() and not anchor_of(driver)[:3].any()


def test_work_that_is_no_number_is_dropped_and_leaves_the_anchor_as_it_was():
    (driver, held), (other, other_held) = driven(0), driven(1)
    train(driver, held, 1)
    held.vector[3] = torch.nan
    driver.contribute()
    kept = [(name, array.clone()) for name, array in driver.strategy.state_arrays()]
    driver.end_op(nothing(1))
    assert driver.op == 1 and not driver.is_waiting and not driver.is_alone
    for (name, before), (_, after) in zip(kept, driver.strategy.state_arrays(), strict=True):
        assert torch.equal(before, after), name
    assert torch.equal(held.vector, anchor_of(driver))
    train(driver, held, 2)
    train(other, other_held, 2)
    other.end_op(nothing(1))
    mine, theirs = driver.contribute(), other.contribute()
    driver.end_op(half_of(2, NAMES[:2], given(theirs, "none"), "none"))
    other.end_op(half_of(2, NAMES[:2], given(mine, "none"), "none"))
    assert torch.isfinite(anchor_of(driver)).all() and torch.isfinite(anchor_of(other)).all()

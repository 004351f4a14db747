"""Work that is no number any more is dropped, and what is a number stays, in every strategy."""

import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import DropsBroken, OpKind, Strategy
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.strategies.eager.strategy import Eager
from swarmtrain_optimizers.strategies.streaming.strategy import Streaming
from tests.optimizers.every_strategy import MAKERS, make

torch.set_num_threads(1)
SIZE, BLOCK = 64, 8


def randn(seed: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def one_op(
    strategy: Strategy, theta: torch.Tensor, op: int, *, included: bool | None
) -> torch.Tensor:
    """Give, and end the op, in which the part is or is not, or which is skipped."""
    given = strategy.pseudo_gradient(theta, op)
    meanwhile = strategy.weights_under_way()
    theta = theta if meanwhile is None else meanwhile
    is_pair = strategy.exchange(op).kind is OpKind.PAIR
    if included is None or (is_pair and not included):  # no half, no result
        strategy.skip()
        return theta
    mean = randn(op, given.numel())
    whole = [(0, given.numel(), included)]
    return strategy.apply(mean, whole, theta, part_of(given.clone()), op=op, own_share=0.5)


def made(name: str) -> Strategy:
    strategy = make(name, SIZE, BLOCK)
    strategy.set_initial(randn(0))
    return strategy


@pytest.mark.parametrize("included", [False, None], ids=["left out", "skipped"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_vector_of_nan_begins_again_from_the_anchor(name: str, included: bool | None) -> None:
    strategy = made(name)
    assert isinstance(strategy, DropsBroken)
    theta = one_op(strategy, randn(1), 1, included=True)
    theta = one_op(strategy, torch.full_like(theta, torch.nan), 2, included=included)
    theta = strategy.drop_broken(theta)
    for array in (theta, *(array for _, array in strategy.local_arrays())):
        assert torch.isfinite(array).all()
    for op in range(3, 9):
        theta = one_op(strategy, theta + 0.1 * randn(op), op, included=True)
        assert torch.isfinite(theta).all()


@pytest.mark.parametrize("included", [True, False, None], ids=["in", "left out", "skipped"])
@pytest.mark.parametrize("name", MAKERS)
def test_work_that_is_finite_is_left_alone(name: str, included: bool | None) -> None:
    asked, plain = made(name), made(name)
    assert isinstance(asked, DropsBroken)
    theta = randn(1)
    for op in range(1, 6):
        before = one_op(plain, theta, op, included=included)
        theta = one_op(asked, theta, op, included=included)
        kept = asked.drop_broken(theta)
        assert torch.equal(kept, before) and kept.data_ptr() != theta.data_ptr()
        mine = [*asked.state_arrays(), *asked.local_arrays()]
        theirs = [*plain.state_arrays(), *plain.local_arrays()]
        for (key, left), (_, right) in zip(mine, theirs, strict=True):
            assert torch.equal(left, right), key
        theta = kept + 0.1 * randn(10 + op)


def streaming(*, error_feedback: bool) -> Streaming:
    strategy = Streaming(
        SIZE,
        fragments=(((0, 16), (32, 64)), ((16, 32),)),
        inner_steps=4,
        delay_steps=0,
        mixing=0.5,
        lr=0.7,
        momentum=0.9,
        error_feedback=error_feedback,
    )
    strategy.set_initial(randn(0))
    return strategy


def test_a_fragment_that_is_finite_keeps_its_work_and_its_error_feedback() -> None:
    strategy = streaming(error_feedback=True)
    theta = one_op(strategy, randn(1), 1, included=False)
    theta = one_op(strategy, theta + randn(2), 2, included=False)
    waiting = dict(strategy.local_arrays())["error_feedback"]
    assert waiting.any()
    theta[40] = torch.nan
    theta = one_op(strategy, theta, 3, included=False)
    anchor = strategy.anchor
    healed = strategy.drop_broken(theta)
    first = torch.ones(SIZE, dtype=torch.bool)
    first[16:32] = False
    assert torch.equal(healed[first], anchor[first])
    assert torch.equal(healed[~first], theta[~first])
    after = dict(strategy.local_arrays())["error_feedback"]
    assert not after[first].any() and torch.equal(after[~first], waiting[~first])


@pytest.mark.parametrize("error_feedback", [False, True])
def test_one_fragments_third_exclusion_heals_all_that_would_spoil_it_again(
    error_feedback: bool,
) -> None:
    """A step makes every value NaN as soon as one is, so healing one fragment heals none."""
    strategy = streaming(error_feedback=error_feedback)
    theta = randn(1)
    theta[5] = torch.nan
    lost = 0
    for op in range(1, 13):
        theta = theta + (0.1 if torch.isfinite(theta).all() else torch.nan)
        fragment = strategy.exchange(op).ranges
        places = torch.cat([torch.arange(*ends) for ends in fragment])
        was_finite = bool(torch.isfinite(theta[places]).all())
        theta = one_op(strategy, theta, op, included=was_finite)
        lost += not was_finite
    assert lost <= 6
    assert torch.isfinite(theta).all()
    assert all(torch.isfinite(array).all() for _, array in strategy.local_arrays())


def test_a_lead_that_is_no_number_goes_and_a_guess_of_the_share_stays() -> None:
    strategy = Eager(
        SIZE, inner_steps=2, lr=0.5, momentum=0.5, error_feedback=False, first_share=0.25
    )
    strategy.set_initial(randn(0))
    theta = one_op(strategy, torch.full((SIZE,), torch.nan), 1, included=None)
    assert not torch.isfinite(theta).any()
    theta = strategy.drop_broken(theta)
    assert torch.equal(theta, strategy.anchor) and not strategy.lead.any()
    assert not strategy.pseudo_gradient(theta, 2).any()


def test_a_large_vector_is_looked_at_in_pieces(monkeypatch):
    looked, isfinite = [], torch.isfinite

    def recorded(piece):
        looked.append(piece.numel())
        return isfinite(piece)

    monkeypatch.setattr(torch, "isfinite", recorded)
    vector = torch.zeros(5_000_000)
    assert is_finite(vector)
    vector[-1] = torch.nan
    assert not is_finite(vector)
    assert max(looked) < 2_000_000  # else checking a model takes more memory than the model

"""Shares of the reduction: transport reference H.5, and T14 of the algorithms sheet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.coordinator.ops.slicing import best_shares, cut

RATES = st.lists(st.floats(1e3, 1e9), min_size=3, max_size=64)


def slowest(rates: list[float], weights: list[float]) -> float:
    """Time of a whole exchange in units of V: when the last peer that owns something ends."""
    count = len(rates)
    return max(
        (1 + (count - 2) * weight) / rate
        for rate, weight in zip(rates, weights, strict=True)
        if rate > 0
    )


@settings(max_examples=40, deadline=None)
@given(RATES)
def test_weighted_slices_are_never_slower_than_equal_ones(rates: list[float]) -> None:
    weights = best_shares(rates)
    equal = [1 / len(rates)] * len(rates)
    assert slowest(rates, weights) <= slowest(rates, equal) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(RATES)
def test_everybody_who_owns_something_ends_at_the_same_time(rates: list[float]) -> None:
    weights = best_shares(rates)
    count = len(rates)
    ends = [
        (1 + (count - 2) * weight) / rate
        for rate, weight in zip(rates, weights, strict=True)
        if weight > 1e-6
    ]
    assert max(ends) <= min(ends) * (1 + 1e-6)
    idle = [1 / rate for rate, weight in zip(rates, weights, strict=True) if weight == 0]
    assert all(time >= max(ends) * (1 - 1e-6) for time in idle)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1.0, 1e12)), max_size=64))
def test_shares_are_not_negative_and_add_up_to_one(rates: list[float]) -> None:
    weights = best_shares(rates)
    assert len(weights) == len(rates)
    assert all(weight >= 0 for weight in weights)
    if rates:
        assert sum(weights) == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 64), st.floats(1e3, 1e9))
def test_equal_rates_give_equal_shares(count: int, rate: float) -> None:
    assert best_shares([rate] * count) == pytest.approx([1 / count] * count)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e3, 1e9), min_size=1, max_size=20))
def test_a_peer_that_cannot_serve_owns_nothing(rates: list[float]) -> None:
    assert best_shares([*rates, 0.0])[-1] == 0


def test_rates_that_nobody_has_measured_give_equal_shares() -> None:
    assert best_shares([0.0, 0.0, 0.0, 0.0]) == [0.25] * 4
    assert best_shares([]) == []


def test_the_mixed_swarm_of_the_reference_gets_the_reference_times() -> None:
    """A quarter each way fast, half middling, a quarter slow: the slow own nothing, and the time
    is that of sending one's own vector over the slowest link (reference: 80 s for 100 MB)."""
    rates = [1000.0, 50.0, 50.0, 10.0]
    weights = best_shares(rates)
    assert weights[3] == 0
    assert slowest(rates, weights) == pytest.approx(1 / 10)
    assert slowest(rates, [0.25] * 4) == pytest.approx(1.5 / 10)


@pytest.mark.parametrize("rates", [[-5.0, 5.0], [-1.0, -1.0], [-5.0, 10.0, 3.0], [-5.0, 3.0]])
def test_rates_that_cannot_be_count_as_none(rates: list[float]) -> None:
    weights = best_shares(rates)
    assert all(weight >= 0 for weight in weights)
    assert sum(weights) == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.integers(1, 5000),
    block=st.integers(1, 64),
    rates=st.lists(st.floats(0.0, 1e9), min_size=1, max_size=64),
)
def test_slices_cover_the_vector_exactly_on_block_multiples(
    blocks: int, block: int, rates: list[float]
) -> None:
    weights = best_shares(rates)
    ranges = cut(blocks * block, block, weights)
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == blocks * block
    for (low, high), weight in zip(ranges, weights, strict=True):
        assert low <= high and low % block == high % block == 0
        assert abs((high - low) / block - weight * blocks) <= 1 + 1e-6


def test_rates_at_the_end_of_what_floats_can_say_still_give_slices() -> None:
    assert best_shares([0.0, 0.0, 1.1125369292536007e-308]) == [0.0, 0.0, 1.0]
    assert sum(best_shares([1e308, 1e308, 1e-308])) == pytest.approx(1.0)

"""Learning rates by cumulative step."""

import math
from itertools import pairwise

import pytest

from swarmtrain_optimizers.schedule import (
    fresh_optimizer_ramp,
    half_turn_cosine,
    warmup_cosine,
)

SHAPE = {"peak": 2.0, "warmup_steps": 10, "total_steps": 110, "end_fraction": 0.1}


def test_warm_up_rises_in_a_line_to_the_peak() -> None:
    rates = [warmup_cosine(step, **SHAPE) for step in range(10)]
    assert rates == pytest.approx([0.2 * (step + 1) for step in range(10)])


def test_after_warm_up_the_rate_falls_to_its_end_and_stays() -> None:
    rates = [warmup_cosine(step, **SHAPE) for step in range(10, 130)]
    assert rates[0] == 2.0
    assert all(earlier >= later for earlier, later in pairwise(rates))
    assert rates[50] == pytest.approx(2.0 * 0.55)
    assert rates[100:] == [pytest.approx(0.2)] * 20


@pytest.mark.parametrize(("warmup_steps", "total_steps"), [(0, 0), (0, 1), (5, 5), (5, 3)])
def test_odd_lengths_stay_between_zero_and_the_peak(warmup_steps: int, total_steps: int) -> None:
    for step in range(12):
        rate = warmup_cosine(
            step, peak=1.0, warmup_steps=warmup_steps, total_steps=total_steps, end_fraction=0.0
        )
        assert 0.0 <= rate <= 1.0


def test_a_fresh_optimizer_starts_small_and_ends_at_full_rate() -> None:
    ramp = [fresh_optimizer_ramp(step, ramp_steps=4) for step in range(6)]
    assert ramp == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert fresh_optimizer_ramp(0, ramp_steps=0) == 1.0


def test_the_cosine_made_of_plain_operations_is_the_cosine() -> None:
    shares = [step / 10_000 for step in range(10_001)]
    made = [half_turn_cosine(share) for share in shares]
    wanted = [math.cos(math.pi * share) for share in shares]
    assert max(abs(x - y) for x, y in zip(made, wanted, strict=True)) <= 2.0**-51
    assert all(earlier >= later for earlier, later in pairwise(made))
    assert made[0] == 1.0 and made[-1] == -1.0

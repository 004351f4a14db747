"""Any order, any subset, any subtraction: the same bits, up to the last bit of the window."""

import math
import random
from fractions import Fraction

import int8_oracle as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow, payload_of, split_payload

from swarmtrain_optimizers.codecs.int8 import Int8

torch.set_num_threads(1)
CODEC = Int8()
EXACT_BITS = 53
Part = tuple[list[int], list[int], int]


def widest_window(total_weight: int, e_min: int) -> PlanWindow:
    """The widest window that a legal plan may have (protocol.md rule 1)."""
    spread = EXACT_BITS - 15 - math.ceil(math.log2(total_weight))
    return PlanWindow(block=2, e_min=e_min, e_max=e_min + spread)


def zeros(num_values: int) -> torch.Tensor:
    return torch.zeros(num_values, dtype=torch.float64)


def summed(parts: list[Part], window: PlanWindow) -> torch.Tensor:
    acc = zeros(len(parts[0][1]))
    for scales, values, weight in parts:
        CODEC.add_(acc, payload_of(scales, values), weight, window)
    return acc


def draw_parts(rng: random.Random, num_parts: int, window: PlanWindow) -> list[Part]:
    """Adversarial parts: scales at both edges with all mantissa bits set, values at both ends."""
    low, high = (window.e_min + 127) << 7, ((window.e_max + 127) << 7) | 0x7F
    parts = []
    for _ in range(num_parts):
        scales = [rng.choice([0, low, low | 1, low | 0x7F, high, high - 1]) for _ in range(4)]
        values = [rng.choice([-128, -127, -1, 0, 1, 126, 127]) for _ in range(8)]
        parts.append((scales, values, rng.choice([1, 2, 254, 255])))
    return parts


@pytest.mark.parametrize("e_min", [-90, -24, 60])
@pytest.mark.parametrize("num_parts", [1, 3, 64])
def test_sums_in_the_widest_window_are_exact_in_any_order(num_parts: int, e_min: int) -> None:
    rng = random.Random(num_parts)
    window = widest_window(255 * num_parts, e_min)
    for _ in range(6):
        parts = draw_parts(rng, num_parts, window)
        acc = summed(parts, window)
        exact = oracle.exact_sum(parts, window.block)
        assert [Fraction(value) for value in acc.tolist()] == exact
        shuffled = rng.sample(parts, num_parts)
        assert torch.equal(summed(shuffled, window).view(torch.int64), acc.view(torch.int64))


def test_all_peers_at_the_top_of_the_widest_window_leave_room_for_the_lowest_bit() -> None:
    window = widest_window(255 * 64, -90)
    top, low = ((window.e_max + 127) << 7) | 0x7F, (window.e_min + 127) << 7
    parts: list[Part] = [([top], [127, -127], 255)] * 63 + [([low], [1, -1], 1)]
    acc = summed(parts, window)
    assert [Fraction(value) for value in acc.tolist()] == oracle.exact_sum(parts, 2)


@given(st.integers(0, 2**32), st.integers(2, 6), st.data())
@settings(max_examples=40, deadline=None)
def test_subtracting_a_part_leaves_the_bits_of_a_sum_that_never_had_it(
    seed: int, num_parts: int, data: st.DataObject
) -> None:
    rng = random.Random(seed)
    window = widest_window(255 * num_parts, -40)
    parts = draw_parts(rng, num_parts, window)
    gone = data.draw(st.sets(st.integers(0, num_parts - 1), max_size=num_parts - 1))
    acc = summed(parts, window)
    for index in rng.sample(sorted(gone), len(gone)):
        scales, values, weight = parts[index]
        CODEC.subtract_(acc, payload_of(scales, values), weight, window)
    kept = [part for index, part in enumerate(parts) if index not in gone]
    never = summed(kept, window)
    assert torch.equal(acc.view(torch.int64), never.view(torch.int64))
    total_weight = sum(weight for _, _, weight in kept)
    assert CODEC.finish(acc, total_weight, window) == CODEC.finish(never, total_weight, window)


def test_everything_taken_back_leaves_positive_zero() -> None:
    window = widest_window(255 * 8, -24)
    parts = draw_parts(random.Random(5), 8, window)
    acc = summed(parts, window)
    for scales, values, weight in parts:
        CODEC.subtract_(acc, payload_of(scales, values), weight, window)
    assert acc.view(torch.int64).eq(0).all()


@given(st.integers(0, 2**32), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_encoded_mean_equals_the_oracle(seed: int, num_parts: int) -> None:
    rng = random.Random(seed)
    window = widest_window(255 * num_parts, -24)
    low, high = window.e_min + 127, window.e_max + 127
    parts: list[Part] = [
        (
            [(rng.randint(low, high) << 7) | rng.randrange(128) for _ in range(4)],
            [rng.randint(-127, 127) for _ in range(8)],
            rng.randint(1, 255),
        )
        for _ in range(num_parts)
    ]
    total_weight = sum(weight for _, _, weight in parts)
    mean = [
        oracle.float32(float(value) / total_weight)
        for value in oracle.exact_sum(parts, window.block)
    ]
    result = CODEC.finish(summed(parts, window), total_weight, window)
    assert split_payload(result, 8, window.block) == oracle.encode(mean, window)
    CODEC.check(result, 8, window)


def test_identical_parts_have_their_own_values_as_mean_whatever_their_number() -> None:
    window = PlanWindow()
    values = torch.randn(64, generator=torch.Generator().manual_seed(2)) * 0.01
    part = CODEC.encode(values, window)
    results = set()
    for num_parts in (1, 2, 3, 7):
        acc = zeros(64)
        for _ in range(num_parts):
            CODEC.add_(acc, part, 31, window)
        results.add(CODEC.finish(acc, 31 * num_parts, window))
    assert len(results) == 1

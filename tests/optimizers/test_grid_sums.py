"""Sums of coarse codes: any order, subset and subtraction gives the same bits (rule 1)."""

import math
import random
from fractions import Fraction

import grid_oracle as oracle
import pytest
import torch
from int8_oracle import float32
from window import PlanWindow

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import Codec

torch.set_num_threads(1)
NAMES = ("int4", "e3m0", "two_bit", "sign")
EXACT_BITS = 53


def widest_window(total_weight: int, e_min: int) -> PlanWindow:
    """The widest window that a legal plan may have (protocol.md rule 1)."""
    spread = EXACT_BITS - 15 - math.ceil(math.log2(total_weight))
    return PlanWindow(e_min=e_min, e_max=e_min + spread)


def hostile_part(rng: random.Random, codec: Codec, window: PlanWindow) -> bytes:
    """Scales at both edges with all mantissa bits set, and the outermost levels."""
    bits = oracle.BITS[codec.name]
    low, high = (window.e_min + 127) << 7, ((window.e_max + 127) << 7) | 0x7F
    codes = sorted(oracle.CODES[codec.name].values())
    scales, text = b"", ""
    for _ in range(4):
        scale = rng.choice([0, low, low | 0x7F, high, high - 1])
        scales += scale.to_bytes(2, "little")
        for _ in range(8):
            text = format(rng.choice(codes) if scale else 0, f"0{bits}b") + text
    return scales + int(text, 2).to_bytes(len(text) // 8, "little")


def exact_sum(parts: list[tuple[bytes, int]], name: str, window: PlanWindow) -> list[Fraction]:
    sums = [Fraction(0)] * 32
    for payload, weight in parts:
        values = oracle.decode(payload, 32, name, window)
        sums = [total + weight * value for total, value in zip(sums, values, strict=True)]
    return sums


def summed(codec: Codec, parts: list[tuple[bytes, int]], window: PlanWindow) -> torch.Tensor:
    acc = torch.zeros(32, dtype=torch.float64)
    for payload, weight in parts:
        codec.add_(acc, payload, weight, window)
    return acc


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("e_min", [-90, -24, 60])
@pytest.mark.parametrize("num_parts", [1, 3, 64])
def test_sums_in_the_widest_window_are_exact_in_any_order(
    name: str, num_parts: int, e_min: int
) -> None:
    codec, rng = codec_named(name), random.Random(num_parts)
    window = widest_window(255 * num_parts, e_min)
    parts = [
        (hostile_part(rng, codec, window), rng.choice([1, 254, 255])) for _ in range(num_parts)
    ]
    for payload, _ in parts:
        codec.check(payload, 32, window)
    acc = summed(codec, parts, window)
    assert [Fraction(value) for value in acc.tolist()] == exact_sum(parts, name, window)
    shuffled = summed(codec, rng.sample(parts, num_parts), window)
    assert torch.equal(shuffled.view(torch.int64), acc.view(torch.int64))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_a_part_taken_back_leaves_the_bits_of_a_sum_that_never_had_it(name: str, seed: int) -> None:
    codec, rng = codec_named(name), random.Random(seed)
    window = widest_window(255 * 6, -40)
    parts = [(hostile_part(rng, codec, window), rng.randint(1, 255)) for _ in range(6)]
    acc = summed(codec, parts, window)
    for payload, weight in rng.sample(parts[:3], 3):
        codec.subtract_(acc, payload, weight, window)
    never = summed(codec, parts[3:], window)
    assert torch.equal(acc.view(torch.int64), never.view(torch.int64))
    total_weight = sum(weight for _, weight in parts[3:])
    mean = codec.mean(parts[3:], 32, window)
    assert (
        mean == codec.finish(acc, total_weight, window) == codec.finish(never, total_weight, window)
    )
    for payload, weight in parts[3:]:
        codec.subtract_(never, payload, weight, window)
    assert never.view(torch.int64).eq(0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_the_encoded_mean_equals_the_oracle_and_is_legal(name: str, seed: int) -> None:
    codec, rng = codec_named(name), random.Random(seed)
    window = widest_window(255 * 3, -24)
    parts = [(hostile_part(rng, codec, window), rng.randint(1, 255)) for _ in range(3)]
    total_weight = sum(weight for _, weight in parts)
    sums = exact_sum(parts, name, window)
    mean = [float32(float(value) / total_weight) for value in sums]
    result = codec.mean(parts, 32, window)
    codec.check(result, 32, window)
    assert result == oracle.encode(mean, name, window)


@pytest.mark.parametrize("name", NAMES)
def test_all_peers_at_the_top_of_the_window_have_a_legal_mean(name: str) -> None:
    codec, window = codec_named(name), widest_window(255 * 64, -24)
    top = (((window.e_max + 127) << 7) | 0x7F).to_bytes(2, "little")
    largest = max(oracle.CODES[name], key=abs)
    code = oracle.CODES[name][largest]
    text = format(code, f"0{oracle.BITS[name]}b") * 8
    part = top + int(text, 2).to_bytes(len(text) // 8, "little")
    codec.check(part, 8, window)
    result = codec.mean([(part, 255)] * 64, 8, window)
    codec.check(result, 8, window)
    if name != "two_bit":  # whose scale follows the mean, so equal values are sent larger
        assert result == part

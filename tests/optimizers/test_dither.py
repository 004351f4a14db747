"""Stochastic rounding: the same bits from the same seed and place, and right on average."""

import math

import numpy as np
import pytest
import torch
from window import PlanWindow

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import StochasticCodec, UnencodableValues
from swarmtrain_optimizers.codecs.dither import fractions, outputs, random_words
from swarmtrain_optimizers.codecs.e3m0 import E3M0
from swarmtrain_optimizers.codecs.int4 import Int4
from swarmtrain_optimizers.codecs.int8 import Int8

torch.set_num_threads(1)
WINDOW = PlanWindow(e_max=8)
CODECS: list[StochasticCodec] = [Int8(), Int4(), E3M0()]
TOP = {"int8": 127.0, "int4": 7.0, "e3m0": 64.0}

codecs = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def naive_splitmix(state: int, count: int) -> list[int]:
    """The published algorithm, one output after the other, in Python's own integers."""
    results = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        results.append(z ^ (z >> 31))
    return results


def naive_words(seed: int, count: int) -> list[int]:
    halves = []
    for output in naive_splitmix(naive_splitmix(seed, 1)[0], (count + 1) // 2):
        halves += [output % 2**32, output >> 32]
    return halves[:count]


def naive_level(ratio: float, word: int, name: str) -> float:
    levels = (
        [0.0, *(2.0**k for k in range(7))] if name == "e3m0" else [float(i) for i in range(128)]
    )
    sign, magnitude = math.copysign(1, ratio), abs(ratio)
    if name != "e3m0":  # rounds towards the larger number, not the larger magnitude
        return math.floor(ratio) + ((word >> 8) / 2**24 < ratio - math.floor(ratio))
    low = max(level for level in levels if level <= magnitude)
    if low in (0.0, magnitude):
        return sign * ((word >> 8) / 2**24 < magnitude if low == 0 else low)
    return sign * (2 * low if (magnitude / low - 1) + (word >> 9) / 2**23 >= 1 else low)


def test_the_published_outputs_come_out() -> None:
    assert outputs(0, 0, 1).tolist() == [0xE220A8397B1DCDAF]
    assert outputs(1234567, 0, 3).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_numbers_are_those_of_the_oracle_wherever_they_begin(seed: int) -> None:
    words = naive_words(seed, 40)
    for first, count in ((0, 40), (0, 1), (1, 1), (1, 6), (7, 33), (12, 0), (39, 1)):
        assert random_words(seed, first, count).tolist() == words[first : first + count]


def test_far_places_and_all_seeds_are_reached() -> None:
    assert random_words(3, 2**40, 4).tolist() != random_words(3, 0, 4).tolist()
    assert random_words(2**64 - 1, 2**62, 3).size == 3
    for seed, first in ((-1, 0), (2**64, 0), (0, -1)):
        with pytest.raises(ValueError, match="out of range"):
            random_words(seed, first, 1)


def test_numbers_are_uniform_and_neighbours_differ() -> None:
    for seed in (0, 1, 2):
        values = fractions(random_words(seed, 0, 1 << 16)).astype(np.float64)
        counts = np.histogram(values, bins=64, range=(0, 1))[0]
        expected = values.size / 64
        assert ((counts - expected) ** 2 / expected).sum() < 120  # 63 degrees of freedom
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / 256
    first, second = (fractions(random_words(seed, 0, 1 << 16)) for seed in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 256


@codecs
def test_each_value_goes_where_the_oracle_says(codec: StochasticCodec) -> None:
    top = TOP[codec.name]
    generator = torch.Generator().manual_seed(2)
    values = (torch.rand(64, 8, generator=generator) * 2 - 1) * top
    values[:, 3] = values[:, 3] / top  # small ones, between zero and the first level
    values[:, 0] = top  # so that every scale is 1
    payload = codec.encode_stochastic(values.view(-1), WINDOW, seed=9, first_index=16)
    codec.check(payload, 512, WINDOW)
    words = naive_words(9, 16 + 512)[16:]
    pairs = zip(values.view(-1).tolist(), words, strict=True)
    wanted = [naive_level(value, word, codec.name) for value, word in pairs]
    assert codec.decode(payload, 512, WINDOW).tolist() == wanted


@codecs
def test_the_mean_of_many_draws_is_the_value_itself(codec: StochasticCodec) -> None:
    top, draws = TOP[codec.name], 10_000
    block = torch.tensor([top, 0.3, -0.7, 1.25, -2.6, 5.01, 0.02, -0.0])
    payload = codec.encode_stochastic(block.repeat(draws), WINDOW, seed=4, first_index=0)
    decoded = codec.decode(payload, 8 * draws, WINDOW).double().view(draws, 8)
    mean, deviation = decoded.mean(0), decoded.std(0)
    assert bool(((mean - block).abs() <= 4 * deviation / math.sqrt(draws) + 1e-6).all())


@codecs
def test_the_same_seed_gives_the_same_bytes_wherever_the_vector_is_cut(
    codec: StochasticCodec,
) -> None:
    window = PlanWindow(block=1024, e_max=8)
    values = torch.randn(70 * 1024, generator=torch.Generator().manual_seed(1))
    whole = codec.encode_stochastic(values, window, seed=5, first_index=4096)
    assert whole == codec.encode_stochastic(values, window, seed=5, first_index=4096)
    assert whole != codec.encode_stochastic(values, window, seed=6, first_index=4096)
    decoded = codec.decode(whole, values.numel(), window)
    for start, stop in ((0, 1), (1, 40), (33, 70)):
        piece = values[1024 * start : 1024 * stop]
        part = codec.encode_stochastic(piece, window, seed=5, first_index=4096 + 1024 * start)
        assert torch.equal(
            codec.decode(part, piece.numel(), window), decoded[1024 * start : 1024 * stop]
        )


@codecs
def test_levels_themselves_stay_and_scales_are_those_of_encode(codec: StochasticCodec) -> None:
    window = PlanWindow(block=256, e_max=8)
    values = torch.randn(4096, generator=torch.Generator().manual_seed(8))
    values[:256] = 2.0**-60
    values[256:512] = 0
    plain = codec.encode(values, window)
    drawn = codec.encode_stochastic(values, window, seed=1, first_index=0)
    assert drawn[:32] == plain[:32]
    codec.check(drawn, 4096, window)
    assert not codec.decode(drawn, 4096, window)[:512].any()
    levels = codec.decode(plain, 4096, window)
    if codec.name != "int8":  # whose largest value may be 126 scales, which moves the scale
        assert codec.encode_stochastic(levels, window, seed=2, first_index=0) == plain


@codecs
def test_what_cannot_be_sent_is_reported_alike(codec: StochasticCodec) -> None:
    for value, reason in (
        (math.nan, "nonfinite"),
        (-math.inf, "nonfinite"),
        (1e30, "above-window"),
    ):
        values = torch.ones(16)
        values[11] = value
        with pytest.raises(UnencodableValues) as caught:
            codec.encode_stochastic(values, WINDOW, seed=0, first_index=0)
        assert caught.value.reason == reason


@pytest.mark.parametrize("name", ["two_bit", "sign"])
def test_codecs_of_few_levels_have_no_stochastic_rounding(name: str) -> None:
    codec = codec_named(name)
    with pytest.raises(TypeError, match="levels are few"):
        codec.encode_stochastic(torch.ones(8), WINDOW, seed=0, first_index=0)

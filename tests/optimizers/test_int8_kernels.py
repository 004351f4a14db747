"""The compiled loops of int8 make numpy's bits. Uncompiled they are plain Python: tested too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow

from swarmtrain_optimizers.codecs import int8_kernels
from swarmtrain_optimizers.codecs.base import UnencodableValues
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.int8_loops import Loops

PLAIN = Loops(int8_kernels.encode, int8_kernels.add, int8_kernels.finish, int8_kernels.decode)
WINDOW = PlanWindow()
NUMPY = Int8()


@pytest.fixture(scope="module", params=["plain", "numba"])
def other(request: pytest.FixtureRequest) -> Int8:
    codec = Int8()
    if request.param == "plain":
        codec._loops = PLAIN
    elif not codec.prepare():
        pytest.skip("numba is not installed: pip install swarmtrain[fast]")
    return codec


def chunk(seed: int, num_values: int = 512, spread: int = 30) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-spread, 5, (num_values // WINDOW.block, 1), generator=generator)
    values = torch.randn(num_values // WINDOW.block, WINDOW.block, generator=generator)
    values *= torch.exp2(exponents.float())
    values[0] = 0
    return values.view(-1)


@given(seed=st.integers(0, 2**32), weights=st.lists(st.integers(1, 255), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_every_loop_makes_the_bits_of_numpy(other: Int8, seed: int, weights: list[int]) -> None:
    parts = [NUMPY.encode(chunk(seed + i), WINDOW) for i in range(len(weights))]
    assert parts == [other.encode(chunk(seed + i), WINDOW) for i in range(len(weights))]
    weighted = list(zip(parts, weights, strict=True))
    assert NUMPY.mean(weighted, 512, WINDOW) == other.mean(weighted, 512, WINDOW)
    ours, theirs = (codec.decode(parts[0], 512, WINDOW) for codec in (NUMPY, other))
    assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    sums = [torch.zeros(512, dtype=torch.float64) for _ in range(2)]
    for acc, codec in zip(sums, (NUMPY, other), strict=True):
        for part, weight in weighted:
            codec.add_(acc, part, weight, WINDOW)
        codec.subtract_(acc, parts[0], weights[0], WINDOW)
    assert sums[0].numpy().tobytes() == sums[1].numpy().tobytes()


def test_a_mean_is_the_sum_finished(other: Int8) -> None:
    parts = [(other.encode(chunk(seed), WINDOW), weight) for seed, weight in ((1, 3), (2, 255))]
    acc = torch.zeros(512, dtype=torch.float64)
    for part, weight in parts:
        other.add_(acc, part, weight, WINDOW)
    assert other.mean(parts, 512, WINDOW) == other.finish(acc, 258, WINDOW)


@pytest.mark.parametrize(
    ("value", "reason"),
    [(float("nan"), "nonfinite"), (float("inf"), "nonfinite"), (-1e30, "above-window")],
)
def test_what_cannot_be_sent_is_refused_alike(other: Int8, value: float, reason: str) -> None:
    values = chunk(5)
    values[300] = value
    for codec in (NUMPY, other):
        with pytest.raises(UnencodableValues) as caught:
            codec.encode(values, WINDOW)
        assert caught.value.reason == reason


@pytest.mark.parametrize("extreme", [-128, 127])
def test_a_hostile_part_is_held_inside_the_window_alike(other: Int8, extreme: int) -> None:
    highest = np.full(64, ((WINDOW.e_max + 127) << 7) | 0x7F, dtype="<u2").tobytes()
    part = highest + np.full(512, extreme, dtype=np.int8).tobytes()
    mean = NUMPY.mean([(part, 1)], 512, WINDOW)
    NUMPY.check(mean, 512, WINDOW)
    assert other.mean([(part, 1)], 512, WINDOW) == mean


def test_read_only_and_unaligned_chunks_are_taken(other: Int8) -> None:
    part = NUMPY.encode(chunk(8), WINDOW)
    shifted = memoryview(b"x" + part)[1:]
    assert other.mean([(shifted, 2)], 512, WINDOW) == NUMPY.mean([(part, 2)], 512, WINDOW)
    ours = other.decode(shifted, 512, WINDOW)
    assert ours.numpy().tobytes() == NUMPY.decode(part, 512, WINDOW).numpy().tobytes()

"""The exchange's arithmetic on real codecs: contracts, refusals, and results put together."""

import math
from itertools import pairwise

import pytest
import torch

from swarmtrain.peer.arithmetic import CodecArithmetic, TensorContribution, decode_result
from swarmtrain_transport.arithmetic import (
    Accumulator,
    Arithmetic,
    Contribution,
    ContributionRefused,
    Window,
)
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.result import OpResult, SliceResult

torch.set_num_threads(1)
WINDOW = Window(codec="int8", block=8, e_min=-24, e_max=0)
NONE = Window(codec="none", block=8, e_min=-24, e_max=0)
ARITHMETIC: Arithmetic = CodecArithmetic()


def contribution(seed: int, num_values: int = 80) -> Contribution:
    generator = torch.Generator().manual_seed(seed)
    return TensorContribution(torch.randn(num_values, generator=generator) * 0.1)


def op_result(
    window: Window, chunk_values: int, num_values: int, slices: tuple[SliceResult, ...]
) -> OpResult:
    return OpResult(
        op=7,
        window=window,
        chunk_values=chunk_values,
        num_values=num_values,
        slices=slices,
        checkpoint_by=b"",
        evaluate_by=b"",
        replayed=False,
    )


def encoded_result(
    bounds: list[int], chunk_values: int, window: Window
) -> tuple[OpResult, torch.Tensor]:
    """An op of two contributors with weights 2 and 1, and its mean made in one piece."""
    parts = [contribution(1), contribution(2)]
    slices = []
    for start, stop in pairwise(bounds):
        chunks = []
        for low in range(start, stop, chunk_values):
            high = min(low + chunk_values, stop)
            total: Accumulator = ARITHMETIC.accumulator(high - low, window)
            for part, weight in zip(parts, (2, 1), strict=True):
                total.add(part.encode(low, high, window), weight)
            chunks.append(total.finish(3))
        slices.append(SliceResult(start, stop, (b"a", b"b"), tuple(chunks)))
    result = op_result(window, chunk_values, bounds[-1], tuple(slices))
    whole = SliceResult(0, bounds[-1], (b"a", b"b"), (_whole_mean(parts, bounds[-1], window),))
    one = op_result(window, bounds[-1], bounds[-1], (whole,))
    return result, decode_result(one)


def _whole_mean(parts: list[Contribution], num_values: int, window: Window) -> bytes:
    total = ARITHMETIC.accumulator(num_values, window)
    for part, weight in zip(parts, (2, 1), strict=True):
        total.add(part.encode(0, num_values, window), weight)
    return total.finish(3)


@pytest.mark.parametrize("window", [WINDOW, NONE])
@pytest.mark.parametrize(
    ("bounds", "chunk_values"), [([0, 80], 80), ([0, 80], 24), ([0, 16, 16, 72, 80], 32)]
)
def test_slices_and_chunks_change_no_bit_of_the_result(
    window: Window, bounds: list[int], chunk_values: int
) -> None:
    result, whole = encoded_result(bounds, chunk_values, window)
    mean = decode_result(result)
    assert mean.shape == (80,) and mean.dtype == torch.float32
    assert torch.equal(mean, whole)


@pytest.mark.parametrize("window", [WINDOW, NONE])
def test_a_part_has_the_announced_length_and_the_same_bytes_each_time(window: Window) -> None:
    part = contribution(3)
    encoded = part.encode(16, 48, window)
    assert len(encoded) == ARITHMETIC.chunk_bytes(32, window)
    ARITHMETIC.check(encoded, 32, window)
    assert part.encode(16, 48, window) == encoded


def test_the_order_of_parts_changes_no_bit_where_sums_are_exact() -> None:
    parts = [(contribution(seed).encode(0, 80, WINDOW), 9 * seed) for seed in (1, 2, 3)]
    means = set()
    for order in (parts, parts[::-1]):
        total = ARITHMETIC.accumulator(80, WINDOW)
        for part, weight in order:
            total.add(memoryview(part), weight)
        means.add(total.finish(54))
    assert len(means) == 1
    assert ARITHMETIC.is_exact("int8") and not ARITHMETIC.is_exact("none")


def test_bytes_of_the_other_side_are_refused_with_a_reason() -> None:
    for payload, reason in ((bytes(9), "length"), (b"\x01\x00" + bytes(8), "scale")):
        with pytest.raises(RemoteFault) as caught:
            ARITHMETIC.check(payload, 8, WINDOW)
        assert caught.value.reason == reason


def test_a_codec_that_this_version_does_not_know_is_the_other_sides_fault() -> None:
    for call in (
        lambda: ARITHMETIC.is_exact("int3"),
        lambda: ARITHMETIC.chunk_bytes(8, Window("int3", 8, -24, 0)),
    ):
        with pytest.raises(RemoteFault, match="int3") as caught:
            call()
        assert caught.value.reason == "codec"


@pytest.mark.parametrize(
    ("value", "reason"), [(math.nan, "nonfinite"), (math.inf, "nonfinite"), (1e4, "above-window")]
)
def test_our_own_values_that_cannot_be_sent_are_reported(value: float, reason: str) -> None:
    values = torch.zeros(16)
    values[12] = value
    part = TensorContribution(values)
    assert part.encode(0, 8, WINDOW) == bytes(10)
    with pytest.raises(ContributionRefused) as caught:
        part.encode(0, 16, WINDOW)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("start", "stop"), [(0, 81), (-8, 8), (4, 16), (0, 12), (8, 8), (80, 88)])
def test_a_range_that_is_not_whole_blocks_of_the_vector_is_our_bug(start: int, stop: int) -> None:
    with pytest.raises(LocalFault, match="whole blocks"):
        contribution(1).encode(start, stop, WINDOW)


def test_what_others_decode_of_us_is_what_we_encoded() -> None:
    part = TensorContribution(torch.linspace(-1, 1, 80))
    total = ARITHMETIC.accumulator(16, WINDOW)
    total.add(part.encode(8, 24, WINDOW), 5)
    alone = SliceResult(0, 16, (b"a",), (total.finish(5),))
    mean = decode_result(op_result(WINDOW, 16, 16, (alone,)))
    assert torch.allclose(mean, part.decoded(8, 24, WINDOW), atol=1e-2)


def test_an_illegal_result_is_refused_though_its_hash_was_agreed_on() -> None:
    good, _ = encoded_result([0, 40, 80], 40, WINDOW)
    first, second = good.slices
    nan_scale = b"\xc0\x7f" + first.chunks[0][2:]
    bad_slices = {
        "scale": (SliceResult(0, 40, (b"a",), (nan_scale,)), second),
        "length": (SliceResult(0, 40, (b"a",), (first.chunks[0][:-1],)), second),
        "result": (second, first),
    }
    for reason, slices in bad_slices.items():
        with pytest.raises(RemoteFault) as caught:
            decode_result(op_result(WINDOW, 40, 80, slices))
        assert caught.value.reason == reason
    with pytest.raises(RemoteFault, match="cover 40 of 80"):
        decode_result(op_result(WINDOW, 40, 80, (first,)))
    with pytest.raises(RemoteFault, match="2 chunks"):
        two = SliceResult(0, 40, (b"a",), first.chunks * 2)
        decode_result(op_result(WINDOW, 40, 80, (two, second)))


@pytest.mark.parametrize("codec", ["int8", "none"])
def test_owners_see_how_long_a_contribution_is_and_which_way_it_points(codec: str) -> None:
    window = Window(codec, 64, -40, 10)
    one = torch.linspace(-1.0, 1.0, 256)
    rows = [one, -one, 0.1 * one + 0.01]
    arithmetic = CodecArithmetic()
    parts = [TensorContribution(row).encode(0, 256, window) for row in rows]
    total = arithmetic.accumulator(256, window)
    for part in parts:
        total.add(part, 2)
    found = arithmetic.gauges(parts, total.finish(6), 256, window)
    mean = sum(rows) / 3
    for row, (norm, product) in zip([*rows, mean], found, strict=True):
        assert norm == pytest.approx(float(row.dot(row)), rel=0.02)
        assert product == pytest.approx(float(row.dot(mean)), rel=0.05, abs=0.02)

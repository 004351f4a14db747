"""The topk codec: bits against a naive oracle, ties, and what bytes it refuses."""

import math
import warnings
from fractions import Fraction
from itertools import pairwise

import pytest
import topk_oracle as oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_optimizers.codecs.topk import TopK

torch.set_num_threads(1)
WINDOW = PlanWindow(e_max=6)
CODEC = TopK(3)
# Three indices of three bits, three codes of two bits and a bit of padding: two bytes.
RECORD = 2
ONE, TWO = b"\x80\x3f", b"\x00\x40"

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-64, max_value=64)
chunks = st.lists(
    st.lists(float32s | st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.0]), min_size=8, max_size=8),
    min_size=1, max_size=3,
)  # fmt: skip


def record(indices: list[int], codes: list[int], padding: int = 0) -> bytes:
    number = sum(index << (3 * place) for place, index in enumerate(indices))
    number |= sum(code << (9 + 2 * place) for place, code in enumerate(codes)) | padding << 15
    return number.to_bytes(RECORD, "little")


@given(rows=chunks, kept=st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_encoding_equals_the_oracle(rows: list[list[float]], kept: int) -> None:
    codec, values = TopK(kept), torch.tensor(rows).view(-1)
    payload = codec.encode(values, WINDOW)
    wanted = oracle.encode(values.tolist(), kept, WINDOW)
    # Which of two equally good splits comes out is decided by the last bit of a division: then
    # the magnitudes differ, but never what stands where.
    head = 4 * len(rows)
    if payload[:head] == wanted[:head]:
        assert payload == wanted
    codec.check(payload, values.numel(), WINDOW)
    decoded = codec.decode(payload, values.numel(), WINDOW)
    assert decoded.tolist() == oracle.decode(payload, values.numel(), kept, WINDOW)
    best = oracle.decode(wanted, values.numel(), kept, WINDOW)
    exact = [Fraction(value) for value in values.tolist()]
    ours, theirs = (
        sum((a - b) ** 2 for a, b in zip(exact, got, strict=True))
        for got in ([Fraction(value) for value in decoded.tolist()], best)
    )
    # Equally good before the magnitudes were rounded to 8 bits.
    assert ours <= theirs + sum(value**2 for value in exact) / 10_000


@pytest.mark.parametrize(("kept", "block"), [(64, 4096), (5, 100), (300, 1024)])
def test_gaussian_chunks_equal_the_oracle_bit_for_bit(kept: int, block: int) -> None:
    window = PlanWindow(block=block)
    generator = torch.Generator().manual_seed(kept)
    sizes = torch.exp2(torch.randint(-30, -3, (3, 1), generator=generator).float())
    values = (torch.randn(3, block, generator=generator) * sizes).view(-1)
    codec = TopK(kept)
    payload = codec.encode(values, window)
    assert len(payload) == codec.payload_bytes(3 * block, block)
    assert payload == oracle.encode(values.tolist(), kept, window)


def test_the_usual_chunk_takes_116_bytes_per_4096_values() -> None:
    assert codec_named("topk").payload_bytes(4096 * 10, 4096) == 1160
    assert codec_named("topk-256").payload_bytes(4096, 4096) == 4 + 256 * 14 // 8


def test_of_equal_values_those_with_the_lowest_index_are_kept() -> None:
    values = torch.tensor([1.0, -2, 1, 2, -1, 1, -1, 1] + [-1.0] * 8)
    payload = CODEC.encode(values, WINDOW)
    decoded = CODEC.decode(payload, 16, WINDOW)
    assert decoded.tolist() == [1.0, -2, 0, 2, 0, 0, 0, 0] + [-1.0] * 3 + [0.0] * 5


def test_a_zero_block_is_zeros_and_fewer_values_than_kept_are_all_there() -> None:
    values = torch.tensor([0.0, -0.0] * 4 + [0, 0, 0, -0.5, 0, 0, 0, 0])
    payload = CODEC.encode(values, WINDOW)
    CODEC.check(payload, 16, WINDOW)
    decoded = CODEC.decode(payload, 16, WINDOW)
    assert torch.equal(decoded, values)
    assert decoded[:8].view(torch.int32).eq(0).all()


@given(rows=chunks)
@settings(max_examples=60, deadline=None)
def test_encoding_what_was_decoded_changes_nothing(rows: list[list[float]]) -> None:
    values = torch.tensor(rows).view(-1)
    once = CODEC.decode(CODEC.encode(values, WINDOW), values.numel(), WINDOW)
    twice = CODEC.decode(CODEC.encode(once, WINDOW), values.numel(), WINDOW)
    assert torch.equal(once, twice)


@given(rows=chunks, weights=st.lists(st.integers(1, 255), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_sums_are_exact_and_parts_can_be_taken_back(
    rows: list[list[float]], weights: list[int]
) -> None:
    values = torch.tensor(rows).view(-1)
    parts = [(CODEC.encode(values / weight, WINDOW), weight) for weight in weights]
    acc = torch.zeros(values.numel(), dtype=torch.float64)
    sums = [Fraction(0)] * values.numel()
    for payload, weight in parts:
        CODEC.add_(acc, payload, weight, WINDOW)
        decoded = oracle.decode(payload, values.numel(), 3, WINDOW)
        sums = [total + weight * value for total, value in zip(sums, decoded, strict=True)]
    assert [Fraction(value) for value in acc.tolist()] == sums
    for payload, weight in parts:
        CODEC.subtract_(acc, payload, weight, WINDOW)
    assert acc.view(torch.int64).eq(0).all()


def test_a_mean_is_refused() -> None:
    payload = CODEC.encode(torch.ones(8), WINDOW)
    with pytest.raises(TypeError, match="gather"):
        CODEC.finish(torch.zeros(8, dtype=torch.float64), 1, WINDOW)
    with pytest.raises(TypeError, match="gather"):
        CODEC.mean([(payload, 1)], 8, WINDOW)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 7, 13])
def test_a_value_that_is_not_finite_is_reported_not_sent(bad: float, index: int) -> None:
    values = torch.ones(16)
    values[index] = bad
    with pytest.raises(UnencodableValues) as caught:
        CODEC.encode(values, WINDOW)
    assert caught.value.reason == "nonfinite"


@pytest.mark.parametrize("largest", [129.0, 3.4e38])
def test_a_value_above_the_window_is_reported_not_sent(largest: float) -> None:
    values = torch.ones(16)
    values[9] = -largest
    with pytest.raises(UnencodableValues) as caught:
        CODEC.encode(values, WINDOW)
    assert caught.value.reason == "above-window"


def test_blocks_do_not_influence_each_other_wherever_a_vector_is_cut() -> None:
    window, codec = PlanWindow(block=512), TopK(20)
    values = torch.randn(160 * 512, generator=torch.Generator().manual_seed(1)) * 0.1
    smaller, larger, records = b"", b"", b""
    for start, stop in pairwise([0, 1, 64, 130, 160]):
        part, count = codec.encode(values[512 * start : 512 * stop], window), 2 * (stop - start)
        smaller += part[:count]
        larger += part[count : 2 * count]
        records += part[2 * count :]
    assert smaller + larger + records == codec.encode(values, window)


@pytest.mark.parametrize(
    ("levels", "indices", "codes", "padding", "reason"),
    [
        (ONE + TWO, [0, 5, 7], [0, 1, 3], 0, None),
        (ONE + TWO, [0, 5, 7], [0, 1, 3], 1, "code"),
        (ONE + TWO, [5, 0, 7], [0, 1, 3], 0, "index"),
        (ONE + TWO, [0, 5, 5], [0, 1, 3], 0, "index"),
        (ONE + TWO, [0, 0, 5], [0, 1, 3], 0, "index"),
        (TWO + ONE, [0, 5, 7], [0, 1, 3], 0, "scale"),
        (TWO + TWO, [0, 5, 7], [0, 1, 3], 0, None),
        (b"\0\0" + TWO, [0, 5, 7], [0, 1, 3], 0, None),
        (b"\0\0" + TWO, [0, 5, 7], [2, 1, 3], 0, "code"),
        (b"\0\0\0\0", [0, 5, 7], [0, 1, 0], 0, "code"),
        (ONE + b"\xc0\x7f", [0, 5, 7], [0, 1, 3], 0, "scale"),
        (b"\x01\0" + TWO, [0, 5, 7], [0, 1, 3], 0, "scale"),
        (b"\x80\xbf" + TWO, [0, 5, 7], [0, 1, 3], 0, "scale"),
    ],
)
def test_what_no_encoder_makes_is_refused(
    levels: bytes, indices: list[int], codes: list[int], padding: int, reason: str | None
) -> None:
    payload = levels + record(indices, codes, padding)
    if reason is None:
        CODEC.check(payload, 8, WINDOW)
        return
    with pytest.raises(IllegalPayload, match="block 0 ") as caught:
        CODEC.check(payload, 8, WINDOW)
    assert caught.value.reason == reason


def test_an_index_outside_its_block_is_refused() -> None:
    window = PlanWindow(block=5, e_max=6)
    with pytest.raises(IllegalPayload, match="outside") as caught:
        CODEC.check(ONE + TWO + record([0, 1, 5], [0, 1, 3]), 5, window)
    assert caught.value.reason == "index"
    CODEC.check(ONE + TWO + record([0, 1, 4], [0, 1, 3]), 5, window)


@given(payload=st.binary(min_size=12, max_size=12) | st.binary(max_size=14))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused_or_decode_as_the_oracle_does(payload: bytes) -> None:
    levels = ONE + ONE + TWO + TWO
    for data in (payload, levels + payload[8:]):
        try:
            CODEC.check(data, 16, WINDOW)
        except IllegalPayload as refused:
            assert refused.reason in {"length", "scale", "index", "code"}
            continue
        decoded = CODEC.decode(data, 16, WINDOW)
        assert decoded.tolist() == oracle.decode(data, 16, 3, WINDOW)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_without_a_warning_and_not_changed(wrap: type) -> None:
    original = CODEC.encode(torch.linspace(-1, 1, 16), WINDOW)
    odd_offset = memoryview(b"x" + original)[1:]
    acc = torch.zeros(16, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for payload in (wrap(original), odd_offset):
            CODEC.check(payload, 16, WINDOW)
            CODEC.add_(acc, payload, 3, WINDOW)
            CODEC.subtract_(acc, payload, 3, WINDOW)
            CODEC.decode(payload, 16, WINDOW, torch.full((16,), math.nan)).add_(1)
            assert bytes(payload) == original
    assert not acc.any()


def test_settings_that_do_not_fit_are_refused() -> None:
    for name in ("topk-0", "topk-01", "topk--1", "topk-65537", "topk-", "TopK"):
        with pytest.raises(ValueError, match="topk"):
            codec_named(name)
    assert codec_named("topk-65536").name == "topk-65536"
    with pytest.raises(ValueError, match="a block of 2 "):
        CODEC.payload_bytes(2, 2)
    with pytest.raises(ValueError, match=r"1\.\.255"):
        CODEC.add_(torch.zeros(8, dtype=torch.float64), bytes(6), 256, WINDOW)

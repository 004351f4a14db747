"""The int8 codec against a naive oracle, at the edges of its window, and against bad bytes."""

import math
import warnings

import int8_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow, payload_of, split_payload

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_optimizers.codecs.int8 import Int8

torch.set_num_threads(1)
CODEC = Int8()
WINDOW = PlanWindow()
ONE = 0x3F80  # 1.0 as a bfloat16

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-120, max_value=120)
blocks = st.lists(float32s, min_size=8, max_size=8)


@given(st.lists(blocks, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_encoding_equals_the_oracle(rows: list[list[float]]) -> None:
    values = [value for row in rows for value in row]
    payload = CODEC.encode(torch.tensor(values, dtype=torch.float32), WINDOW)
    assert split_payload(payload, len(values), 8) == oracle.encode(values, WINDOW)


def test_encoding_equals_the_oracle_on_many_scales() -> None:
    generator = torch.Generator().manual_seed(3)
    scale = torch.exp2(torch.randint(-34, 6, (256, 1), generator=generator).float())
    values = (torch.randn(256, 8, generator=generator) * scale).view(-1)
    payload = CODEC.encode(values, WINDOW)
    assert split_payload(payload, 2048, 8) == oracle.encode(values.tolist(), WINDOW)


@given(st.lists(blocks, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_an_encoded_chunk_is_legal_and_decodes_within_half_a_scale(rows: list[list[float]]) -> None:
    values = torch.tensor(rows, dtype=torch.float32).view(-1)
    payload = CODEC.encode(values, WINDOW)
    CODEC.check(payload, values.numel(), WINDOW)
    decoded = CODEC.decode(payload, values.numel(), WINDOW)
    scales = [float(oracle.scale_of(bits)) for bits in split_payload(payload, values.numel(), 8)[0]]
    for index, scale in enumerate(scales):
        error = (decoded - values)[8 * index : 8 * index + 8].abs().max().item()
        # A block below the window decodes to zero: it is at most 127 times the smallest scale.
        assert error <= (0.5001 * scale if scale else 127 * 2.0**WINDOW.e_min)


@given(st.lists(blocks, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_encoding_what_was_decoded_changes_nothing(rows: list[list[float]]) -> None:
    values = torch.tensor(rows, dtype=torch.float32).view(-1)
    payload = CODEC.encode(values, WINDOW)
    once = CODEC.decode(payload, values.numel(), WINDOW).view(-1, 8)
    twice = CODEC.decode(CODEC.encode(once.view(-1), WINDOW), values.numel(), WINDOW).view(-1, 8)
    quantized = torch.tensor(split_payload(payload, values.numel(), 8)[1]).view(-1, 8)
    # Scales are rounded up, so a block's largest value may be 126; only 127 keeps its scale.
    keeps = torch.isin(quantized.abs().amax(1), torch.tensor([0, 127]))
    assert torch.equal(once[keeps], twice[keeps])


def test_zero_encodes_to_zero_bytes_and_back() -> None:
    payload = CODEC.encode(torch.zeros(16), WINDOW)
    assert payload == bytes(2 * 2 + 16)
    assert torch.equal(CODEC.decode(payload, 16, WINDOW), torch.zeros(16))


def test_halves_round_to_even_and_negative_zero_is_zero() -> None:
    values = torch.tensor([127.0, 0.5, 1.5, -0.5, -2.5, -0.0, 126.5, -127.0])
    payload = CODEC.encode(values, WINDOW)
    assert split_payload(payload, 8, 8) == ([ONE], [127, 0, 2, 0, -2, 0, 126, -127])


def test_a_block_below_the_window_is_sent_as_zero_beside_one_inside_it() -> None:
    at_edge = 127 * 2.0**WINDOW.e_min
    below = math.nextafter(at_edge, 0) * 0.99
    values = torch.tensor([below] * 8 + [at_edge] * 8)
    scales, quantized = split_payload(CODEC.encode(values, WINDOW), 16, 8)
    assert scales == [0, (WINDOW.e_min + 127) << 7]
    assert quantized == [0] * 8 + [127] * 8


@pytest.mark.parametrize("tiny", [2.0**-126, 2.0**-149, 2.0**-130])
def test_subnormal_values_are_sent_as_zero(tiny: float) -> None:
    assert CODEC.encode(torch.full((8,), tiny), WINDOW) == bytes(10)


def test_the_largest_legal_block_is_sent_and_the_next_is_reported() -> None:
    top = 127 * (2 - 2.0**-7) * 2.0**WINDOW.e_max
    payload = CODEC.encode(torch.full((8,), top), WINDOW)
    assert split_payload(payload, 8, 8)[0] == [((WINDOW.e_max + 127) << 7) | 0x7F]
    above = torch.nextafter(torch.full((8,), top), torch.tensor(math.inf))
    values = torch.cat([torch.zeros(8), above * 1.000001])
    with pytest.raises(UnencodableValues, match="above-window") as caught:
        CODEC.encode(values, WINDOW)
    assert caught.value.reason == "above-window"


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 7, 13])
def test_a_value_that_is_not_finite_is_reported_not_sent(bad: float, index: int) -> None:
    values = torch.ones(16)
    values[index] = bad
    with pytest.raises(UnencodableValues) as caught:
        CODEC.encode(values, WINDOW)
    assert caught.value.reason == "nonfinite"


@pytest.mark.parametrize(
    ("bits", "what"),
    [
        (0x7FC0, "NaN"),
        (0x7F81, "signalling NaN"),
        (0xFFC0, "negative NaN"),
        (0x7F80, "infinity"),
        (0xFF80, "negative infinity"),
        (0x0001, "smallest subnormal"),
        (0x007F, "largest subnormal"),
        (0x0080, "smallest normal, below the window"),
        (0x8000, "negative zero"),
        (0xBF80, "minus one"),
        (((WINDOW.e_min - 1 + 127) << 7) | 0x7F, "just below the window"),
        ((WINDOW.e_max + 1 + 127) << 7, "just above the window"),
    ],
)
def test_an_illegal_scale_is_refused(bits: int, what: str) -> None:
    payload = payload_of([ONE, bits], [0] * 16)
    with pytest.raises(IllegalPayload, match="block 1") as caught:
        CODEC.check(payload, 16, WINDOW)
    assert caught.value.reason == "scale", what


@pytest.mark.parametrize("exponent", [WINDOW.e_min, -1, WINDOW.e_max])
@pytest.mark.parametrize("mantissa", [0, 0x7F])
def test_every_scale_inside_the_window_passes(exponent: int, mantissa: int) -> None:
    CODEC.check(payload_of([0, ((exponent + 127) << 7) | mantissa], [-128] * 16), 16, WINDOW)


@pytest.mark.parametrize("length", [0, 1, 9, 11, 20])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(IllegalPayload) as caught:
        CODEC.check(bytes(length), 8, WINDOW)
    assert caught.value.reason == "length"
    assert CODEC.payload_bytes(8, 8) == 10


@given(st.binary(max_size=64))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_refused_or_harmless(payload: bytes) -> None:
    try:
        CODEC.check(payload, 16, WINDOW)
    except IllegalPayload as refused:
        assert refused.reason in {"length", "scale"}
        return
    assert CODEC.decode(payload, 16, WINDOW).isfinite().all()


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
            CODEC.decode(payload, 16, WINDOW).add_(1)
            assert bytes(payload) == original
    assert not acc.any()


def test_a_vector_cut_between_blocks_gives_the_same_bytes() -> None:
    window = PlanWindow(block=1024)
    values = torch.randn(300 * 1024, generator=torch.Generator().manual_seed(1))
    whole = split_payload(CODEC.encode(values, window), values.numel(), 1024)
    scales, quantized = [], []
    for start in range(0, values.numel(), 37 * 1024):
        piece = values[start : start + 37 * 1024]
        part = split_payload(CODEC.encode(piece, window), piece.numel(), 1024)
        scales += part[0]
        quantized += part[1]
    assert (scales, quantized) == whole


@pytest.mark.parametrize("weight", [0, -1, 256])
def test_a_weight_out_of_range_is_a_bug_of_the_caller(weight: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.255"):
        CODEC.add_(torch.zeros(8, dtype=torch.float64), bytes(10), weight, WINDOW)


def test_a_result_with_hostile_values_still_has_legal_scales() -> None:
    top_bits = ((WINDOW.e_max + 127) << 7) | 0x7F
    hostile = payload_of([top_bits], [-128] * 8)
    CODEC.check(hostile, 8, WINDOW)
    acc = torch.zeros(8, dtype=torch.float64)
    CODEC.add_(acc, hostile, 255, WINDOW)
    result = CODEC.finish(acc, 255, WINDOW)
    CODEC.check(result, 8, WINDOW)
    assert split_payload(result, 8, 8) == ([top_bits], [-127] * 8)


def test_a_codec_is_found_by_its_name_and_only_by_that() -> None:
    assert codec_named("int8").exact
    assert not codec_named("none").exact
    with pytest.raises(ValueError, match="e3m0, int4, int8, none"):
        codec_named("int3")


def test_the_mean_of_one_contributor_is_encoded_from_its_decoded_values() -> None:
    values = torch.from_numpy(np.linspace(-3, 3, 64, dtype=np.float32))
    part = CODEC.encode(values, WINDOW)
    acc = torch.zeros(64, dtype=torch.float64)
    CODEC.add_(acc, part, 200, WINDOW)
    decoded = CODEC.decode(part, 64, WINDOW)
    assert CODEC.finish(acc, 200, WINDOW) == CODEC.encode(decoded, WINDOW)

"""int4, e3m0, two_bit and sign: bits against a naive oracle, and what bytes they refuse."""

import math
import random
import warnings
from itertools import pairwise

import grid_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_optimizers.codecs.grid import GridCodec

torch.set_num_threads(1)
WINDOW = PlanWindow(e_max=4)
NAMES = ("int4", "e3m0", "two_bit", "sign")
ONE = b"\x80\x3f"

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-32, max_value=32)
chunks = st.lists(
    st.lists(float32s | st.sampled_from([0.0, 1.5, -0.5, 2.5]), min_size=8, max_size=8),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.fixture(params=NAMES)
def codec(request: pytest.FixtureRequest) -> GridCodec:
    found = codec_named(request.param)
    assert isinstance(found, GridCodec)
    return found


def spread(seed: int, num_values: int, block: int) -> torch.Tensor:
    """Blocks whose sizes lie on both sides of the window's lower edge."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-32, 3, (num_values // block, 1), generator=generator).float())
    return (torch.randn(num_values // block, block, generator=generator) * sizes).view(-1)


@given(rows=chunks)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_encoding_equals_the_oracle(name: str, rows: list[list[float]]) -> None:
    values = torch.tensor(rows).view(-1)
    payload = codec_named(name).encode(values, WINDOW)
    assert payload == oracle.encode(values.tolist(), name, WINDOW)


@pytest.mark.parametrize("block", [8, 24, 64])
def test_encoding_equals_the_oracle_on_many_scales(codec: GridCodec, block: int) -> None:
    window = PlanWindow(block=block, e_max=4)
    values = spread(3, 64 * block, block)
    payload = codec.encode(values, window)
    assert payload == oracle.encode(values.tolist(), codec.name, window)
    codec.check(payload, values.numel(), window)
    decoded = codec.decode(payload, values.numel(), window)
    assert decoded.tolist() == oracle.decode(payload, values.numel(), codec.name, window)


@given(rows=chunks)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", ["int4", "e3m0", "sign"])
def test_encoding_what_was_decoded_changes_nothing(name: str, rows: list[list[float]]) -> None:
    """Scales are rounded up by less than half a step of the largest level, so it stays."""
    codec = codec_named(name)
    values = torch.tensor(rows).view(-1)
    payload = codec.encode(values, WINDOW)
    decoded = codec.decode(payload, values.numel(), WINDOW)
    assert codec.encode(decoded, WINDOW) == payload


@given(rows=chunks)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_is_nearer_than_nothing(name: str, rows: list[list[float]]) -> None:
    """A contraction for every block: what error feedback needs to converge."""
    values = torch.tensor(rows).view(-1)
    codec = codec_named(name)
    decoded = codec.decode(codec.encode(values, WINDOW), values.numel(), WINDOW)
    # Scales rounded up by up to 1/128 may cost a constant block that much.
    error = (decoded - values).double().view(-1, 8).square().sum(1)
    assert bool((error <= values.double().view(-1, 8).square().sum(1) * (1 + 1e-6)).all())


@pytest.mark.parametrize(
    ("name", "ratios", "levels"),
    [
        ("int4", [7, 0.5, 1.5, -0.5, -2.5, -0.0, 6.5, -7], [7, 0, 2, 0, -2, 0, 6, -7]),
        ("e3m0", [64, 0.5, -1.5, 3, 48, -6, 0.49, -0.0], [64, 1, -2, 4, 64, -8, 0, 0]),
        ("e3m0", [-64, 0.74, -0.76, 23.9, 24, 47.9, -12, 1], [-64, 1, -1, 16, 32, 32, -16, 1]),
    ],
)
def test_halfway_values_go_where_the_docstring_says(
    name: str, ratios: list[float], levels: list[float]
) -> None:
    codec = codec_named(name)
    payload = codec.encode(torch.tensor(ratios), WINDOW)
    assert codec.decode(payload, 8, WINDOW).tolist() == levels


def test_zero_encodes_to_zero_bytes_and_back(codec: GridCodec) -> None:
    payload = codec.encode(torch.zeros(16), WINDOW)
    assert payload == bytes(codec.payload_bytes(16, 8))
    codec.check(payload, 16, WINDOW)
    decoded = codec.decode(payload, 16, WINDOW)
    assert decoded.view(torch.int32).eq(0).all()


def test_negative_zero_and_blocks_below_the_window_are_zero(codec: GridCodec) -> None:
    values = torch.tensor([-0.0] * 8 + [-(2.0**-40)] * 8 + [2.0**-149] * 8)
    assert codec.encode(values, WINDOW) == bytes(codec.payload_bytes(24, 8))


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 7, 13])
def test_a_value_that_is_not_finite_is_reported_not_sent(
    codec: GridCodec, bad: float, index: int
) -> None:
    values = torch.ones(16)
    values[index] = bad
    with pytest.raises(UnencodableValues) as caught:
        codec.encode(values, WINDOW)
    assert caught.value.reason == "nonfinite"


def test_a_block_above_the_window_is_reported_not_sent(codec: GridCodec) -> None:
    values = torch.zeros(16)
    values[8:] = 1e6
    for largest in (1e6, 3.4e38):
        values[8:] = largest
        with pytest.raises(UnencodableValues) as caught:
            codec.encode(values, WINDOW)
        assert caught.value.reason == "above-window"


def test_blocks_do_not_influence_each_other_wherever_a_vector_is_cut(codec: GridCodec) -> None:
    window = PlanWindow(block=1024, e_max=4)
    values = spread(1, 100 * 1024, 1024)
    whole = codec.encode(values, window)
    scales, codes = b"", b""
    for start, stop in pairwise([0, 1, 34, 66, 100]):
        part = codec.encode(values[1024 * start : 1024 * stop], window)
        scales += part[: 2 * (stop - start)]
        codes += part[2 * (stop - start) :]
    assert scales + codes == whole


@pytest.mark.parametrize(
    "bits", [0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x0001, 0x007F, 0x0080, 0x8000, 0xBF80]
)
def test_an_illegal_scale_is_refused(codec: GridCodec, bits: int) -> None:
    payload = ONE + bits.to_bytes(2, "little") + bytes(codec.payload_bytes(16, 8) - 4)
    with pytest.raises(IllegalPayload, match="block 1") as caught:
        codec.check(payload, 16, WINDOW)
    assert caught.value.reason == "scale"


def test_another_length_is_refused(codec: GridCodec) -> None:
    legal = codec.payload_bytes(16, 8)
    for length in (0, 1, legal - 1, legal + 1, 2 * legal):
        with pytest.raises(IllegalPayload) as caught:
            codec.check(bytes(length), 16, WINDOW)
        assert caught.value.reason == "length"


def test_codes_under_a_zero_scale_are_refused(codec: GridCodec) -> None:
    payload = ONE + bytes(codec.payload_bytes(16, 8) - 3) + b"\x01"
    with pytest.raises(IllegalPayload) as caught:
        codec.check(payload, 16, WINDOW)
    assert caught.value.reason == "code"


@pytest.mark.parametrize("name", ["int4", "e3m0"])
@pytest.mark.parametrize("index", range(16))
def test_a_code_that_stands_for_nothing_is_refused_wherever_it_is(name: str, index: int) -> None:
    codec = codec_named(name)
    codes = 8 << (4 * index)
    with pytest.raises(IllegalPayload, match=f"block {index // 8} ") as caught:
        codec.check(ONE + ONE + codes.to_bytes(8, "little"), 16, WINDOW)
    assert caught.value.reason == "code"


@given(payload=st.binary(max_size=24) | st.binary(min_size=12, max_size=12))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_refused_or_decode_as_the_oracle_does(name: str, payload: bytes) -> None:
    codec = codec_named(name)
    payload = ONE + payload if len(payload) % 2 else payload
    try:
        codec.check(payload, 16, WINDOW)
    except IllegalPayload as refused:
        assert refused.reason in {"length", "scale", "code"}
        return
    decoded = codec.decode(payload, 16, WINDOW)
    assert decoded.tolist() == oracle.decode(payload, 16, name, WINDOW)
    result = codec.mean([(payload, 255), (payload, 1)], 16, WINDOW)
    codec.check(result, 16, WINDOW)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_without_a_warning_and_not_changed(codec: GridCodec, wrap: type) -> None:
    original = codec.encode(torch.linspace(-1, 1, 16), WINDOW)
    odd_offset = memoryview(b"x" + original)[1:]
    acc = torch.zeros(16, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for payload in (wrap(original), odd_offset):
            codec.check(payload, 16, WINDOW)
            codec.add_(acc, payload, 3, WINDOW)
            codec.subtract_(acc, payload, 3, WINDOW)
            codec.decode(payload, 16, WINDOW).add_(1)
            assert bytes(payload) == original
    assert not acc.any()


def test_a_block_that_does_not_fill_bytes_is_refused(codec: GridCodec) -> None:
    with pytest.raises(ValueError, match="a block of 9"):
        codec.payload_bytes(18, 9)


@pytest.mark.parametrize("weight", [0, -1, 256])
def test_a_weight_out_of_range_is_a_bug_of_the_caller(codec: GridCodec, weight: int) -> None:
    acc, payload = torch.zeros(8, dtype=torch.float64), bytes(codec.payload_bytes(8, 8))
    with pytest.raises(ValueError, match=r"1\.\.255"):
        codec.add_(acc, payload, weight, WINDOW)


def test_decoding_writes_where_it_is_told(codec: GridCodec) -> None:
    window = PlanWindow(block=1024, e_max=4)
    values = spread(9, 40 * 1024, 1024)
    payload = codec.encode(values, window)
    out = torch.full((40 * 1024,), math.nan)
    assert codec.decode(payload, out.numel(), window, out) is out
    assert torch.equal(out, codec.decode(payload, out.numel(), window))


def test_random_legal_bytes_survive_the_whole_way(codec: GridCodec) -> None:
    rng = random.Random(4)
    low, high = (WINDOW.e_min + 127) << 7, ((WINDOW.e_max + 127) << 7) | 0x7F
    codes = [code for code in range(1 << oracle.BITS[codec.name])]
    legal = [c for c in codes if c in oracle.CODES[codec.name].values()]
    for _ in range(20):
        scales = np.array([rng.randint(low, high) for _ in range(8)], dtype="<u2").tobytes()
        text = "".join(format(rng.choice(legal), f"0{oracle.BITS[codec.name]}b") for _ in range(64))
        payload = scales + int(text, 2).to_bytes(len(text) // 8, "little")
        codec.check(payload, 64, WINDOW)
        assert codec.decode(payload, 64, WINDOW).isfinite().all()
        codec.check(codec.mean([(payload, 7)], 64, WINDOW), 64, WINDOW)

"""Activations come out as they went in, within their codec's error, and what is not right does not.

The bias of stochastic rounding is measured over many seeds; a retry is compared byte for byte.
"""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarmtrain.pipeline.activations import ActivationCodec, Boundary, rounding_seed
from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_transport.pipeline.wire.route import MicroBatch

NONE, FLOAT16, INT8 = ActivationCodec
SHAPE = (2, 3, 64)
RUN = bytes(range(32))
MICRO_BATCH = MicroBatch(b"s" * 32, b"boot", 3, 0, 0, 7)


def values_of(shape: tuple[int, ...] = SHAPE, seed: int = 0, size: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size


def passed(boundary: Boundary, values: Tensor, seed: int | None = None) -> Tensor:
    return boundary.decode(boundary.encode(values, seed=seed), boundary.form)


# ---- accuracy


def test_none_is_exact_to_the_last_bit() -> None:
    boundary = Boundary(NONE, (1, 8))
    hard = [0.0, -0.0, 1e-45, -1e-39, 5.4e11, 2.0**-101, math.pi, 1.0]
    values = torch.tensor([hard])
    assert passed(boundary, values).numpy().tobytes() == values.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_smaller_kinds_of_numbers_pass_exactly_where_nothing_is_rounded(dtype: torch.dtype) -> None:
    values = values_of().to(dtype)
    assert torch.equal(passed(Boundary(NONE, SHAPE), values).to(dtype), values)


@pytest.mark.parametrize("size", [1e-37, 1e-20, 1e-4, 1.0, 6e4, 1e6, 1e10])
def test_float16_keeps_eleven_bits_of_any_size(size: float) -> None:
    values = values_of(size=size)
    error = (passed(Boundary(FLOAT16, SHAPE), values) - values).abs()
    # Values within a factor 2^14 of the largest are normal halves.
    clear = values.abs() > values.abs().amax() * 2.0**-14
    assert bool((error[clear] <= values.abs()[clear] * 2.0**-11).all())


@pytest.mark.parametrize("largest", [5.4e11, 1e-45, 65504.0, 65519.0])
def test_float16_takes_the_ends_of_float32(largest: float) -> None:
    values = torch.tensor([[largest, -largest / 2]])
    error = (passed(Boundary(FLOAT16, (1, 2)), values) - values).abs()
    assert bool((error <= values.abs() * 2.0**-11).all())


@pytest.mark.parametrize("width", [1, 7, 16, 64, 192, 257, 384, 1000, 1024])
def test_int8_is_within_half_a_step_of_its_block(width: int) -> None:
    values = values_of((2, 5, width), seed=width)
    error = (passed(Boundary(INT8, (2, 5, width)), values) - values).abs()
    step = values.abs().amax(dim=-1, keepdim=True) / 127 * (1 + 2.0**-7)
    assert bool((error <= step / 2).all())


def test_an_outlier_costs_its_own_token_and_its_own_block_alone() -> None:
    values = values_of((1, 4, 512))
    spoilt = values.clone()
    spoilt[0, 1, 3] = 1e6
    boundary = Boundary(INT8, (1, 4, 512))
    clean, after = passed(boundary, values), passed(boundary, spoilt)
    same = clean == after
    assert bool(same[:, [0, 2, 3]].all()) and bool(same[:, 1, 256:].all())
    assert not bool(same[:, 1, :256].all())


@pytest.mark.parametrize("codec", ActivationCodec)
@pytest.mark.parametrize("seed", [None, 5])
def test_nothing_stays_nothing(codec: ActivationCodec, seed: int | None) -> None:
    assert not passed(Boundary(codec, SHAPE), torch.zeros(SHAPE), seed).any()


def test_stochastic_rounding_is_right_on_average() -> None:
    boundary = Boundary(INT8, (1, 1, 64))
    values = values_of((1, 1, 64), seed=1)
    trials = 4000
    total = np.zeros(64)
    for seed in range(trials):
        total += passed(boundary, values, seed).numpy().reshape(-1)
    step = values.abs().amax().item() / 127 * (1 + 2.0**-7)
    # One rounding has a standard deviation of half a step at most; 5 sigma of their mean.
    bias = np.abs(total / trials - values.numpy().reshape(-1))
    assert bias.max() <= 5 * step / 2 / math.sqrt(trials)
    nearest = np.abs(passed(boundary, values).numpy() - values.numpy()).max()
    assert nearest > 5 * step / 2 / math.sqrt(trials)  # which rounding to nearest is not


def test_stochastic_rounding_goes_to_one_of_the_two_around() -> None:
    values = values_of(seed=2)
    boundary = Boundary(INT8, SHAPE)
    step = values.abs().amax(dim=-1, keepdim=True) / 127 * (1 + 2.0**-7)
    assert bool(((passed(boundary, values, 9) - values).abs() <= step).all())


# ---- the same bytes again


@pytest.mark.parametrize("codec", ActivationCodec)
def test_a_retry_has_the_same_bytes(codec: ActivationCodec) -> None:
    boundary, values = Boundary(codec, SHAPE), values_of()
    seed = rounding_seed(RUN, MICRO_BATCH, 2)
    again = values.clone().transpose(0, 1).contiguous().transpose(0, 1)  # other memory, same values
    assert boundary.encode(values, seed=seed) == boundary.encode(again, seed=seed)
    assert boundary.encode(values) == boundary.encode(again)


def test_another_seed_rounds_otherwise() -> None:
    boundary, values = Boundary(INT8, SHAPE), values_of()
    assert boundary.encode(values, seed=1) != boundary.encode(values, seed=2)


def test_seeds_differ_by_micro_batch_and_hop_and_hang_on_no_attempt() -> None:
    base = rounding_seed(RUN, MICRO_BATCH, 1)
    others = [
        rounding_seed(bytes(32), MICRO_BATCH, 1),
        rounding_seed(RUN, MICRO_BATCH, 2),
        *(
            rounding_seed(RUN, msgspec.structs.replace(MICRO_BATCH, **change), 1)
            for change in (
                {"source": b"t" * 32}, {"boot": b"other"}, {"round": 4}, {"number": 8},
                {"round": 7, "number": 3},
            )
        ),
    ]  # fmt: skip
    assert len({base, *others}) == 1 + len(others)
    assert rounding_seed(RUN, msgspec.structs.replace(MICRO_BATCH, attempt=1), 1) == base
    assert 0 <= base < 2**64


# ---- lengths


@pytest.mark.parametrize("codec", ActivationCodec)
@pytest.mark.parametrize("shape", [(1, 1, 1), SHAPE, (4, 257), (5, 768)])
def test_the_length_is_known_beforehand(codec: ActivationCodec, shape: tuple[int, ...]) -> None:
    boundary = Boundary(codec, shape)
    assert len(boundary.encode(values_of(shape))) == boundary.num_bytes == boundary.form.num_bytes


def test_int8_takes_little_more_than_half_of_float16() -> None:
    small, large = (Boundary(codec, (8, 256, 512)).num_bytes for codec in (INT8, FLOAT16))
    assert large / small > 1.95


# ---- refused


@pytest.mark.parametrize("codec", ActivationCodec)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_our_own_values_that_are_no_numbers_are_not_sent(
    codec: ActivationCodec, bad: float
) -> None:
    values = values_of()
    values[1, 2, 3] = bad
    for seed in (None, 1):
        with pytest.raises(UnencodableValues) as caught:
            Boundary(codec, SHAPE).encode(values, seed=seed)
        assert caught.value.reason == "nonfinite"


@pytest.mark.parametrize(("codec", "largest"), [(INT8, 1e38), (FLOAT16, 3.4e38), (NONE, 2.0**39)])
def test_values_beyond_a_codec_s_scales_are_not_sent(
    codec: ActivationCodec, largest: float
) -> None:
    with pytest.raises(UnencodableValues) as caught:
        Boundary(codec, SHAPE).encode(torch.full(SHAPE, largest))
    assert caught.value.reason == "above-window"


@pytest.mark.parametrize(
    ("codec", "dtype", "at", "bad"),
    [
        (NONE, "<f4", 8, 2.0**40),
        *((NONE, "<f4", 8, bad) for bad in (math.nan, math.inf)),
        *((FLOAT16, "<f2", 2, bad) for bad in (math.nan, math.inf)),
    ],
)
def test_bytes_that_hold_no_numbers_are_refused(
    codec: ActivationCodec, dtype: str, at: int, bad: float
) -> None:
    boundary = Boundary(codec, SHAPE)
    data = bytearray(boundary.encode(values_of()))
    word = np.array([bad], dtype).tobytes()
    data[at : at + len(word)] = word
    with pytest.raises(IllegalPayload) as caught:
        boundary.decode(data, boundary.form)
    assert caught.value.reason == "nonfinite"


@pytest.mark.parametrize("shift", [-32768, -113, 127, 32767])
def test_a_shared_power_beyond_float32_is_refused(shift: int) -> None:
    boundary = Boundary(FLOAT16, SHAPE)
    data = bytearray(boundary.encode(values_of()))
    data[:2] = shift.to_bytes(2, "little", signed=True)
    with pytest.raises(IllegalPayload) as caught:
        boundary.decode(data, boundary.form)
    assert caught.value.reason == "scale"


@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xBF80, 0x0001, 0x8000])
def test_a_scale_that_no_honest_sender_makes_is_refused(bits: int) -> None:
    boundary = Boundary(INT8, SHAPE)
    data = bytearray(boundary.encode(values_of()))
    data[:2] = bits.to_bytes(2, "little")
    with pytest.raises(IllegalPayload) as caught:
        boundary.decode(data, boundary.form)
    assert caught.value.reason == "scale"


@pytest.mark.parametrize("codec", ActivationCodec)
def test_another_form_than_the_stage_takes_is_refused(codec: ActivationCodec) -> None:
    boundary = Boundary(codec, SHAPE)
    data = boundary.encode(values_of())
    others = [
        replace(boundary, shape=shape).form
        for shape in ((3, 2, 64), (6, 64), (2, 3, 128), (2, 3, 64, 1))
    ]
    others += [replace(boundary, codec=other).form for other in ActivationCodec if other != codec]
    others.append(msgspec.structs.replace(boundary.form, num_bytes=boundary.num_bytes + 1))
    for form in others:
        with pytest.raises(IllegalPayload) as caught:
            boundary.decode(data, form)
        assert caught.value.reason == "form"


@pytest.mark.parametrize("codec", ActivationCodec)
def test_a_length_that_is_not_the_form_s_is_refused(codec: ActivationCodec) -> None:
    boundary = Boundary(codec, SHAPE)
    data = boundary.encode(values_of())
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(IllegalPayload) as caught:
            boundary.decode(wrong, boundary.form)
        assert caught.value.reason == "length"


@given(st.sampled_from(ActivationCodec), st.data())
def test_any_bytes_of_the_right_length_are_refused_or_are_numbers(
    codec: ActivationCodec, data: st.DataObject
) -> None:
    boundary = Boundary(codec, (1, 2, 3))
    size = boundary.num_bytes
    try:
        values = boundary.decode(data.draw(st.binary(min_size=size, max_size=size)), boundary.form)
    except IllegalPayload:
        return
    assert values.shape == (1, 2, 3) and bool(torch.isfinite(values).all())


def test_what_was_decoded_does_not_change_with_the_bytes() -> None:
    for codec in ActivationCodec:
        boundary = Boundary(codec, SHAPE)
        data = bytearray(boundary.encode(values_of()))
        values = boundary.decode(data, boundary.form)
        before = values.clone()
        data[:] = bytes(len(data))
        assert torch.equal(values, before)


def test_another_shape_or_kind_of_numbers_is_the_caller_s_mistake() -> None:
    boundary = Boundary(NONE, SHAPE)
    for wrong in (values_of((3, 2, 64)), values_of().double(), torch.zeros(SHAPE, dtype=torch.int)):
        with pytest.raises(ValueError, match="at a boundary"):
            boundary.encode(wrong)

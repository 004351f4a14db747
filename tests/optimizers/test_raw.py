"""The identity codec, name ``none``."""

import math

import pytest
import torch
from window import PlanWindow

from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_optimizers.codecs.raw import Raw

torch.set_num_threads(1)
CODEC = Raw()
WINDOW = PlanWindow()


def test_values_come_back_as_they_were() -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(1)) * 1e4
    payload = CODEC.encode(values, WINDOW)
    assert len(payload) == CODEC.payload_bytes(64, 8) == 256
    CODEC.check(payload, 64, WINDOW)
    assert torch.equal(CODEC.decode(payload, 64, WINDOW), values)


@pytest.mark.parametrize("weight", [1, 7, 255])
def test_the_mean_of_one_part_is_the_part(weight: int) -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(2))
    payload = CODEC.encode(values, WINDOW)
    acc = torch.zeros(64, dtype=torch.float64)
    CODEC.add_(acc, payload, weight, WINDOW)
    assert CODEC.finish(acc, weight, WINDOW) == payload


def test_tiny_values_are_zero_when_encoded_and_when_decoded() -> None:
    values = torch.tensor([2.0**-100, -(2.0**-100), 2.0**-101, 2.0**-149, -0.0, 0.0, 1.0, -1.0])
    expected = torch.tensor([2.0**-100, -(2.0**-100), 0.0, 0.0, 0.0, 0.0, 1.0, -1.0])
    sent = CODEC.decode(CODEC.encode(values, WINDOW), 8, WINDOW)
    received = CODEC.decode(values.numpy().tobytes(), 8, WINDOW)
    for decoded in (sent, received):
        assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_reported_by_us_and_refused_from_others(bad: float) -> None:
    values = torch.tensor([0.0, bad])
    with pytest.raises(UnencodableValues, match="nonfinite"):
        CODEC.encode(values, WINDOW)
    with pytest.raises(IllegalPayload) as caught:
        CODEC.check(values.numpy().tobytes(), 2, WINDOW)
    assert caught.value.reason == "scale"


def test_another_length_is_refused() -> None:
    with pytest.raises(IllegalPayload) as caught:
        CODEC.check(bytes(31), 8, WINDOW)
    assert caught.value.reason == "length"


def test_nothing_can_be_taken_back() -> None:
    with pytest.raises(TypeError, match="not exact"):
        CODEC.subtract_(torch.zeros(8, dtype=torch.float64), bytes(32), 1, WINDOW)

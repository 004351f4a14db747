"""A sketch tells how alike two gradients are, whatever their size."""

import math

import pytest
import torch

from swarmtrain.pipeline.sketch import likeness, sketch

VALUES = torch.randn(300, 433, generator=torch.Generator().manual_seed(1))


def alike(one: torch.Tensor, other: torch.Tensor):
    return likeness(sketch(one, 7), sketch(other, 7))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 129_900])
def test_the_same_gradient_is_alike_at_every_size(size: int) -> None:
    values = VALUES.reshape(-1)[:size]
    found = alike(values, values.clone())
    assert found.cosine == pytest.approx(1) and found.ratio == 1


@pytest.mark.parametrize(
    "wrong",
    [-VALUES, 10 * VALUES, VALUES / 10, torch.zeros_like(VALUES), VALUES.flip(0, 1)],
    ids=["flipped", "large", "small", "nothing", "another"],
)
def test_a_wrong_gradient_is_odd(wrong: torch.Tensor) -> None:
    assert alike(VALUES, wrong).is_odd and alike(wrong, VALUES).is_odd


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_a_noisy_gradient_has_about_its_true_likeness(noise: float) -> None:
    other = VALUES + noise * torch.randn(VALUES.shape, generator=torch.Generator().manual_seed(2))
    found, cosine = alike(VALUES, other), 1 / math.sqrt(1 + noise**2)
    assert found.cosine == pytest.approx(cosine, abs=0.15) and not found.is_odd


def test_a_difference_is_seen_wherever_it_is() -> None:
    """A part of the values is all of the difference."""
    other = VALUES.clone()
    other[:10] = 100.0
    assert alike(VALUES, other).is_odd


def test_other_seeds_are_other_sketches() -> None:
    assert not torch.equal(sketch(VALUES, 7), sketch(VALUES, 8))
    assert torch.equal(sketch(VALUES, 7), sketch(VALUES, 7))

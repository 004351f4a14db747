"""Each robust rule against its paper's formula."""

import math

import numpy as np
import pytest
import robust_oracles as oracle
import torch

from swarmtrain_optimizers.robust.centered_clip import CenteredClip
from swarmtrain_optimizers.robust.coordinate_median import CoordinateMedian
from swarmtrain_optimizers.robust.eigen import symmetric_eigen
from swarmtrain_optimizers.robust.flag import FlagAggregator
from swarmtrain_optimizers.robust.norm_clip import NormClip
from swarmtrain_optimizers.robust.trimmed_mean import TrimmedMean

torch.set_num_threads(1)
WEIGHTS = [255, 31, 1, 128, 64, 200, 90]


def drawn(seed: int, *, count: int = 7, num_values: int = 40) -> list[torch.Tensor]:
    """Contributions with something in common, of quite different norms."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(num_values, generator=generator)
    return [
        (common + torch.randn(num_values, generator=generator)) * (0.5 + index)
        for index in range(count)
    ]


def assert_near(found: torch.Tensor, expected: np.ndarray) -> None:
    """Up to float32's rounding of the result."""
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found.double().numpy() - expected).max() < 1e-6 * scale


@pytest.mark.parametrize("seed", range(3))
def test_norm_clipping_is_the_mean_of_vectors_cut_to_the_median_norm(seed: int) -> None:
    rows = drawn(seed)
    found = NormClip().aggregate(rows, WEIGHTS)
    assert_near(found, oracle.norm_clip(oracle.matrix_of(rows), WEIGHTS))


@pytest.mark.parametrize(("count", "trim"), [(7, 2), (6, 2), (4, 1), (3, 1)])
def test_a_trimmed_mean_averages_what_is_left_by_weight(count: int, trim: int) -> None:
    rows = drawn(count, count=count)
    found = TrimmedMean(trim_share=0.25).aggregate(rows, WEIGHTS[:count])
    expected = oracle.trimmed_mean(oracle.matrix_of(rows), WEIGHTS[:count], trim)
    assert_near(found, expected)


def test_of_equal_values_the_lightest_go_low_and_the_heaviest_high() -> None:
    # (1, 2) | (1, 7) (5, 3) (5, 4) | (5, 9): of each value one is left out, by its weight.
    rows = [torch.tensor([value]) for value in (1.0, 5.0, 1.0, 5.0, 5.0)]
    left = TrimmedMean(trim_share=0.2).aggregate(rows, [7, 4, 2, 9, 3])
    assert left.item() == pytest.approx((7 * 1.0 + 7 * 5.0) / 14)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_median_is_the_value_in_the_middle_whatever_the_weights(count: int) -> None:
    rows = drawn(count, count=count)
    found = CoordinateMedian().aggregate(rows, WEIGHTS[:count])
    assert_near(found, np.median(oracle.matrix_of(rows), axis=0))


@pytest.mark.parametrize("radius", [None, 3.0])
@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("with_previous", [False, True])
def test_centered_clipping_follows_the_vectors_themselves(
    radius: float | None, iterations: int, with_previous: bool
) -> None:
    rows = drawn(iterations)
    previous = drawn(50, count=1)[0] if with_previous else None
    found = CenteredClip(radius=radius, iterations=iterations).aggregate(
        rows, WEIGHTS, previous=previous
    )
    start = None if previous is None else previous.double().numpy()
    expected = oracle.centered_clip(
        oracle.matrix_of(rows), WEIGHTS, iterations, start=start, radius=radius
    )
    assert_near(found, expected)


def test_clipping_so_wide_that_it_touches_nobody_is_the_mean() -> None:
    rows = drawn(8)
    found = CenteredClip(radius=1e6).aggregate(rows, WEIGHTS, previous=rows[0])
    assert_near(found, oracle.weighted_mean(oracle.matrix_of(rows), WEIGHTS))


@pytest.mark.parametrize("pairs", [0.0, 1.0])
@pytest.mark.parametrize("num_directions", [1, 2, 4, None])
@pytest.mark.parametrize("iterations", [1, 5])
def test_the_flag_aggregator_projects_onto_the_reweighted_singular_vectors(
    pairs: float, num_directions: int | None, iterations: int
) -> None:
    rows = drawn(iterations + 20)
    rule = FlagAggregator(num_directions=num_directions, iterations=iterations, pairs=pairs)
    found = rule.aggregate(rows, WEIGHTS)
    expected = oracle.flag(oracle.matrix_of(rows), WEIGHTS, num_directions or 4, iterations, pairs)
    assert_near(found, expected)


def test_a_flag_of_all_directions_is_clipping_alone() -> None:
    rows = drawn(30)
    everything = FlagAggregator(num_directions=7).aggregate(rows, WEIGHTS)
    clipped = NormClip().aggregate(rows, WEIGHTS)
    assert_near(everything, clipped.double().numpy())


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_eigenvectors_of_small_matrices_are_those_of_the_library(size: int) -> None:
    generator = np.random.default_rng(size)
    drawn_matrix = generator.standard_normal((size, size))
    matrix = drawn_matrix + drawn_matrix.T
    values, vectors = symmetric_eigen(matrix)
    assert np.allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-12)
    assert np.allclose(vectors @ vectors.T, np.eye(size), atol=1e-13)
    assert np.allclose(vectors.T @ np.diag(values) @ vectors, matrix, atol=1e-12)


def test_eigenvectors_where_values_are_equal_tiny_or_all_zero() -> None:
    for matrix in (np.zeros((3, 3)), np.eye(4), np.ones((5, 5)), np.diag([1e-300, 1.0, 1e300])):
        values, vectors = symmetric_eigen(matrix)
        assert values == sorted(values, reverse=True)
        assert all(math.isfinite(value) for value in values)
        assert np.allclose(vectors @ vectors.T, np.eye(len(matrix)), atol=1e-14)

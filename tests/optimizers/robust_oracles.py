"""The robust rules as their papers write them: whole vectors, float64, numpy, no care for speed."""

import numpy as np
import torch

Matrix = np.ndarray


def matrix_of(rows: list[torch.Tensor]) -> Matrix:
    return np.stack([row.double().numpy() for row in rows])


def clipped(vectors: Matrix, bound: float) -> Matrix:
    norms = np.linalg.norm(vectors, axis=1)
    return vectors * np.minimum(1.0, bound / np.maximum(norms, 1e-300))[:, None]


def weighted_mean(vectors: Matrix, weights: list[int]) -> Matrix:
    return np.average(vectors, axis=0, weights=weights)


def norm_clip(vectors: Matrix, weights: list[int]) -> Matrix:
    bound = float(np.median(np.linalg.norm(vectors, axis=1)))
    return weighted_mean(clipped(vectors, bound), weights)


def trimmed_mean(vectors: Matrix, weights: list[int], trim: int) -> Matrix:
    columns = []
    for column in vectors.T:
        pairs = sorted(zip(column, weights, strict=True))[trim : len(column) - trim]
        columns.append(sum(value * w for value, w in pairs) / sum(w for _, w in pairs))
    return np.array(columns)


def centered_clip(
    vectors: Matrix,
    weights: list[int],
    iterations: int,
    start: Matrix | None = None,
    radius: float | None = None,
) -> Matrix:
    centre = np.zeros(vectors.shape[1]) if start is None else start.copy()
    for _ in range(iterations):
        away = vectors - centre
        bound = float(np.median(np.linalg.norm(away, axis=1))) if radius is None else radius
        centre = centre + weighted_mean(clipped(away, bound), weights)
    return centre


def flag(
    vectors: Matrix, weights: list[int], num_directions: int, iterations: int, pairs: float
) -> Matrix:
    """By singular vectors of the weighted stack in the whole space, not by inner products."""
    count = len(vectors)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    differences = [units[i] - units[j] for i in range(count) for j in range(i)]
    stack = np.stack([*units, *(d / np.linalg.norm(d) for d in differences)])
    shares = np.array([1.0] * count + [pairs / (count - 1)] * len(differences))
    reweighting = np.ones(len(stack))
    for _ in range(iterations):
        scaled = stack * np.sqrt(shares * reweighting)[:, None]
        basis = np.linalg.svd(scaled, full_matrices=False)[2][:num_directions]
        explained = np.minimum(1.0, ((stack @ basis.T) ** 2).sum(axis=1))
        reweighting = 1.0 / np.sqrt(np.maximum(1.0 - explained, 1e-6))
    bound = float(np.median(np.linalg.norm(vectors, axis=1)))
    return weighted_mean(clipped(vectors, bound), weights) @ basis.T @ basis

"""Eigenvectors of a small symmetric matrix, the same bits on every machine.

LAPACK's answer depends on its build and threads, so this is Jacobi's iteration: one pair of rows
and columns after the other is turned until what is off the diagonal vanishes (Golub and Van Loan,
Matrix Computations, section 8.5). Elementwise float64 with + - * / sqrt only. For matrices with a
row per contributor, so 64 at most: cost grows with the third power.
"""

import math
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_SWEEPS_MAX = 40
"""Convergence is quadratic: six to ten sweeps do for 64 rows."""

_NEGLIGIBLE = 1e-17
"""Share of the largest entry: what is smaller no longer changes a digit of the eigenvalues."""


def symmetric_eigen(matrix: Matrix) -> tuple[list[float], Matrix]:
    """Eigenvalues in falling order, and the eigenvectors as rows.

    Equal eigenvalues keep the order in which the iteration leaves them; which basis of their space
    comes out is defined by the order of the matrix's rows.

    Args:
        matrix: (k, k) finite and symmetric; only read.

    >>> values, vectors = symmetric_eigen(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> values, vectors.tolist()
    ([3.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    turned = matrix.astype(np.float64, copy=True)
    size = len(turned)
    vectors = np.zeros((size, size))
    for index in range(size):
        vectors[index, index] = 1.0
    negligible = _NEGLIGIBLE * float(np.max(np.abs(turned), initial=0.0))
    for _ in range(_SWEEPS_MAX):
        num_turns = 0
        for first in range(size - 1):
            for second in range(first + 1, size):
                if abs(float(turned[first, second])) > negligible:
                    _turn(turned, vectors, first, second)
                    num_turns += 1
        if num_turns == 0:
            break
    values = [float(turned[index, index]) for index in range(size)]
    order = sorted(range(size), key=lambda index: -values[index])
    return [values[index] for index in order], vectors[order]


def _turn(turned: Matrix, vectors: Matrix, first: int, second: int) -> None:
    """One plane rotation that makes the entry (first, second) zero, by the smaller angle."""
    entry = float(turned[first, second])
    slope = (float(turned[second, second]) - float(turned[first, first])) / (2.0 * entry)
    tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(slope * slope + 1.0))
    cosine = 1.0 / math.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    for table in (turned, turned.T, vectors):
        row_first, row_second = table[first].copy(), table[second].copy()
        table[first] = row_first * cosine - row_second * sine
        table[second] = row_first * sine + row_second * cosine
    turned[first, second] = turned[second, first] = 0.0

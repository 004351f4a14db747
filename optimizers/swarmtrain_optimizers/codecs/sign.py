"""One bit per value: its sign, times the mean magnitude of its block.

s = mean|x| makes the squared error (1 - |x|_1^2 / (n |x|_2^2)) |x|_2^2, never more than x itself
(Karimireddy et al., arXiv 1901.09847): of Gaussian values 2 / pi of the energy is
sent. Biased; it converges with error feedback and not without. A zero has no code of its own and
is sent as +s, unless its whole block is zero.
"""

import numpy as np

from swarmtrain_optimizers.codecs.grid import Grid, GridCodec
from swarmtrain_optimizers.codecs.scales import Codes, Floats


def mean_of(magnitudes: Floats) -> Floats:
    """The mean of each row, with the same bits on every machine.

    A library's sum adds in an order that depends on the CPU. Here halves of the row are added
    elementwise until one column is left: a fixed tree of separate additions (protocol.md rule 4),
    in float64, so that it cannot overflow.

    Args:
        magnitudes: (rows, block) float32, only read.

    Returns:
        (rows,) float32.
    """
    block = magnitudes.shape[1]
    sums = magnitudes.astype(np.float64)
    while sums.shape[1] > 1:
        half, odd = divmod(sums.shape[1], 2)
        if odd:
            sums[:, 0] += sums[:, -1]
        sums = sums[:, :half] + sums[:, half : 2 * half]
    means: Floats = (sums[:, 0] / block).astype(np.float32)
    return means


def _codes_of(ratio: Floats) -> Codes:
    """1 for what is below zero."""
    codes: Codes = (ratio < 0).view(np.uint8)
    return codes


class Sign(GridCodec):
    """The sign codec; `grid` has its layout and why its sums are exact."""

    def __init__(self) -> None:
        super().__init__(Grid("sign", 1, (1, -1), None, mean_of, _codes_of))

"""A stand-in for training: weights that inner steps move by drawn differences.

And the two values of the exchange that a shell supplies, in a form that suits tiny chunks: a
contribution that is encoded once as a whole and cut into chunks afterwards, because blocks do not
influence each other, and decoded results that peers with the same bytes share.
"""

import random

import numpy as np
import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import TensorContribution, codec_of, decode_result
from swarmtrain_optimizers.strategies.base import Values
from swarmtrain_transport.arithmetic import Buffer, ContributionRefused, Window
from swarmtrain_transport.result import OpResult

_GRID = 2.0**-16
"""Differences are multiples of this before the anchor's own rounding."""

_DRAWS = 64
"""Differences that a peer's training chooses from, drawn once."""


class PretendedTrainer:
    """Holds weights and moves them by a drawn difference.

    Attributes:
        moved: (num_values,) float64, by how much all inner steps together have lowered them.
        gives_gradients: True if its steps draw a gradient instead and leave the weights alone.
    """

    def __init__(self, num_values: int, rng: random.Random) -> None:
        self.gives_gradients = False
        self.moved = torch.zeros(num_values, dtype=torch.float64)
        generator = np.random.default_rng(rng.getrandbits(63))
        drawn = generator.integers(-1000, 1001, num_values + _DRAWS) * _GRID
        self._pool = torch.from_numpy(drawn)
        self._rng = rng
        self._weights = self._drawn().float()
        self._gradient = torch.zeros(num_values)

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """A copy of the live weights."""
        return self._weights.clone()

    def write_weights(self, vector: Tensor) -> None:
        """Replace the live weights."""
        self._weights = vector.clone()

    def read_gradient(self) -> Tensor:
        """Return the gradient of the step that was made last."""
        return self._gradient

    def inner_step(self) -> None:
        """Move by a drawn difference."""
        step = self._drawn()
        if self.gives_gradients:
            self._gradient = step.float()
            return
        self._weights = self._weights - step.float()
        self.moved += step

    def _drawn(self) -> Tensor:
        """A window into the pool: other values at every place, for the price of a view."""
        start = self._rng.randrange(_DRAWS)
        return self._pool[start : start + self.moved.numel()]

    def diverge(self) -> None:
        """One weight is no number any more."""
        self._weights[0] = float("nan")


class WholeContribution:
    """A `Contribution` that encodes and decodes everything at once and remembers it.

    Args:
        values: (num_values,) contiguous float32, read at once.
    """

    def __init__(self, values: Values) -> None:
        self._values = values[:].clone()  # the strategy's own change once the op has ended
        self._window: Window | None = None
        self._scales = b""
        self._bytes = b""
        self._decoded: Tensor | None = None

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """Encode values [start, stop) by the production codec; see `TensorContribution`."""
        if window.codec != "int8":
            return TensorContribution(self._values).encode(start, stop, window)
        if window != self._window:
            plain = TensorContribution(self._values)
            try:
                whole = plain.encode(0, self._values.numel(), window)
            except ContributionRefused:
                return plain.encode(start, stop, window)  # other chunks may be good
            cut = 2 * (self._values.numel() // window.block)
            self._window, self._scales, self._bytes = window, whole[:cut], whole[cut:]
            self._decoded = None
        block = window.block
        return self._scales[2 * (start // block) : 2 * (stop // block)] + self._bytes[start:stop]

    def decoded(self, start: int, stop: int, window: Window) -> Tensor:
        """Decode values [start, stop) as the others do."""
        if self._decoded is None or window != self._window:
            size = self._values.numel()
            payload = self.encode(0, size, window)
            self._decoded = codec_of(window).decode(payload, size, window)
        return self._decoded[start:stop]


class SharedDecoding:
    """`decode_result`, once for all peers that have the same bytes."""

    def __init__(self) -> None:
        self._op = -1
        self._key: tuple[tuple[Buffer, ...], ...] = ()
        self._mean = torch.empty(0)

    def __call__(self, result: OpResult) -> Tensor:
        """(num_values,) float32; never write to it."""
        key = tuple(piece.chunks for piece in result.slices)
        if result.op != self._op or key != self._key:
            self._mean = decode_result(result)
            self._op, self._key = result.op, key
        return self._mean

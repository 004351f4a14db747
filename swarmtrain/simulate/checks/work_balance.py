"""A peer's work, accounted for beside it in float64: none of it may be lost or sent twice.

Property (protocol.md I9, rule 9): what is in results, what error feedback keeps and what the
weights are ahead of the anchor add up to what the inner steps have done.
"""

import numpy as np
import numpy.typing as npt
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]
"""(start, stop) parts of the vector, one after the other those of an op."""

Exact = npt.NDArray[np.float64]

BOOKS_TOLERANCE = 1e-6
"""Float32 roundings here are below 1e-8 each; half a quantisation step is above 5e-5."""

_LOSSY_STEPS = 1 / 127
"""Without error feedback each op may lose half a quantisation step of what it sent: of the largest
value, which has grown where work has waited, a 254th. Twice that is allowed."""


class Books:
    """One peer's account since it last loaded a state. All tensors are (num_values,), float64
    where nothing else is said.

    Args:
        moved: sum of what the inner steps had done until then.
        is_lossy: there is no error feedback.

    Attributes:
        tolerance: largest error of the account that is allowed.
    """

    def __init__(self, moved: Tensor, *, is_lossy: bool) -> None:
        self.tolerance = BOOKS_TOLERANCE
        self._is_lossy = is_lossy
        self._covered: Exact = moved.numpy().copy()
        """Values that were sent, and work that had been done when the account began."""

    def send(self, ranges: Ranges, start: int, stop: int, decoded: Tensor) -> None:
        """Values [start, stop) of a part are in a result; `ranges` are the places of the part in
        the whole vector."""
        position = 0
        for low, high in ranges:
            first, last = max(start, position), min(stop, position + high - low)
            if first < last:
                place = slice(low + first - position, low + last - position)
                self._covered[place] += decoded[first:last].numpy()
            position += high - low
        if self._is_lossy:
            self.tolerance += decoded[start:stop].abs().max().item() * _LOSSY_STEPS

    def write_off(
        self, start: int, stop: int, moved: Tensor, residual: Tensor, ahead: Tensor
    ) -> None:
        """Work that waited too long was dropped on purpose: begin anew there."""
        here = slice(start, stop)
        kept = residual[here].double() + ahead[here].double()
        self._covered[here] = (moved[here] - kept).numpy()

    def error(self, moved: Tensor, residual: Tensor, ahead: Tensor) -> float:
        """Error of the account.

        Args:
            moved: sum of what the inner steps have done until now.
            residual: kept by error feedback, float32.
            ahead: anchor minus weights, float32.
        """
        wrong = self._covered - moved.numpy()
        wrong += residual.numpy()
        wrong += ahead.numpy()
        return float(max(wrong.max(), -wrong.min()))

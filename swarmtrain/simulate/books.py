"""A peer's work, accounted for beside it in float64: none of it may be lost or sent twice.

Property (protocol.md I9, rule 9): what is in results, what error feedback keeps and what the
weights are ahead of the anchor add up to what the inner steps have done.
"""

import torch
from torch import Tensor

BOOKS_TOLERANCE = 1e-6
"""Float32 roundings here are below 1e-8 each; half a quantisation step is above 5e-5."""

_LOSSY_STEPS = 1 / 127
"""Without error feedback each op may lose half a quantisation step of what it sent: of the largest
value, which has grown where work has waited, a 254th. Twice that is allowed."""


class Books:
    """One peer's account since it last loaded a state. All tensors are (num_values,).

    Args:
        moved: what the inner steps had done until then, float64.
        is_lossy: there is no error feedback.

    Attributes:
        tolerance: how wrong the account may be.
    """

    def __init__(self, moved: Tensor, *, is_lossy: bool) -> None:
        self.tolerance = BOOKS_TOLERANCE
        self._is_lossy = is_lossy
        self._begun = moved.clone()
        self._sent = torch.zeros_like(moved)

    def send(self, start: int, stop: int, decoded: Tensor) -> None:
        """Values [start, stop) of a part are in a result."""
        self._sent[start:stop] += decoded[start:stop]
        if self._is_lossy:
            self.tolerance += decoded[start:stop].abs().max().item() * _LOSSY_STEPS

    def write_off(
        self, start: int, stop: int, moved: Tensor, residual: Tensor, ahead: Tensor
    ) -> None:
        """Work that waited too long was dropped on purpose: begin anew there."""
        here = slice(start, stop)
        kept = residual[here].double() + ahead[here].double()
        self._begun[here] = moved[here] - self._sent[here] - kept

    def error(self, moved: Tensor, residual: Tensor, ahead: Tensor) -> float:
        """By how much the account is wrong.

        Args:
            moved: what the inner steps have done until now.
            residual: kept by error feedback.
            ahead: anchor minus weights.
        """
        kept = self._sent + residual.double() + ahead.double()
        return (kept - (moved - self._begun)).abs().max().item()

"""A peer's error feedback, kept beside it in float64: nothing given may be lost or sent twice.

Property (protocol.md I9, rule 9): what is in results plus what is kept equals what was given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_TOLERANCE = 1e-7
"""Float32 rounding of a = e + Delta is below 2e-9 here; half a quantisation step is above 1e-5."""


@dataclass(slots=True)
class Books:
    """One peer's account since it last loaded a state. All tensors are (num_values,) float64.

    Attributes:
        given: differences of ops that were committed.
        sent: what of them is in results.
        waiting: the difference given to the op under way.
    """

    given: Tensor
    sent: Tensor
    waiting: Tensor | None = None

    @classmethod
    def of(cls, num_values: int) -> "Books":
        """An empty account."""
        zero = torch.zeros(num_values, dtype=torch.float64)
        return cls(zero, zero.clone())

    def give(self, difference: Tensor) -> None:
        """The inner steps' difference goes to an op."""
        self.waiting = difference.double()

    def take_back(self) -> None:
        """The op was skipped; the weights still hold the difference."""
        self.waiting = None

    def keep(self) -> bool:
        """The op is committed; False if nothing was given to it."""
        if self.waiting is None:
            return False
        self.given += self.waiting
        self.waiting = None
        return True

    def send(self, start: int, stop: int, decoded: Tensor) -> None:
        """Values [start, stop) of our part are in the result."""
        self.sent[start:stop] += decoded[start:stop]

    def write_off(self, start: int, stop: int) -> None:
        """Work that waited too long was dropped on purpose."""
        self.given[start:stop] = self.sent[start:stop]

    def balance(self, residual: Tensor) -> bool:
        """Whether sent plus kept is what was given."""
        error = (self.sent + residual.double() - self.given).abs().max().item()
        return error < _TOLERANCE

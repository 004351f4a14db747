"""Error feedback: what compression lost, or an exclusion kept back, is sent with the next op.

With beta = 1 (protocol.md rule 9): a = beta e + Delta is encoded; where the peer was included
e <- a - dec(enc(a)), where it was not e <- a, at SKIP nothing changes. So per peer and coordinate
the sum of included dec(c) plus e equals the sum of Delta, whatever fails (Karimireddy et al.,
arXiv 1901.09847, for the compression half). Not here: when three exclusions end the waiting.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.vectors import copied, zeros

DecodeOwn = Callable[[int, int], Tensor]
"""Values that the others decoded from our part, for values [start, stop): (stop - start,)."""


def check_cover(outcomes: Sequence[tuple[int, int, bool]], num_values: int) -> None:
    """Ranges must follow each other and cover the whole vector: nothing settled twice or never.

    Raises:
        ValueError: they do not.
    """
    position = 0
    for start, stop, _ in outcomes:
        if start != position or stop < start:
            raise ValueError(f"range [{start}, {stop}) does not follow position {position}")
        position = stop
    if position != num_values:
        raise ValueError(f"ranges cover {position} of {num_values} values")


def check_decoded(outcomes: Sequence[tuple[int, int, bool]], decoded_own: DecodeOwn | None) -> None:
    """Refuse a peer that was included and does not say what the others decoded.

    Raises:
        ValueError: nobody does.
    """
    if decoded_own is None and any(included for _, _, included in outcomes):
        raise ValueError("error feedback needs decoded_own: what the others decoded of us")


class ErrorFeedback:
    """The residual e of one peer.

    Args:
        num_values: length of the padded vector.
        beta: share of the residual that is sent again; below 1 old work fades.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self, num_values: int, *, beta: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> None:
        self.residual = zeros(num_values, dtype)  # (num_values,) e
        self._beta = beta

    def correct_(self, delta: Tensor, places: slice = slice(None)) -> Tensor:
        """a = beta e + Delta at these places, made where Delta is: what must be encoded."""
        residual = self.residual[places]
        return delta.add_(residual if self._beta == 1 else torch.mul(residual, self._beta))

    def settled(
        self,
        corrected: Tensor,
        outcomes: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | None,
    ) -> Tensor:
        """The residual after an op, as a new tensor, so that the caller decides when it counts.

        Args:
            corrected: the `a` that was encoded for this op.
            outcomes: ranges in order that cover the vector.
            decoded_own: asked once per included range.

        Raises:
            ValueError: a range is included and nobody says what was decoded.
        """
        check_decoded(outcomes, decoded_own)
        if decoded_own is None:
            return copied(corrected)
        residual = copied(corrected)
        for start, stop, included in outcomes:
            if included and stop > start:
                residual[start:stop].sub_(decoded_own(start, stop))
        return residual

    def drop(self) -> None:
        """e = 0: after a download of state, or when a restored e may have been sent since."""
        self.residual = zeros(self.residual.numel(), self.residual.dtype)

"""NoLoCo: no mean over all; every op is an exchange with one partner, drawn anew.

Each peer has an anchor and a momentum of its own, so there is no shared root: what partners can
compare is the pair of contributions, which both hold. A pair mixes its differences and pulls its
anchors together. A peer that is left over (an odd number, a partner that died, an op that was
skipped) makes a group of one (`solo`). The anchor half of a contribution is known when the round
begins and the partner when the roster is, so it may travel during the inner steps.

Both partners compute with the decoded halves, their own too: then what one anchor is pulled up
the other is pulled down, and the mean over all peers is what it would be without pulling.

References:
    Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training, arXiv 2506.10911, eq. 1,
    2 and 74. The sign follows their definition of the difference and their code, whose momentum
    is the heavy ball's (m <- alpha m + d, then phi moves by m), not DiLoCo's Nesterov.
"""

import math

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.paired import Half, Halves, PairedOrAlone
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_optimizers.vectors import pieces


class NoLoCo(PairedOrAlone):
    """With phi_i, delta_i, theta_i peer i's anchor, momentum and weights, Delta_i = phi_i -
    theta_i (old minus new, as everywhere here), d and p the means over the pair of Delta and phi:
    delta_i <- alpha delta_i - beta d + gamma (p - phi_i); phi_i <- phi_i + delta_i;
    theta_i <- phi_i. Alone, p is phi_i and gamma has no effect.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round, 50 in the paper.
        momentum: alpha, 0.5 in the paper.
        lr: beta, 0.7 in the paper; above alpha, or the mean does not converge.
        pull: gamma, 0.7 in the paper's code; between alpha and sqrt(2 + alpha^2): below it
            replicas drift apart, above it they swing.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `lr` or `pull` is out of its range.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        momentum: float = 0.5,
        lr: float = 0.7,
        pull: float = 0.7,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 0 <= momentum < lr:
            raise ValueError(f"lr {lr} must be above momentum {momentum}, or nothing converges")
        if not momentum < pull < math.sqrt(2 + momentum * momentum):
            raise ValueError(
                f"pull {pull} must be between momentum {momentum} and "
                f"{math.sqrt(2 + momentum * momentum):.4f}"
            )
        outer = OuterTransform(("momentum",), _unused)
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._momentum = momentum
        self._lr = lr
        self._pull = pull

    def exchange(self, op: int) -> Exchange:
        """Difference and anchor, whole, with one partner."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),), vectors=2)

    def known_ahead(self) -> tuple[int, Tensor]:
        """The anchor half, (num_values,): it stays as it is while the round lasts."""
        return self._num_values, self._anchor

    def _half(self, weights: Tensor) -> Half:
        """(2 num_values,) Delta_i, then phi_i."""
        size = self._num_values

        def make(places: slice) -> Tensor:
            start, stop = places.start, places.stop
            first, anchor = slice(start, min(stop, size)), slice(max(0, start - size), stop - size)
            if start >= size:
                return self._anchor[anchor]
            delta = torch.sub(self._anchor[first], weights[first])
            return delta if stop <= size else torch.cat([delta, self._anchor[anchor]])

        return Half(2 * size, make)

    def _merge(self, half: Half, halves: Halves) -> None:
        """The step, in operations of protocol.md rule 4. Halves are read in order: once for all
        differences, and then for all anchors."""
        (momentum,) = self._state
        for piece in pieces(self._num_values):
            kept = half[piece]
            drift = torch.add(kept, kept)
            for here, own, partner in halves.within(kept, piece):
                torch.add(own, partner, out=drift[here])
            drift.mul_(0.5).mul_(self._lr)
            momentum[piece].mul_(self._momentum).sub_(drift)
        for piece in pieces(self._num_values):
            behind = slice(self._num_values + piece.start, self._num_values + piece.stop)
            kept, pull = half[behind], torch.zeros(piece.stop - piece.start, dtype=self._dtype)
            for here, own, partner in halves.within(kept, behind):
                torch.sub(partner, own, out=pull[here])
            pull.mul_(0.5).mul_(self._pull)
            anchor, moved = self._anchor[piece], momentum[piece].add_(pull)
            flush_tiny_(anchor.add_(moved))
            flush_tiny_(moved)


def _unused(direction: Tensor, state: State, state_out: State) -> Tensor:
    """NoLoCo's step needs two means, so it is written out above; this only names its state."""
    return direction

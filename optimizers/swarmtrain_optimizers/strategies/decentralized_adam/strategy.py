"""Decentralized Adam: at every step, or every k-th, two neighbours average their weights.

What a step begins with travels while the step is made. So the gradient is that of weights that are
not averaged yet, and the step is added to the average: a partner's weights are a step late, and
no exchange that is shorter than a step is waited for. Who meets whom follows from the op's number
by a graph (`swarmtrain_transport.ledger.pairing`). A peer that finds no partner goes on as it is.

AccumAdamW, the inner optimizer that the paper has with it, is any strategy's to use.

References:
    Wang, Liu, Yang et al., From Promise to Practice: Realizing High-performance Decentralized
    Training, arXiv 2410.11998: the abstract and the public code were read, no section.
"""

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.paired import Half, Halves, PairedOrAlone, midway
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_optimizers.vectors import pieces


class DecentralizedAdam(PairedOrAlone):
    """With x_i the weights when an op begins, x_j the partner's and s_i the steps made meanwhile:
    x_i <- (x_i + x_j) / 2 + s_i.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps from one exchange to the next.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self, num_values: int, *, inner_steps: int, dtype: torch.dtype = torch.float32
    ) -> None:
        outer = OuterTransform((), _unused)
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)

    def exchange(self, op: int) -> Exchange:
        """The weights, whole, with one partner, under the next inner step."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),), delay_steps=1)

    def _half(self, weights: Tensor) -> Half:
        """(num_values,) the weights."""
        return Half(self._num_values, lambda places: weights[places])

    def _merge(self, half: Half, halves: Halves) -> None:
        for piece in pieces(self._num_values):
            kept, anchor = half[piece], self._anchor[piece]
            anchor.copy_(kept)
            for here, own, partner in halves.within(kept, piece):
                anchor[here] = midway(kept[here], own, partner)
            flush_tiny_(anchor)


def _unused(direction: Tensor, state: State, state_out: State) -> Tensor:
    """There is no outer step."""
    return direction

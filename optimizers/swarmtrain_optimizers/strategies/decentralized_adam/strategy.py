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

from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover
from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.gossip.strategy import midway
from swarmtrain_optimizers.subnormals import flush_tiny_


class DecentralizedAdam(Anchored):
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
        self._given: Tensor | None = None

    def exchange(self, op: int) -> Exchange:
        """The weights, whole, with one partner, under the next inner step."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),), delay_steps=1)

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """(num_values,) the weights.

        Raises:
            RuntimeError: the last op was ended by neither `apply`, `solo` nor `skip`.
        """
        if self._given is not None:
            raise RuntimeError("an op is under way: end it with apply(), solo() or skip() first")
        self._check(weights, "weights")
        self._given = weights.detach().clone()
        return self._given

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor:
        """End the op with the partner's weights.

        Args:
            mean: (num_values,) what the partner gave, decoded.
            included: parts of the op's vector in which both halves count; elsewhere nobody moves.
            weights_now: (num_values,) with steps made since, which are kept (rule 10).
            decoded_own: our half as the partner decoded it; None where the codec loses nothing.
            op: ignored.
            own_share: ignored, as it is a half.

        Returns:
            (num_values,) the weights to go on from; as they are for a peer that gave nothing.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        self._check(weights_now, "weights_now")
        now, given = weights_now.detach(), self._given
        if given is None:
            return now.clone()
        if mean.shape != given.shape or mean.dtype != given.dtype:
            raise ValueError(f"the partner's half is {tuple(mean.shape)} {mean.dtype}")
        check_cover(included, given.numel())
        self._make_spares()
        flush_tiny_(midway(given, mean, included, decoded_own, self._spare_anchor))
        self._swap()
        self._given = None
        return torch.add(self._anchor, now - given)

    def solo(self, weights_now: Tensor) -> Tensor:
        """End the op without a partner: the weights stay.

        Args:
            weights_now: see `apply`.

        Raises:
            RuntimeError: no op is under way.
        """
        if self._given is None:
            raise RuntimeError("no op is under way: call pseudo_gradient() first")
        return self.apply(self._given, [(0, self._num_values, True)], weights_now)

    def skip(self) -> None:
        """End the op without any move."""
        self._given = None

    def _forget(self) -> None:
        self._given = None


def _unused(direction: Tensor, state: State, state_out: State) -> Tensor:
    """There is no outer step."""
    return direction

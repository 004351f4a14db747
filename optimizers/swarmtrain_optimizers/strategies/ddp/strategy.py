"""Data parallel training: the mean gradient of every step, and one optimizer step made by all.

The baseline with which the others are compared. Every peer makes the optimizer step itself from
the same decoded bytes, so weights and moments are shared state and need no broadcast; a gradient
that was left out is lost, as it belongs to weights that are no more. A skipped op is a step whose
update was lost: the schedule and the bias correction count it. Not here: clipping. The driver clips
each peer's own gradient before it is given, so what is clipped are the parts, not their mean.

References:
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101, Alg. 2
    (AdamW); Goyal et al., Accurate, Large Minibatch SGD, arXiv 1706.02677 (the mean of gradients).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover
from swarmtrain_optimizers.outer import OuterTransform, State, nesterov, outer_step
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.base import SwarmFacts
from swarmtrain_optimizers.vectors import fresh

_PIECE_VALUES = 262_144
"""Values whose decay is worked out at once: the temporary stays in a cache."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """With theta the weights, g the mean gradient, lr the step's learning rate, t the op's number,
    counted from 1, and m, v the first and second moment, zero at the beginning:
    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; theta <- theta - lr wd theta
    - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps); all by coordinate.

    Every value decays, gains and biases too: the strategy sees a vector and no names. The built-in
    trainer's AdamW lets gains be.

    Attributes:
        beta1: b1.
        beta2: b2.
        eps: keeps the quotient finite.
        weight_decay: wd.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1

    def transform(self, step: int, lr: float) -> OuterTransform:
        """The update of step `step`, counted from 1, without the decay."""
        corrections = 1 - _power(self.beta1, step), 1 - _power(self.beta2, step)

        def update(direction: Tensor, state: State, state_out: State) -> Tensor:
            (old_first, old_second), (first, second) = state, state_out
            torch.mul(old_first, self.beta1, out=first)
            first.add_(torch.mul(direction, 1 - self.beta1))
            torch.mul(old_second, self.beta2, out=second)
            second.add_(direction.mul_(direction).mul_(1 - self.beta2))
            torch.div(second, corrections[1], out=direction)
            # Not torch's sqrt: MKL's vector library makes it, and rounds otherwise on other makes.
            root = direction.numpy()
            np.sqrt(root, out=root)
            direction.add_(self.eps)
            return torch.div(first, corrections[0]).div_(direction).mul_(lr)

        return OuterTransform(("first_moment", "second_moment"), update)


@dataclass(frozen=True, slots=True)
class SGD:
    """With theta the weights, g the mean gradient, lr the step's learning rate and m the momentum
    buffer, zero at the beginning: m <- mu m + g; theta <- theta - lr wd theta - lr (g + mu m), with
    the new m (Nesterov as in `outer`; PyTorch's form of it).

    Attributes:
        momentum: mu.
        weight_decay: wd.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def transform(self, step: int, lr: float) -> OuterTransform:
        """Return the transform, the same in every step."""
        return nesterov(lr, self.momentum)


class Optimizer(Protocol):
    """A step that all peers make alike from the mean gradient."""

    @property
    def weight_decay(self) -> float:
        """Decoupled weight decay, times the learning rate."""

    def transform(self, step: int, lr: float) -> OuterTransform:
        """The update of step `step`, counted from 1, without the decay."""


class DDP(Anchored):
    """The mean gradient of every step, then one optimizer step; the anchor is the weights.

    Args:
        num_values: length of the padded vector.
        optimizer: optimizer that takes the mean gradient.
        schedule: learning rate of a step, counted from 0; the same bits on every peer.
        by_samples: True if `schedule` counts samples of the whole swarm instead of steps.
        dtype: float32; float64 for oracles.
    """

    takes_gradients = True

    def __init__(
        self,
        num_values: int,
        *,
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        by_samples: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        first = optimizer.transform(1, 0.0)
        super().__init__(num_values, inner_steps=1, outer=first, dtype=dtype)
        self._optimizer = optimizer
        self._schedule = schedule
        self._by_samples = by_samples
        self._samples = 0
        self._gives = False

    def hear_of_swarm(self, facts: SwarmFacts) -> None:
        """Take in how far the run is, should the schedule go by samples."""
        self._samples = facts.samples_before

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """A copy of the gradient, which is what the driver hands over as `weights` here.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
            ValueError: the gradient is not (num_values,).
        """
        if self._gives:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        self._check(weights, "gradient")
        self._gives = True
        return weights.detach().clone()

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
        """One optimizer step; every peer's weights are the anchor afterwards, bit for bit.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        self._check(mean, "mean")
        self._check(weights_now, "weights_now")
        if self._gives:
            check_cover(included, self._num_values)
        self._step(mean, op)
        self._gives = False
        return self._anchor.clone()

    def skip(self) -> None:
        """The gradient is lost, the weights stay."""
        self._gives = False

    def _forget(self) -> None:
        self._gives = False

    def _step(self, mean: Tensor, op: int) -> None:
        lr = self._schedule(self._samples if self._by_samples else op - 1)
        transform = self._optimizer.transform(op, lr)
        kept = 1 - lr * self._optimizer.weight_decay
        # Into new buffers: they take the old ones' place when nothing can fail any more.
        anchor = fresh(self._num_values, self._dtype)
        state = tuple(fresh(self._num_values, self._dtype) for _ in self._state)
        for start in range(0, self._num_values, _PIECE_VALUES):
            piece = slice(start, start + _PIECE_VALUES)
            outer_step(
                transform,
                mean[piece],
                torch.mul(self._anchor[piece], kept),
                tuple(tensor[piece] for tensor in self._state),
                anchor[piece],
                tuple(tensor[piece] for tensor in state),
            )
        self._anchor, self._state = anchor, state


def _power(base: float, exponent: int) -> float:
    """base ** exponent in multiplications alone: the library's pow may differ in its last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result

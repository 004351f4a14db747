"""Outer optimizers as pure transforms that chain, in operations that are the same everywhere.

Every peer computes the outer step for itself and must reach the same bits, so each line below is
one eager elementwise operation of protocol.md rule 4, in a fixed order; torch.optim.SGD is fused
differently on different CPUs and is not used. A transform turns the mean difference into the
direction that is subtracted, and writes its new state into buffers it is given: those of the old
state, or others where that is to stay whole until the caller swaps. Not here: when a step is due,
or what the mean is of.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.subnormals import flush_tiny_

State = tuple[Tensor, ...]
"""One (num_values,) tensor per name in `state_names`."""

_PIECE_VALUES = 262_144
"""Values per pass: the temporaries stay in a cache, and calls cost little beside the work."""


@dataclass(frozen=True, slots=True)
class OuterTransform:
    """An init/update pair on flat tensors.

    Attributes:
        state_names: names of the tensors kept between steps, in order.
        update: (direction, state, state_out) -> new direction; reads `state`, fills `state_out`,
            which may be `state` itself, and may work in `direction`, which it owns.
    """

    state_names: tuple[str, ...]
    update: Callable[[Tensor, State, State], Tensor]

    def init(self, params: Tensor) -> State:
        """Zero state for parameters of this shape and dtype."""
        return tuple(torch.zeros_like(params) for _ in self.state_names)


def scale(factor: float) -> OuterTransform:
    """direction <- direction * factor; `factor` is the outer learning rate."""

    def update(direction: Tensor, state: State, state_out: State) -> Tensor:
        return direction.mul_(factor)

    return OuterTransform((), update)


def nesterov_momentum(momentum: float) -> OuterTransform:
    """m <- mu m + d; direction <- mu m + d, with mu = `momentum` (PyTorch's and optax's form).

    For a constant d the direction tends to d / (1 - mu); the first one is (1 + mu) d.

    References:
        Sutskever et al. 2013; the form is N1 in the notes on DiLoCo (arXiv 2311.08105, Alg. 1).
    """

    def update(direction: Tensor, state: State, state_out: State) -> Tensor:
        (old,), (new,) = state, state_out
        torch.mul(old, momentum, out=new)
        new.add_(direction)
        looked_ahead = torch.mul(new, momentum)
        return looked_ahead.add_(direction)

    return OuterTransform(("momentum",), update)


def chain(*transforms: OuterTransform) -> OuterTransform:
    """Apply one transform after the other; the states are joined in order."""
    names = tuple(name for transform in transforms for name in transform.state_names)
    if len(set(names)) != len(names):
        raise ValueError(f"two transforms of a chain share a state name: {names}")

    def update(direction: Tensor, state: State, state_out: State) -> Tensor:
        used = 0
        for transform in transforms:
            end = used + len(transform.state_names)
            direction = transform.update(direction, state[used:end], state_out[used:end])
            used = end
        return direction

    return OuterTransform(names, update)


def nesterov(lr: float, momentum: float) -> OuterTransform:
    """t = m*mu; m = t+d; t = m*mu; t = t+d; t = t*lr; then phi = phi-t (protocol.md rule 4).

    With d the mean difference, m the momentum buffer, mu its decay `momentum`, phi the anchor and
    t a value on the way: PyTorch's form of Nesterov's step, m <- mu m + d, then
    phi <- phi - lr (mu m + d).

    >>> phi, after = torch.ones(1), torch.empty(1)
    >>> m, m_after = torch.zeros(1), torch.empty(1)
    >>> outer_step(nesterov(0.7, 0.9), torch.ones(1), phi, (m,), after, (m_after,))
    >>> round(after.item(), 3)
    -0.33
    """
    return chain(nesterov_momentum(momentum), scale(lr))


def sgd(lr: float) -> OuterTransform:
    """phi = phi - lr*d, with phi the anchor and d the mean difference; lr 1 is plain averaging
    (FedAvg, local SGD)."""
    return scale(lr)


def outer_step(
    transform: OuterTransform,
    mean: Tensor,
    params: Tensor,
    state: State,
    params_out: Tensor,
    state_out: State,
) -> None:
    """params_out = params - direction(mean), state_out = the state after it, |x| < 2^-100 as 0.

    Works piece by piece: all operations are elementwise, so where it is cut changes no bit.

    Args:
        transform: the outer optimizer.
        mean: (num_values,) decoded mean difference; only read.
        params: (num_values,) the anchor before the step.
        state: the transform's state before the step.
        params_out: (num_values,) filled; `params` itself, or memory of its own.
        state_out: filled likewise.
    """
    for start in range(0, params.numel(), _PIECE_VALUES):
        piece = slice(start, start + _PIECE_VALUES)
        new_state = tuple(tensor[piece] for tensor in state_out)
        direction = transform.update(
            mean[piece].clone(), tuple(tensor[piece] for tensor in state), new_state
        )
        flush_tiny_(torch.sub(params[piece], direction, out=params_out[piece]))
        for tensor in new_state:
            flush_tiny_(tensor)

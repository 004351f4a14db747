"""An optimizer's memory of weights that were no numbers any more.

A NaN in a parameter is a NaN in its moments, and these would make every later weight one too: a
peer that the run's weights have healed would be lost again after one step. A gradient of 1e25
leaves the weights alone and makes the second moment infinite: the parameter never moves again. So
such memory goes before the weights are replaced.

State that a step has made is taken away, as the next step makes it again. Some optimizers (torch's
Adagrad) make their state when they are made, and would miss it: state from before the first step is
set to zero instead. Where somebody's loop has stepped before, that is done only for such
optimizers: others make theirs again, and zero would all but stop Rprop, which remembers how far it
steps. Not here: state that belongs to no parameter.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from swarmtrain.models.tensors import local_part


class Moments:
    """The memory of one optimizer.

    Args:
        optimizer: any optimizer; best before its first step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        makes_at_once = _makes_at_once(optimizer)
        self._made_before = frozenset(
            id(parameter)
            for parameter in _trained(optimizer)
            if (state := optimizer.state.get(parameter)) and (makes_at_once or _is_unused(state))
        )

    def forget_broken(self, among: Iterable[Tensor] | None = None) -> int:
        """Drop what is remembered of each trained parameter that is not finite now, or of which
        something remembered is not.

        Call it before the weights are replaced. It costs one reading of weights and state.

        Args:
            among: parameters that are replaced, None for all.

        Returns:
            Number of parameters of which something was forgotten.
        """
        state = self._optimizer.state
        replaced = None if among is None else {id(one) for one in among}
        remembered = [
            one
            for one in _trained(self._optimizer)
            if state.get(one) and (replaced is None or id(one) in replaced)
        ]
        broken = [
            parameter
            for parameter in remembered
            if not all(_is_finite(tensor) for tensor in (parameter, *_tensors(state[parameter])))
        ]
        for parameter in broken:
            if id(parameter) in self._made_before and not _has_history(state[parameter]):
                _begin_again(state[parameter])
            else:
                del state[parameter]
        return len(broken)


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.requires_grad)


def _tensors(state: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a state that can hold a NaN."""
    for value in state.values():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value


def _is_unused(state: dict[str, Any]) -> bool:
    """Return True if it counts steps, and none has been made with it."""
    return "step" in state and float(state["step"]) == 0


def _makes_at_once(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a fresh optimizer of its class has state before its first step; one is made to
    find out."""
    try:
        fresh = type(optimizer)([torch.zeros(2, 2, requires_grad=True)], **optimizer.defaults)
    except Exception:  # somebody else's, which wants to be made in another way
        return isinstance(optimizer, torch.optim.Adagrad)
    return any(fresh.state.values())


def _has_history(state: dict[str, Any]) -> bool:
    """Return True if it holds lists of past values, as LBFGS does: nothing in them means anything
    at zero."""
    return any(isinstance(value, list) for value in state.values())


def _begin_again(state: dict[str, Any]) -> None:
    """Zero in place, the count of steps too, on which corrections for a short memory depend."""
    for key, value in state.items():
        if isinstance(value, Tensor):
            local_part(value).zero_()
        elif key == "step":
            state[key] = type(value)(0)


def _is_finite(tensor: Tensor) -> bool:
    """A sum is finite only if all its values are, and takes a fifth of the time of looking at each;
    where it is not, its values may still be."""
    values = local_part(tensor)
    if values.dtype.itemsize == 1:  # what torch cannot sum
        values = values.float()
    total = values.sum(dtype=torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())

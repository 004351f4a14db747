"""Losses of a batch with the weights moved along a direction and against it, in little memory.

Weights are never changed: moving them back would not undo the rounding of moving them. A module
computes with moved copies of its own parameters while its forward pass lasts, so of moved weights
there are never more than one module's. A model that computes with a parameter outside of the module
that owns it would do so with weights that were not moved. Whether it does is seen once, by letting
all parameters be NaN wherever they are not moved; of such a model all are moved together, which
takes the memory of a second copy of them.

Not here: directions, and what becomes of the losses (`strategies.one_byte`).
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from swarmtrain.models.tensors import Layout
from swarmtrain_optimizers.strategies.base import Direction

logger = logging.getLogger(__name__)

_PIECE_VALUES = 262_144
"""Values moved at a time: what that takes beside the copy stays in a cache."""


class Probe:
    """A model to be looked at on both sides of its weights.

    Args:
        model: the live model; its parameters stay the same objects.
        layout: places of those that are trained in directions.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self._model = model
        self._trained = {id(one): (start, one) for start, one in layout.places(model).items()}
        self._is_by_module: bool | None = None

    def both_sides(self, direction: Direction, loss: Callable[[], float]) -> tuple[float, float]:
        """The loss along the direction, and against it.

        Args:
            direction: direction of the move.
            loss: loss of one batch by a forward pass of the model, without dropout; called twice,
                the first time once more, to see how the model uses its parameters.
        """
        with torch.no_grad():
            if self._is_by_module is None:
                with self._by_module(direction, 1.0, is_nan_outside=True):
                    self._is_by_module = math.isfinite(loss())
                if not self._is_by_module:
                    logger.warning(
                        "This model computes with parameters outside of the modules that own them: "
                        "a second copy of all that are trained is held during forward passes."
                    )
            moved = self._by_module if self._is_by_module else self._at_once
            with moved(direction, 1.0):
                ahead = loss()
            with moved(direction, -1.0):
                behind = loss()
        return ahead, behind

    @contextmanager
    def _at_once(self, direction: Direction, sign: float) -> Iterator[None]:
        """All parameters are moved."""
        held = {key: one.data for key, (_, one) in self._trained.items()}
        try:
            for start, one in self._trained.values():
                one.data = _moved(one.data, start, direction, sign)
            yield
        finally:
            for key, data in held.items():
                self._trained[key][1].data = data

    @contextmanager
    def _by_module(
        self, direction: Direction, sign: float, *, is_nan_outside: bool = False
    ) -> Iterator[None]:
        """Each module's own parameters are moved during its forward pass."""
        held = {key: one.data for key, (_, one) in self._trained.items()}
        outside = {key: _nothing(data) for key, data in held.items()} if is_nan_outside else held
        depth = Counter[int]()

        def begin(module: nn.Module, _: object) -> None:
            for one in self._own(module):
                depth[id(one)] += 1
                if depth[id(one)] == 1:
                    start = self._trained[id(one)][0]
                    one.data = _moved(held[id(one)], start, direction, sign)

        def end(module: nn.Module, *_: object) -> None:
            for one in self._own(module):
                depth[id(one)] -= 1
                if not depth[id(one)]:
                    one.data = outside[id(one)]

        with ExitStack() as stack:
            for key, (_, one) in self._trained.items():
                stack.callback(setattr, one, "data", held[key])
                one.data = outside[key]
            for module in self._model.modules():
                if any(True for _ in self._own(module)):
                    stack.callback(module.register_forward_pre_hook(begin).remove)
                    # An attempt that lacks memory is made again.
                    hook = module.register_forward_hook(end, always_call=True)
                    stack.callback(hook.remove)
            yield

    def _own(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """The trained parameters of a module itself."""
        for parameter in module.parameters(recurse=False):
            if id(parameter) in self._trained:
                yield parameter


def _nothing(data: Tensor) -> Tensor:
    """NaN in the shape of a parameter, in the memory of one value."""
    return torch.full((), math.nan, dtype=data.dtype, device=data.device).expand(data.shape)


def _moved(data: Tensor, place: int, direction: Direction, sign: float) -> Tensor:
    """A moved copy of a parameter, whose first value lies at `place` in the direction."""
    old = data.reshape(-1)
    moved = torch.empty_like(old)
    for start in range(0, old.numel(), _PIECE_VALUES):
        stop = min(start + _PIECE_VALUES, old.numel())
        signs = direction.signs(place + start, place + stop).to(old.device)
        moved[start:stop] = signs.mul_(sign * direction.step).add_(old[start:stop])
    return moved.view(data.shape)

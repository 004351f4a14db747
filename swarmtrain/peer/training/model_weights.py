"""The live weights of somebody else's model, as the driver reads and replaces them.

A parameter of bfloat16 or float16 cannot hold the exchange's float32 results. The part that
rounding cut off is remembered and given back at the next reading, so that the difference that a
peer sends is the change of its own steps, and not the rounding of the last result. Values beyond a
type's range are cut off too: there the parameter holds the largest value that it can.

Not here: buffers, frozen parameters and optimizer state, which stay with the peer, but for an
optimizer's memory of weights that had become NaN (`moments`).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from swarmtrain.models.copies import to_device, to_host
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.peer.arithmetic import Chunked
from swarmtrain.peer.training.moments import Moments
from swarmtrain_optimizers.codecs.base import on_host
from swarmtrain_optimizers.strategies.base import Moved, Values


class FlatPlaces(Protocol):
    """Places of the values of a model's parameters in a flat vector, as in a `Layout`."""

    @property
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Layout of the vector's values."""

    def read(self, model: nn.Module, out: Tensor | None = None) -> Tensor:
        """(padded,) float32 on the CPU."""

    def write(self, model: nn.Module, vector: Tensor) -> None:
        """Put the vector into the model."""

    def named_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Values of each parameter as a view."""


class ModelWeights:
    """Reads and writes the trainable parameters of a model in place.

    Args:
        model: any model; its parameters are copied into, never exchanged for others, so that
            optimizers, tied layers and captured references go on working.
        layout: layout of that model.
        optimizer: optimizer whose memory of weights that are no numbers any more goes with them.
        written: called when weights were written.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: FlatPlaces,
        optimizer: torch.optim.Optimizer | None = None,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._written = model, written
        self._layout = layout
        self._moments = None if optimizer is None else Moments(optimizer)
        self._largest = {
            spec.name: torch.finfo(getattr(torch, spec.dtype)).max
            for spec in layout.parameters
            if spec.dtype in _SHORT_DTYPES
        }
        self._cut_off: Tensor | None = None

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """(padded,) float32 on the CPU; with what rounding cut off where nothing has changed it.

        Raises:
            LayoutMismatch: parameters were frozen, added or converted meanwhile.
        """
        vector = self._layout.read(self._model, out)
        if self._cut_off is not None:
            vector.add_(self._cut_off)
        return vector

    def live_weights(self) -> Values:
        """Read as `read_weights` does, each parameter when it is asked for. For ranks of a job,
        which read at once, all of it is made here.

        Raises:
            LayoutMismatch: as `read_weights`.
        """
        if not isinstance(self._layout, Layout):
            return self.read_weights()
        return live_values(self._model, self._layout, self._cut_off)

    def write_weights(self, vector: Tensor) -> None:
        """Go on from `vector`, (padded,) float32.

        Raises:
            LayoutMismatch: as `read_weights`; no weight changed.
        """
        if self._moments is not None:
            self._moments.forget_broken()
        self._layout.write(self._model, self._within_range(vector))
        if self._largest:
            cut_off = torch.sub(vector, self._layout.read(self._model))
            self._cut_off = cut_off.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self._written()

    def write_moved(self, moved: Moved) -> None:
        """Go on from these weights where they are others. All of them are written where a type
        rounds, or ranks write at once.

        Raises:
            LayoutMismatch: as `read_weights`; no weight changed.
        """
        layout = self._layout
        if isinstance(layout, Layout) and {spec.dtype for spec in layout.parameters} == {"float32"}:
            write_moved(self._model, layout, moved, self._moments)
            self._written()
        else:
            self.write_weights(moved.put_in(self.read_weights()))

    def _within_range(self, vector: Tensor) -> Tensor:
        """`vector`, or a copy where a value is beyond what its parameter's type can hold."""
        if not self._largest or not vector.numel():
            return vector
        lowest, highest = torch.aminmax(vector)
        if max(-float(lowest), float(highest)) <= min(self._largest.values()):
            return vector
        held = vector.clone()
        views = self._layout.named_views(held)
        for name, largest in self._largest.items():
            views[name].clamp_(-largest, largest)
        return held


_SHORT_DTYPES = frozenset({"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"})
"""Types that hold less than float32 does."""


def live_values(model: nn.Module, layout: Layout, cut_off: Tensor | None = None) -> Values:
    """The model's parameters as one vector that is nowhere as a whole: (padded,) float32 on the
    CPU, a parameter of which is read when it is asked for. What is on a device is copied.

    Args:
        model: model with that layout; a caller has the values of that moment.
        layout: places of the parameters in the vector.
        cut_off: (padded,) added to them.

    Raises:
        LayoutMismatch: the model has another layout.
    """
    places = layout.places(model)
    if any(parameter.device.type != "cpu" for parameter in places.values()):
        whole = layout.read(model)  # a device copies all at once best
        return whole if cut_off is None else whole.add_(cut_off)

    def make(start: int, stop: int, out: Tensor | None) -> Tensor:
        found = _on_host(places[start]) if start in places else on_host(stop - start).zero_()
        if cut_off is not None:
            found = found + cut_off[start:stop]
        return found if out is None else out.copy_(found)

    return Chunked(tuple(dict.fromkeys((*places, layout.num_values, layout.padded))), make)


def write_moved(
    model: nn.Module, layout: Layout, moved: Moved, moments: Moments | None = None
) -> int:
    """Let a model go on from weights where they are others.

    Args:
        model: model with that layout.
        layout: places of the parameters in the vector.
        moved: weights that are others.
        moments: forgets what is broken of parameters that change.

    Returns:
        Number of parameters of which something was forgotten.

    Raises:
        LayoutMismatch: the model has another layout; no weight changed.
    """
    touched = layout.touched(model, moved.ranges)
    forgotten = 0 if moments is None else moments.forget_broken(one for one, _, _ in touched)
    pairs = list[tuple[Tensor, Tensor]]()
    for parameter, places, there in touched:
        one, values = parameter.detach(), moved.values[there]
        if one.is_contiguous():
            pairs.append((values, one.view(-1)[places]))
        else:
            flat = one.flatten()
            flat[places] = values.to(flat.device)
            one.copy_(flat.view(one.shape))
    to_device(pairs)
    return forgotten


def _on_host(parameter: Tensor) -> Tensor:
    """A parameter, flat float32 on the CPU; only read, as it may be the live one."""
    there = parameter.detach()
    if there.dtype == torch.float32 and there.device.type == "cpu" and there.is_contiguous():
        return there.view(-1)
    host = on_host(there.numel()).view(there.shape)
    to_host([(host, there)])
    return host.view(-1)

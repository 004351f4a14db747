"""A model's trainable parameters as one flat, padded float32 vector, and back.

The exchange works on a vector whose length is a multiple of the codec's block; this file is the
one place that knows where a parameter lies in it. Order is the model's own order of
`named_parameters`, in which a tied parameter appears once, under its first name.

Not here: buffers, frozen parameters and optimizer state. They stay with the peer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarmtrain.config.built_in import layout_digest
from swarmtrain.models.copies import to_device, to_host
from swarmtrain.models.weights_file import differences
from swarmtrain_optimizers.codecs.base import on_host

_LET_GO_PARTS = 32
"""Parts of a model's memory that go one after the other as it is laid flat."""

_COMPILED = "_orig_mod."
"""Prefix that torch.compile gives to the names of a module's parameters."""


class LayoutMismatch(ValueError):
    """A model or a set of tensors does not have the parameters that the layout names."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter, as two models must agree on it.

    Attributes:
        name: dotted name, such as ``blocks.0.up.weight``.
        shape: sizes of its axes.
        dtype: torch's name without the prefix, such as ``float32`` or ``bfloat16``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_values(self) -> int:
        """Values in this parameter; 1 for a scalar."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the trainable parameters in the flat vector.

    Attributes:
        parameters: one spec per parameter, in vector order.
        num_values: values of all parameters, without padding.
        padded: length of the vector: `num_values` rounded up to a multiple of the block. The
            padding is zero and stays zero, because its difference is always zero.
        digest: SHA-256 (32 bytes) of names, shapes and dtypes. Two models may exchange if and
            only if their digests are equal.
    """

    parameters: tuple[ParameterSpec, ...]
    num_values: int
    padded: int
    digest: bytes

    @classmethod
    def of(cls, model: nn.Module, block: int) -> "Layout":
        """The layout of `model`'s trainable parameters, padded to a multiple of `block`.

        Raises:
            ValueError: no parameter is trainable, or one is not of a real floating type.
        """
        if block < 1:
            raise ValueError(f"block must be at least 1, not {block}")
        parameters = _trainable(model)
        specs = _specs(parameters)
        if not specs:
            raise ValueError(
                "the model has no trainable parameters: every requires_grad is False. "
                "Unfreeze what the run should train."
            )
        for spec, parameter in zip(specs, parameters.values(), strict=True):
            if not parameter.dtype.is_floating_point:
                raise ValueError(
                    f"parameter `{spec.name}` has dtype {spec.dtype}; only real floating types "
                    "can be averaged. Freeze it or split it into real parts."
                )
        return cls.from_parameters(specs, block)

    @classmethod
    def from_parameters(cls, parameters: tuple[ParameterSpec, ...], block: int) -> "Layout":
        """The layout of a model that is not here, padded to a multiple of `block`."""
        num_values = sum(spec.num_values for spec in parameters)
        digest = layout_digest((spec.name, spec.shape, spec.dtype) for spec in parameters)
        return cls(parameters, num_values, -(-num_values // block) * block, digest)

    def read(self, model: nn.Module, out: Tensor | None = None) -> Tensor:
        """The model's parameters as one vector, (padded,) float32 on the CPU.

        Args:
            out: a vector to write into instead of a new one; its padding is set to zero.

        Raises:
            LayoutMismatch: the model is not the one that this layout describes.
        """
        vector = on_host(self.padded) if out is None else out
        views = self.named_views(vector)
        with torch.no_grad():
            to_host((views[name], one) for name, one in self._matching(model).items())
            vector[self.num_values :].zero_()
        return vector

    def write(self, model: nn.Module, vector: Tensor) -> None:
        """Copy `vector`, (padded,) float32, into the model, converted to each parameter's dtype.

        Raises:
            LayoutMismatch: the model is not the one that this layout describes; it is unchanged.
        """
        parameters = self._matching(model)
        with torch.no_grad():
            views = self.named_views(vector)
            to_device((view, parameters[name]) for name, view in views.items())

    def lay_flat(
        self, model: nn.Module, let_go: Callable[[], None] = lambda: None
    ) -> Tensor | None:
        """Let the model's parameters be views of one vector, (padded,) float32 with zeros behind
        them, one after the other: no second copy of the model is there meanwhile.

        Args:
            model: the model.
            let_go: called when the memory of some more parameters is not needed any more.

        Returns:
            The vector; None if it cannot be: a parameter is on a device, or of another type.

        Raises:
            LayoutMismatch: as `read`.
        """
        parameters = self._matching(model)
        fitting = (torch.float32, "cpu")
        if any((one.dtype, one.device.type) != fitting for one in parameters.values()):
            return None
        vector = torch.empty(self.padded)
        with torch.no_grad():
            vector[self.num_values :].zero_()
            waiting = 0
            for name, view in self.named_views(vector).items():
                parameters[name].data = view.copy_(parameters[name])
                waiting += view.numel()
                if waiting * _LET_GO_PARTS >= self.num_values:
                    waiting = 0
                    let_go()
        return vector

    def places(self, model: nn.Module) -> dict[int, nn.Parameter]:
        """The model's parameters by the place of their first value; those without any are not here.

        Raises:
            LayoutMismatch: as `read`.
        """
        found, position = dict[int, nn.Parameter](), 0
        for parameter in self._matching(model).values():
            if parameter.numel():
                found[position] = parameter
            position += parameter.numel()
        return found

    def touched(
        self, model: nn.Module, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[nn.Parameter, slice, slice]]:
        """The model's parameters that parts of the vector lie in, each with the places of these
        values in it, and in the parts one after the other.

        Args:
            ranges: (start, stop) of the parts, in order, apart.

        Raises:
            LayoutMismatch: as `read`.
        """
        places, found, position = self.places(model), [], 0
        for start, stop in ranges:
            for first, parameter in places.items():
                low, high = max(start, first), min(stop, first + parameter.numel())
                if low < high:
                    there = slice(position + low - start, position + high - start)
                    found.append((parameter, slice(low - first, high - first), there))
            position += stop - start
        return found

    def named_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Each parameter's values as a float32 view into `vector`, (padded,), in its own shape.

        Raises:
            ValueError: `vector` is not a float32 CPU vector of this length.
        """
        expected = (torch.float32, (self.padded,), "cpu")
        got = (vector.dtype, tuple(vector.shape), vector.device.type)
        if got != expected:
            raise ValueError(
                f"expected a float32 CPU vector of {self.padded} values, got {vector.dtype} of "
                f"shape {tuple(vector.shape)} on {vector.device}"
            )
        pieces = torch.split(
            vector[: self.num_values], [spec.num_values for spec in self.parameters]
        )
        return {
            spec.name: piece.view(spec.shape)
            for spec, piece in zip(self.parameters, pieces, strict=True)
        }

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One new vector, (padded,) float32, from tensors by parameter name.

        Raises:
            LayoutMismatch: a parameter is missing, one too many is there, or a shape differs.
        """
        wanted = {spec.name: spec.shape for spec in self.parameters}
        found = {name: tuple(one.shape) for name, one in tensors.items()}
        if wrong := next(differences(wanted, found), ""):
            raise LayoutMismatch(wrong)
        vector = on_host(self.padded).zero_()
        with torch.no_grad():
            for name, view in self.named_views(vector).items():
                view.copy_(tensors[name])
        return vector

    def _matching(self, model: nn.Module) -> dict[str, nn.Parameter]:
        parameters = _trainable(model)
        specs = _specs(parameters)
        if specs != self.parameters:
            raise LayoutMismatch(
                f"the model changed after the exchange began: {_change(self.parameters, specs)}. "
                "Freeze, add or convert parameters before joining, and keep them so."
            )
        return parameters


def _change(then: Sequence[ParameterSpec], now: Sequence[ParameterSpec]) -> str:
    """The first of a model's parameters that is not as it was, in words."""
    were, are = {one.name: one for one in then}, {one.name: one for one in now}
    for name, was in were.items():
        one = are.get(name)
        if one is None:
            return f"parameter `{name}` was trainable, and is so no longer"
        if one.shape != was.shape:
            return f"parameter `{name}` had the shape {was.shape}, and now has {one.shape}"
        if one.dtype != was.dtype:
            return f"parameter `{name}` was {was.dtype}, and is {one.dtype} now"
    more = next((name for name in are if name not in were), "")
    return f"parameter `{more}` is a new one" if more else "the order of its parameters is another"


def local_part(tensor: Tensor) -> Tensor:
    """The memory of this process's shard of a DTensor, or the tensor itself where it is none."""
    if not hasattr(tensor, "to_local"):
        return tensor.detach()
    with torch.no_grad():
        shard: Tensor = tensor.to_local()
    return shard


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, as if nothing were compiled: torch.compile puts a layer's name into another one."""
    return {
        name.replace(_COMPILED, ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _specs(tensors: Mapping[str, Tensor]) -> tuple[ParameterSpec, ...]:
    return tuple(
        ParameterSpec(name, tuple(one.shape), str(one.dtype).removeprefix("torch."))
        for name, one in tensors.items()
    )

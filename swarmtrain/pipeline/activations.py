"""Activations and their gradients as bytes, on the way from one stage to the next and back.

    none     float32 as it is: the receiver computes with the sender's bits
    float16  a shared power of two, then halves: gradients of any size keep their 11 bits
    int8     a scale per token, or per equal part of a wide token, then one byte per value

In a subspace these are the coordinates alone, and the input of a stage has the token ids behind
them, as whole numbers; the receiver makes the rest again (`subspace`).

The quantization is straight-through: a sender's backward pass goes through its own values, and the
receiver computes from the bytes, again from the same ones if it recomputes. Activations are rounded
to nearest. Gradients in int8 are rounded stochastically, so that they are right on average (SWARM
Parallelism, arXiv 2301.11913, has both in blocks of a tensor). The chances come from a seed that
hangs on the micro-batch and the hop alone, so what is sent again has the same bytes.
"""

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import torch
from torch import Tensor

from swarmtrain.config.stages import rank_of
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_optimizers.codecs.base import (
    IllegalPayload,
    UnencodableValues,
    check_length,
    to_bytes,
    view_payload,
)
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer, Window
from swarmtrain_transport.pipeline.wire import messages
from swarmtrain_transport.pipeline.wire.route import MicroBatch

_BLOCK_MAX = 256
"""Values that share a scale: an outlier costs so many others their accuracy, and a scale adds less
than a hundredth."""

_BLOCK_MIN = 16
"""A token whose width has no divisor between the two gets one scale."""

_SHIFT_BYTES = 2
_SHIFT_MIN, _SHIFT_MAX = -112, 126
"""Powers of two that are normal float32 numbers, and so are those of which they are the inverse."""

_LARGEST_EXPONENT = 15
"""The largest value is brought just below 2^15: halves end at 2^16, and it may be rounded up."""

_VALUE_MAX = 2.0**40
"""Products of two such values and sums of them over many tokens are still finite in float32. Those
of a model that learns are below a million."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ActivationCodec(StrEnum):
    """Form of the values on the wire, by its name in the run file."""

    NONE = "none"
    FLOAT16 = "float16"
    INT8 = "int8"


def codec_of(activations: str) -> ActivationCodec:
    """Return the codec of the values of a form of the run file."""
    return ActivationCodec.INT8 if rank_of(activations) else ActivationCodec(activations)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The place between two stages: the form of what passes it, in both directions.

    Attributes:
        codec: codec of the values.
        shape: shape of a micro-batch's activations; the last dimension is a token's vector.
        subspace: subspace that they lie in; None where all their values pass.
    """

    codec: ActivationCodec
    shape: tuple[int, ...]
    subspace: Subspace | None = None

    @property
    def form(self) -> messages.Payload:
        """The form of a gradient as it is told beside the bytes."""
        name = f"subspace-{self.subspace.rank}" if self.subspace else self.codec.value
        return messages.Payload(name, self.shape, self.num_bytes)

    @property
    def input_form(self) -> messages.Payload:
        """The form of a stage's input."""
        form, ids = self.form, self._ids
        if ids is None:
            return form
        return msgspec.structs.replace(form, num_bytes=form.num_bytes + ids.form.num_bytes)

    @property
    def _coded(self) -> tuple[int, ...]:
        """Shape of the values that are sent."""
        return (*self.shape[:-1], self.subspace.rank) if self.subspace else self.shape

    @property
    def _ids(self) -> Labels | None:
        return Labels(self.shape[:-1], self.subspace.tokens) if self.subspace else None

    @property
    def num_bytes(self) -> int:
        """Length of a gradient's bytes, which is always the same."""
        count = math.prod(self._coded)
        if self.codec is ActivationCodec.NONE:
            return 4 * count
        if self.codec is ActivationCodec.FLOAT16:
            return _SHIFT_BYTES + 2 * count
        return Int8().payload_bytes(count, self._window.block)

    @property
    def _window(self) -> Window:
        """Blocks do not cross tokens, and every scale that a sane value needs is legal."""
        width = self._coded[-1]
        fitting = [n for n in range(_BLOCK_MIN, min(width, _BLOCK_MAX) + 1) if width % n == 0]
        block = fitting[-1] if fitting else width
        return Window(self.codec, block, limits.E_MIN_FLOOR, limits.E_MAX_CEILING)

    def encode_input(self, values: Tensor, tokens: Tensor | None) -> bytes:
        """A stage's input as bytes.

        Args:
            values: see `encode`.
            tokens: token ids of these values, where there is a subspace.

        Raises:
            UnencodableValues, ValueError: as of `encode`.
        """
        if self._ids is None or tokens is None:
            return self.encode(values)
        return self.encode(values) + self._ids.encode(tokens)

    def decode_input(self, data: Buffer, form: messages.Payload) -> tuple[Tensor, Tensor | None]:
        """A stage's input that came from somebody else, and its token ids where there is a
        subspace, after every check.

        Returns:
            The values, as of `decode`; and (...) int64, None without a subspace.

        Raises:
            IllegalPayload: as of `decode`; reason ``code`` for what is no token.
        """
        if self.subspace is None or self._ids is None:
            return self.decode(data, form), None
        if form != self.input_form:
            raise IllegalPayload("form", f"{form} at a boundary of {self.input_form}")
        check_length(data, form.num_bytes)
        tokens = self._ids.decode(data[self.num_bytes :], self._ids.form)
        coordinates = self._decoded(data[: self.num_bytes])
        return self.subspace.whole(coordinates, tokens), tokens

    def encode(self, values: Tensor, *, seed: int | None = None) -> bytes:
        """The values as bytes, in a subspace their coordinates; the same values and seed give the
        same ones.

        Args:
            values: tensor of the boundary's shape; float32, or a kind that it holds exactly.
            seed: 0 to 2^64 - 1 of a gradient's stochastic rounding, see `rounding_seed`; None
                rounds to nearest. Without effect on what is not rounded to int8.

        Raises:
            UnencodableValues: reason ``nonfinite``; or ``above-window``, from 2^39 on.
            ValueError: another shape or dtype: the caller's mistake.
        """
        if tuple(values.shape) != self.shape or values.dtype not in _DTYPES:
            raise ValueError(
                f"{values.dtype} of shape {tuple(values.shape)} at a boundary of {self.shape}"
            )
        sent = values.detach()
        if self.subspace is not None:
            sent = self.subspace.coordinates(sent)
        flat = sent.to("cpu", torch.float32).contiguous().reshape(-1)
        largest = flat.abs().amax().item()
        if not math.isfinite(largest):
            raise UnencodableValues("nonfinite", "a value is NaN or infinite")
        if largest >= _VALUE_MAX / 2:  # rounded up it would be too large for the receiver
            raise UnencodableValues("above-window", f"a value of {largest:.3g}")
        if self.codec is ActivationCodec.INT8:
            if seed is None:
                return Int8().encode(flat, self._window)
            return Int8().encode_stochastic(flat, self._window, seed=seed, first_index=0)
        if self.codec is ActivationCodec.NONE:
            return to_bytes(flat, "<f4")
        shift = min(_LARGEST_EXPONENT - math.frexp(largest)[1], _SHIFT_MAX)
        halves = (flat * 2.0**shift).to(torch.float16)
        return shift.to_bytes(_SHIFT_BYTES, "little", signed=True) + to_bytes(halves, "<f2")

    def decode(self, data: Buffer, form: messages.Payload) -> Tensor:
        """The values of bytes that came from somebody else, after every check.

        Args:
            data: the bytes.
            form: form that was told beside them.

        Returns:
            float32 of the boundary's shape on the CPU, nothing of it outside a subspace; what was
            sent is below 2^40. Not the bytes' memory.

        Raises:
            IllegalPayload: reason ``form``, ``length``, ``scale`` or ``nonfinite``.
        """
        if form != self.form:
            raise IllegalPayload("form", f"{form} at a boundary of {self.form}")
        check_length(data, self.num_bytes)
        values = self._decoded(data)
        return self.subspace.direction(values) if self.subspace else values

    def _decoded(self, data: Buffer) -> Tensor:
        """The values that were sent, from bytes of the right length."""
        count = math.prod(self._coded)
        if self.codec is ActivationCodec.INT8:
            Int8().check(data, count, self._window)
            values = Int8().decode(data, count, self._window)
        elif self.codec is ActivationCodec.NONE:
            values = view_payload(data, "<f4", count, 0).clone()
        else:
            shift = int.from_bytes(data[:_SHIFT_BYTES], "little", signed=True)
            if not _SHIFT_MIN <= shift <= _SHIFT_MAX:
                raise IllegalPayload("scale", f"halves times 2^{-shift}")
            values = view_payload(data, "<f2", count, _SHIFT_BYTES).to(torch.float32)
            values *= 2.0**-shift
        if not values.abs().amax().item() < _VALUE_MAX:
            raise IllegalPayload("nonfinite", "a value is NaN, or larger than any sane one")
        return values.reshape(self._coded)


def rounding_seed(run: bytes, micro_batch: MicroBatch, stage: int) -> int:
    """Seed for a gradient's stochastic rounding: whoever makes it, and however often.

    Args:
        run: hash of the run's settings, which names it.
        micro_batch: micro-batch of the gradient.
        stage: stage whose input it is the gradient of.
    """
    numbers = (micro_batch.round, micro_batch.number, stage)
    digest = hashlib.sha256(b"swarmtrain gradient rounding 1" + run + micro_batch.source)
    digest.update(b"".join(number.to_bytes(8, "big") for number in numbers) + micro_batch.boot)
    return int.from_bytes(digest.digest()[:8], "big")

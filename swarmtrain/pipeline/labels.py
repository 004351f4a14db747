"""Labels as bytes, from a micro-batch's source to the end of its route."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import IllegalPayload, check_length, to_bytes
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.pipeline.wire import messages

_CODEC = "labels"
_BYTE_CLASSES = 256


@dataclass(frozen=True, slots=True)
class Labels:
    """Form of a run's labels, which all of its peers know.

    Attributes:
        shape: shape of a micro-batch's labels.
        classes: labels are whole numbers from 0 to below this; up to 256 take a byte each, more
            take four. 0: they are float32 values.
    """

    shape: tuple[int, ...]
    classes: int

    @property
    def form(self) -> messages.Payload:
        """The form as it is told beside the bytes."""
        return messages.Payload(_CODEC, self.shape, self._width * self.count)

    @property
    def count(self) -> int:
        """Number of labels in a micro-batch."""
        return math.prod(self.shape)

    @property
    def _width(self) -> int:
        return 1 if 0 < self.classes <= _BYTE_CLASSES else 4

    @property
    def _dtype(self) -> torch.dtype:
        if not self.classes:
            return torch.float32
        return torch.uint8 if self._width == 1 else torch.int32

    def encode(self, labels: Tensor) -> bytes:
        """The labels as bytes.

        Args:
            labels: labels of the shape.

        Raises:
            ValueError: another shape, no such class or value: the caller's mistake.
        """
        flat = labels.detach().cpu().reshape(-1)
        if tuple(labels.shape) != self.shape or not self._are_legal(flat):
            raise ValueError(f"labels of {tuple(labels.shape)} are not {self}")
        kind = "u" if self.classes else "f"
        return to_bytes(flat.to(self._dtype), f"<{kind}{self._width}")

    def decode(self, data: Buffer, form: messages.Payload) -> Tensor:
        """Labels that came from somebody else, after every check.

        Returns:
            int64 or float32 of the shape, on the CPU.

        Raises:
            IllegalPayload: reason ``form``, ``length`` or ``code``.
        """
        if form != self.form:
            raise IllegalPayload("form", f"{form} for labels of {self.shape}")
        check_length(data, form.num_bytes)
        # Of a copy: bytes that came are read-only, and torch warns of tensors in them.
        flat = torch.frombuffer(bytearray(data), dtype=self._dtype)
        if self.classes:
            flat = flat.to(torch.int64)
        if not self._are_legal(flat):
            raise IllegalPayload("code", "a label is no class, or not finite")
        return flat.reshape(self.shape)

    def _are_legal(self, flat: Tensor) -> bool:
        if not self.classes:
            return bool(flat.isfinite().all())
        return bool(((flat >= 0) & (flat < self.classes)).all())

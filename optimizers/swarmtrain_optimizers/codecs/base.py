"""The contract of a codec: values become bytes, bytes are summed, a sum becomes bytes again.

A codec is a stateless value, so one instance serves every thread. All methods work on chunks: a
chunk is a whole number of blocks, and blocks never influence each other, so a vector may be cut
anywhere between blocks without changing a byte. Not here: when something is sent, and to whom.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.vectors import fresh

Payload = bytes | bytearray | memoryview

PIECE_VALUES = 32_768
"""Values worked on at once: float64 sums of 256 KiB stay in the second cache. At a quarter of this
the calls cost as much as the work, at four times this the sums go through memory."""


class CodecError(ValueError):
    """Root of what a codec refuses.

    Args:
        reason: a short code, see the subclasses.
        detail: the fact and the value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class IllegalPayload(CodecError):
    """Bytes that no honest sender makes: reason ``length``, ``scale``, ``code`` or ``index``."""


class UnencodableValues(CodecError):
    """Our own values cannot be sent: reason ``nonfinite`` or ``above-window``."""


class ScaleWindow(Protocol):
    """Scaling of an op's blocks (protocol.md rule 1). Transport's `Window` fits it."""

    @property
    def block(self) -> int:
        """Values that share one scale."""

    @property
    def e_min(self) -> int:
        """Lowest exponent of a legal scale, at least -90."""

    @property
    def e_max(self) -> int:
        """Highest exponent of a legal scale."""


class Codec(Protocol):
    """One way to turn values into bytes. `num_values` is always a multiple of the block."""

    @property
    def name(self) -> str:
        """The name in PLAN."""

    @property
    def exact(self) -> bool:
        """True if sums do not depend on order, so that `subtract_` undoes `add_` bit for bit."""

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Exact length of an encoded chunk."""

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """Encode a chunk; the same values give the same bytes.

        Args:
            values: (num_values,) contiguous float32 on the CPU; only read.
            window: block and legal exponents of a scale.

        Raises:
            UnencodableValues: a value is not finite, or a block lies above the window.
        """

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Refuse an illegal chunk; everything below relies on this test.

        Raises:
            IllegalPayload: reason ``length``, ``scale``, ``code`` or ``index``.
        """

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * decoded, for a chunk that `check` passed.

        Args:
            acc: (num_values,) float64, changed in place.
            payload: the encoded chunk.
            weight: integer in 1..255.
            window: the window under which it was encoded.
        """

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """Take back exactly what `add_` with the same arguments put in.

        Raises:
            TypeError: the codec is not exact; sum again without the part instead.
        """

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """The mean as an encoded chunk (protocol.md rule 6). `acc` is spent."""

    def mean(
        self, parts: Sequence[tuple[Payload, int]], num_values: int, window: ScaleWindow
    ) -> bytes:
        """The mean of parts and their weights, encoded: `add_` for each, then `finish`.

        Args:
            parts: encoded chunks that `check` passed, each with its weight in 1..255.
            num_values: number of values in each part.
            window: the window under which they were encoded.
        """

    def prepare(self) -> bool:
        """Get ready for much work, which may take seconds; True if it will go faster now."""

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """(num_values,) float32 of a chunk that `check` passed; |x| < 2^-100 is 0 (rule 5).

        Args:
            payload: the encoded chunk.
            num_values: number of values in the chunk.
            window: the window under which it was encoded.
            out: (num_values,) contiguous float32 to write to and return; None for a new tensor.
        """


class StochasticCodec(Codec, Protocol):
    """A codec that can also round so that what is sent is right on average."""

    def encode_stochastic(
        self, values: Tensor, window: ScaleWindow, *, seed: int, first_index: int
    ) -> bytes:
        """Round each value to one of the two levels around it, with chances that make its
        mean right. The bytes depend on nothing but the arguments; where a vector is cut between
        blocks changes none. Twice the squared error of `encode` at most.

        Args:
            values: (num_values,) contiguous float32 on the CPU; only read.
            window: block and legal exponents of a scale; a block below it is zero all the same.
            seed: 0 to 2^64 - 1; another one for every op and every peer.
            first_index: place of the first value in the whole vector.

        Raises:
            TypeError: the codec's levels are too few.
            UnencodableValues: as `encode`.
        """


class _Unlocked:
    """Hands out an array's memory as if it could be written; torch has no read-only tensors."""

    def __init__(self, array: "np.ndarray[Any, Any]") -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.array = array  # keeps the memory alive as long as a tensor looks at it


def view_payload(payload: Payload, dtype: str, count: int, offset: int) -> Tensor:
    """A tensor over part of a payload: no copy, no warning for read-only bytes.

    Never write to it: `bytes` are shared with whoever else holds them.

    Args:
        payload: any contiguous buffer.
        dtype: numpy name with byte order, such as ``<f4``.
        count: number of items.
        offset: first byte.
    """
    array = np.frombuffer(payload, dtype=dtype, count=count, offset=offset)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Unlocked(array)))


def on_host(num_values: int) -> Tensor:
    """A new float32 vector in this machine's memory, whatever a program has set for its tensors."""
    return fresh(num_values)


def to_bytes(values: Tensor, dtype: str) -> bytes:
    """The values of a tensor in this machine's memory as bytes.

    Args:
        values: any shape.
        dtype: numpy name with byte order, such as ``<f4``.
    """
    data: bytes = values.numpy().astype(dtype, copy=False).tobytes()
    return data


def check_length(payload: Payload, wanted: int) -> None:
    """Refuse a payload of any other length.

    Raises:
        IllegalPayload: reason ``length``.
    """
    length = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if length != wanted:
        raise IllegalPayload("length", f"chunk of {length} bytes, the plan says {wanted}")


def check_weight(weight: int) -> None:
    """Weights are integers in 1..255 (protocol.md rule 2); anything else is a caller's bug.

    Raises:
        ValueError: `weight` is out of range.
    """
    if not 1 <= weight <= 255:
        raise ValueError(f"weight {weight} is outside 1..255")


def rows_at_once(block: int) -> int:
    """Whole blocks worked on at once, at least one, about `PIECE_VALUES` values."""
    return max(1, PIECE_VALUES // block)


def row_slices(num_blocks: int, block: int) -> list[slice]:
    """Slices of `rows_at_once` blocks, the last one shorter, that cover a chunk."""
    step = rows_at_once(block)
    return [slice(start, min(start + step, num_blocks)) for start in range(0, num_blocks, step)]

"""The identity codec: float32 as it is, for small models, oracles and comparisons.

Its name in PLAN is ``none``. Float32 values of any size do not add exactly in float64, so the
codec is not exact: the owner keeps the parts and sums once, after FREEZE (protocol.md rule 7).
The window is not used. Not a fast path: four times the bytes of int8.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import (
    IllegalPayload,
    Payload,
    ScaleWindow,
    UnencodableValues,
    check_length,
    check_weight,
    on_host,
    to_bytes,
    view_payload,
)
from swarmtrain_optimizers.subnormals import flush_tiny_


class Raw:
    """Little-endian float32, |x| < 2^-100 sent as 0."""

    name = "none"
    exact = False

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Four bytes per value; blocks play no part."""
        return 4 * num_values

    def encode(self, values: Tensor, window: ScaleWindow) -> bytes:
        """Return the values' bytes. Values too small for every machine stay behind, as in a window.

        Raises:
            UnencodableValues: reason ``nonfinite``.
        """
        if not math.isfinite(values.abs().amax().item()):
            raise UnencodableValues("nonfinite", "a value is NaN or infinite")
        return to_bytes(flush_tiny_(values.clone()), "<f4")

    def check(self, payload: Payload, num_values: int, window: ScaleWindow) -> None:
        """Length, and every value finite: a NaN would spread to everybody.

        Raises:
            IllegalPayload: reason ``length`` or ``scale``.
        """
        check_length(payload, self.payload_bytes(num_values, window.block))
        largest = view_payload(payload, "<f4", num_values, 0).abs().amax().item()
        if not math.isfinite(largest):
            raise IllegalPayload("scale", "a value is NaN or infinite")

    def add_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """acc += weight * x; the product is exact, the sum rounds."""
        check_weight(weight)
        part = view_payload(payload, "<f4", acc.numel(), 0).to(torch.float64)
        acc.add_(part.mul_(weight))

    def subtract_(self, acc: Tensor, payload: Payload, weight: int, window: ScaleWindow) -> None:
        """Refused: float64 sums of float32 values round, and rounding cannot be taken back.

        Raises:
            TypeError: always.
        """
        raise TypeError("codec 'none' is not exact: sum again without the part")

    def finish(self, acc: Tensor, total_weight: int, window: ScaleWindow) -> bytes:
        """float32(acc / W), |x| < 2^-100 as 0; `acc` is spent."""
        return to_bytes(flush_tiny_(acc.div_(total_weight).to(torch.float32)), "<f4")

    def mean(
        self, parts: Sequence[tuple[Payload, int]], num_values: int, window: ScaleWindow
    ) -> bytes:
        """float32(sum / W), summed in the order given."""
        acc = torch.zeros(num_values, dtype=torch.float64, device="cpu")
        for payload, weight in parts:
            self.add_(acc, payload, weight, window)
        return self.finish(acc, sum(weight for _, weight in parts), window)

    def prepare(self) -> bool:
        """There is nothing to get ready."""
        return False

    def decode(
        self, payload: Payload, num_values: int, window: ScaleWindow, out: Tensor | None = None
    ) -> Tensor:
        """The values, |x| < 2^-100 as 0 whoever encoded them (rule 5)."""
        decoded = out if out is not None else on_host(num_values)
        decoded.copy_(view_payload(payload, "<f4", num_values, 0))
        return flush_tiny_(decoded)

"""A plan's window and hand-made chunks, for tests that must not depend on transport."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class PlanWindow:
    block: int = 8
    e_min: int = -24
    e_max: int = 0


def payload_of(scale_bits: Sequence[int], values: Sequence[int]) -> bytes:
    scales = np.array(scale_bits, dtype="<u2").tobytes()
    return scales + np.array(values, dtype=np.int8).tobytes()


def split_payload(payload: bytes, num_values: int, block: int) -> tuple[list[int], list[int]]:
    num_blocks = num_values // block
    scales = np.frombuffer(payload, dtype="<u2", count=num_blocks)
    values = np.frombuffer(payload, dtype=np.int8, offset=2 * num_blocks)
    return scales.tolist(), values.tolist()


def part_of(values: torch.Tensor | None) -> Callable[[int, int], torch.Tensor] | None:
    """A peer's own part as the others have decoded it, asked for by places."""
    return None if values is None else lambda start, stop: values[start:stop]

"""A plan's window and hand-made chunks, for tests that must not depend on transport."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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

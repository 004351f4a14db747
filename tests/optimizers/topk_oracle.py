"""The topk codec in plain Python: sort, try every split, put bits together as text."""

from fractions import Fraction

import torch
from int8_oracle import float32, scale_of
from window import PlanWindow


def nearest_bits(value: float, window: PlanWindow) -> int:
    """bfloat16 by torch's own conversion, 0 below the window."""
    bits = torch.tensor(value, dtype=torch.float64).float().bfloat16().view(torch.uint16).item()
    return int(bits) if bits >= (window.e_min + 127) << 7 else 0


def levels_of(magnitudes: list[float], window: PlanWindow) -> tuple[int, int]:
    """Means of the two clusters with the smallest squared error, of the first such split."""
    ordered = [Fraction(value) for value in sorted(magnitudes)]
    total, count = sum(ordered), len(ordered)
    if count == 1:
        return (nearest_bits(float(total), window),) * 2

    def kept_energy(split: int) -> Fraction:
        small = sum(ordered[:split])
        return small**2 / split + (total - small) ** 2 / (count - split)

    split = max(range(1, count), key=kept_energy)
    small = sum(ordered[:split])
    means = float(small / split), float((total - small) / (count - split))
    return nearest_bits(float32(means[0]), window), nearest_bits(float32(means[1]), window)


def encode(values: list[float], kept: int, window: PlanWindow) -> bytes:
    smaller, larger, records = b"", b"", b""
    width = max(1, (window.block - 1).bit_length())
    for start in range(0, len(values), window.block):
        block = values[start : start + window.block]
        order = sorted(range(window.block), key=lambda i: (-abs(block[i]), i))
        indices = sorted(order[:kept])
        low, high = levels_of([abs(block[i]) for i in indices], window)
        smaller += low.to_bytes(2, "little")
        larger += high.to_bytes(2, "little")
        text = ""
        for index in indices:
            text = format(index, f"0{width}b") + text
        for index in indices:
            is_larger = 2 * Fraction(abs(block[index])) >= scale_of(low) + scale_of(high)
            level = high if is_larger else low
            text = format(is_larger + 2 * (block[index] < 0) if level else 0, "02b") + text
        text = "0" * (-len(text) % 8) + text
        records += int(text, 2).to_bytes(len(text) // 8, "little")
    return smaller + larger + records


def decode(payload: bytes, num_values: int, kept: int, window: PlanWindow) -> list[Fraction]:
    num_blocks = num_values // window.block
    width = max(1, (window.block - 1).bit_length())
    record_bytes = (len(payload) - 4 * num_blocks) // num_blocks
    values = [Fraction(0)] * num_values
    for row in range(num_blocks):
        levels = [int.from_bytes(payload[at : at + 2], "little")
                  for at in (2 * row, 2 * (num_blocks + row))]  # fmt: skip
        start = 4 * num_blocks + row * record_bytes
        number = int.from_bytes(payload[start : start + record_bytes], "little")
        for place in range(kept):
            index = number >> (width * place) & (1 << width) - 1
            code = number >> (width * kept + 2 * place) & 3
            sign = -1 if code & 2 else 1
            values[row * window.block + index] += sign * scale_of(levels[code & 1])
    return values

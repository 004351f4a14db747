"""Exact chunk arithmetic in plain Python integers: the machines under test need no torch.

A part is one scale byte and two bytes per value, a result eight bytes per value and the weight:
a result says the exact sum and whose weight is in it, so a test can compare with a sum on paper.
"""

import struct
from collections.abc import Sequence
from operator import mul

from swarmtrain_transport.arithmetic import Buffer, ContributionRefused, Window
from swarmtrain_transport.errors import LocalFault, RemoteFault

SCALE = 7
ILLEGAL_SCALE = 0xFF


def encode_part(values: Sequence[int], scale: int = SCALE) -> bytes:
    return struct.pack(f"<B{len(values)}h", scale, *values)


def decode_part(part: Buffer) -> tuple[int, ...]:
    return struct.unpack(f"<{(len(part) - 1) // 2}h", bytes(part)[1:])


def decode_result(chunk: Buffer) -> tuple[tuple[int, ...], int]:
    """The sums, value by value, and the total weight."""
    *sums, weight = struct.unpack(f"<{len(chunk) // 8 - 1}qq", bytes(chunk))
    return tuple(sums), weight


class PlainSum:
    """Whole numbers, which are always exact. With scalars of a rule each part is taken so many
    times as the first of them that belongs to it says."""

    def __init__(self, num_values: int, scalars: tuple[float, ...] = ()) -> None:
        self._sums = [0] * num_values
        self._scalars = list(scalars)
        self._spent = False

    def add(self, part: Buffer, weight: int) -> None:
        times = weight * (int(self._scalars.pop(0)) if self._scalars else 1)
        self._sums = [a + times * b for a, b in zip(self._sums, decode_part(part), strict=True)]

    def unrounded(self) -> bytes:
        return struct.pack(f"<{len(self._sums)}q", *self._sums)

    def finish(self, total_weight: int) -> bytes:
        if self._spent or total_weight <= 0:
            raise LocalFault(f"finish({total_weight}) of a spent or empty sum")
        self._spent = True
        return struct.pack(f"<{len(self._sums)}qq", *self._sums, total_weight)


class PlainArithmetic:
    def is_exact(self, codec: str) -> bool:
        return codec != "inexact"

    def chunk_bytes(self, num_values: int, window: Window) -> int:
        return 1 + 2 * num_values

    def check(self, part: Buffer, num_values: int, window: Window) -> None:
        if len(part) != self.chunk_bytes(num_values, window):
            raise RemoteFault("length", f"a part of {len(part)} bytes")
        if bytes(part[:1])[0] == ILLEGAL_SCALE:
            raise RemoteFault("scale", "not in the window")

    def check_result(self, chunk: Buffer, num_values: int, window: Window) -> None:
        if len(chunk) != 8 * num_values + 8:
            raise RemoteFault("length", f"a result of {len(chunk)} bytes")
        if bytes(chunk[-8:]) == bytes(8):
            raise RemoteFault("scale", "nobody's weight is in it")

    def check_sum(self, data: Buffer, num_values: int, window: Window, weight: int) -> None:
        if len(data) != 8 * num_values:
            raise RemoteFault("length", f"a sum of {len(data)} bytes")

    def finish_sums(
        self, sums: Sequence[Buffer], num_values: int, window: Window, weight: int
    ) -> bytes:
        rows = [struct.unpack(f"<{num_values}q", bytes(one)) for one in sums]
        return struct.pack(f"<{num_values}qq", *map(sum, zip(*rows, strict=True)), weight)

    def accumulator(
        self,
        num_values: int,
        window: Window,
        scalars: tuple[float, ...] = (),
        centre: Buffer = b"",
    ) -> PlainSum:
        return PlainSum(num_values, scalars)

    def values(self, chunk: Buffer, num_values: int, window: Window) -> bytes:
        sums, weight = decode_result(chunk)
        return struct.pack(f"<{num_values}f", *(value / weight for value in sums))

    def gauges(
        self, parts: Sequence[Buffer], result: Buffer, num_values: int, window: Window
    ) -> tuple[tuple[float, float], ...]:
        sums, weight = decode_result(result)
        mean = [value / weight for value in sums]
        rows = [*map(decode_part, parts), mean]
        return tuple(
            (float(sum(x * x for x in row)), float(sum(map(mul, row, mean)))) for row in rows
        )

    def square(self, centre: Buffer) -> float:
        return sum(value * value for (value,) in struct.iter_unpack("<f", centre))

    def products(
        self, part: Buffer, others: Sequence[Buffer], num_values: int, window: Window,
        centre: Buffer = b"",
    ) -> tuple[float, ...]:  # fmt: skip
        assert not centre  # whole numbers have none
        mine = decode_part(part)
        return tuple(
            float(sum(a * b for a, b in zip(mine, decode_part(other), strict=True)))
            for other in others
        )


class PlainContribution:
    """Values of one peer. None stands for a value that is no number.

    With `drifting` each call encodes other bytes, as a careless implementation might.
    """

    def __init__(self, values: Sequence[int | None], *, drifting: bool = False) -> None:
        self._values = list(values)
        self._drifting = drifting
        self.calls = 0

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        self.calls += 1
        values = [value for value in self._values[start:stop] if value is not None]
        if len(values) < stop - start:
            raise ContributionRefused("nonfinite")
        return encode_part(values, SCALE + self.calls if self._drifting else SCALE)

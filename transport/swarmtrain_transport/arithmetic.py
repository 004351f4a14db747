"""The exchange's knowledge of numbers, as protocols that the caller supplies.

Transport has no torch. A peer hands in an implementation on its codec; the machines only move
opaque chunks, ask for exact sums and compare hashes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Window:
    """Parameters by which the values of one op become bytes (protocol.md part 1, rules 1 and 6).

    Attributes:
        codec: name of the codec of parts, such as ``int8`` or ``none``.
        block: values that share one scale; slices and chunks are multiples of it.
        e_min: lowest exponent of a legal scale; smaller blocks are sent as zero.
        e_max: highest exponent of a legal scale; a larger block is reported, never sent.
        result_codec: name of the codec of the result; "" for that of parts.
        rule: name of what takes the place of the mean (rule 7); "" for the mean.
    """

    codec: str
    block: int
    e_min: int
    e_max: int
    result_codec: str = ""
    rule: str = ""


class Accumulator(Protocol):
    """The sum of one chunk's parts in float64. Neither order nor moment of its making changes a bit
    of it, so it may be made as late as in `finish`; until then parts must not change. To take a
    contributor out of a sum, make the sum anew without it: that gives the same bits."""

    def add(self, part: Buffer, weight: int) -> None:
        """Add one encoded part times an integer weight in 1..255."""

    def finish(self, total_weight: int) -> bytes:
        """The mean as an encoded result chunk (rule 6). The accumulator is spent after it."""

    def unrounded(self) -> bytes:
        """The sum itself, unrounded: float64, little-endian."""


class Arithmetic(Protocol):
    """Exact chunk arithmetic for one codec family."""

    def is_exact(self, codec: str) -> bool:
        """True if sums in this codec are exact (rule 7: if not, they are made once, at the end)."""

    def chunk_bytes(self, num_values: int, window: Window) -> int:
        """Exact length of an encoded chunk of `num_values` values."""

    def check(self, part: Buffer, num_values: int, window: Window) -> None:
        """Refuse an illegal part before it is added (rule 3).

        Raises:
            RemoteFault: reason ``length`` or ``scale``.
        """

    def check_result(self, chunk: Buffer, num_values: int, window: Window) -> None:
        """Refuse a result chunk that nobody could decode, before it is kept or served.

        Raises:
            RemoteFault: reason ``length`` or ``scale``.
        """

    def accumulator(
        self,
        num_values: int,
        window: Window,
        scalars: tuple[float, ...] = (),
        centre: Buffer = b"",
    ) -> Accumulator:
        """A zero sum for a chunk of `num_values` values.

        Args:
            num_values: length of the chunk.
            window: window of the plan.
            scalars: whole vectors' numbers that the plan's rule needs, in the layout of
                `inner_products.pairs_of` for the parts in the order in which they are added.
            centre: start of the rule there, as `values` has given it; b"" for zero.
        """

    def check_sum(self, data: Buffer, num_values: int, window: Window, weight: int) -> None:
        """Refuse what cannot be the sum of one cell's legal parts (rule 8).

        Args:
            data: a sum as `Accumulator.unrounded` gives it.
            num_values: length of the chunk.
            window: window of the plan.
            weight: sum of the weights of its contributors.

        Raises:
            RemoteFault: reason ``length`` or ``sum``.
        """

    def finish_sums(
        self, sums: Sequence[Buffer], num_values: int, window: Window, weight: int
    ) -> bytes:
        """Return the mean of which these are the sums of parts, as `Accumulator.finish` would make
        it of all the parts.

        Args:
            sums: legal sums, in any order: adding them is exact.
            num_values: length of the chunk.
            window: window of the plan.
            weight: sum of the weights of all contributors.
        """

    def products(
        self, part: Buffer, others: Sequence[Buffer], num_values: int, window: Window,
        centre: Buffer = b"",
    ) -> tuple[float, ...]:  # fmt: skip
        """Inner products of a legal chunk with the same chunk of others, or with itself, and last
        with the centre if there is one; the same bits on every machine, whichever is `part`."""

    def gauges(
        self, parts: Sequence[Buffer], result: Buffer, num_values: int, window: Window
    ) -> tuple[tuple[float, float], ...]:
        """Squared norm and inner product with a legal result chunk, of each legal chunk and last of
        the result itself. For people: it need not have the same bits everywhere."""

    def values(self, chunk: Buffer, num_values: int, window: Window) -> bytes:
        """A legal result chunk as float32, little-endian."""

    def square(self, centre: Buffer) -> float:
        """Squared norm of such values."""


class Contribution(Protocol):
    """One peer's difference for one op, encoded on demand. Immutable until the op ends."""

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """Encode values [start, stop) of the padded vector.

        Encoding the same range under the same window again gives the same bytes.

        Raises:
            ContributionRefused: a block is not finite or lies above the window.
        """


class ContributionRefused(Exception):
    """Our own values cannot be sent: reason ``nonfinite`` or ``above-window``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

"""The production arithmetic with somebody who looks on: I4 and I5 of protocol.md part 2."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from swarmtrain.peer.arithmetic import ChunkSum, CodecArithmetic
from swarmtrain_transport.arithmetic import Accumulator, Buffer, Window

Report = Callable[[str, str], None]
"""(invariant, story)."""

Check = Callable[[Buffer, int, Window], None]

_EXACT = 2.0**53

_LEGAL_MAX = 1024
"""Chunks that passed and are remembered."""

NAN_SCALE = b"\xc0\x7f"
"""A scale that no encoder writes."""


class SharedChecks:
    """The production checks of chunks, made once for all peers of a world that get the same bytes.

    A refusal is not remembered.
    """

    def __init__(self) -> None:
        self._arithmetic = CodecArithmetic()
        self._legal: set[tuple[Check, bytes, int, Window]] = set()

    def check(self, part: Buffer, num_values: int, window: Window) -> None:
        """See the production arithmetic."""
        self._once(self._arithmetic.check, part, num_values, window)

    def check_result(self, chunk: Buffer, num_values: int, window: Window) -> None:
        """See the production arithmetic."""
        self._once(self._arithmetic.check_result, chunk, num_values, window)

    def _once(self, check: Check, data: Buffer, num_values: int, window: Window) -> None:
        what = check, bytes(data), num_values, window
        if what in self._legal:
            return
        check(data, num_values, window)
        if len(self._legal) >= _LEGAL_MAX:
            self._legal.clear()
        self._legal.add(what)


class WatchedArithmetic:
    """Chunk arithmetic whose sums are checked; an `Arithmetic` of the exchange.

    Args:
        report: hears of what does not hold.
        checks: checks of chunks.

    Attributes:
        forges_results: True if its results carry a scale that no encoder writes.
        sums_wrongly: True if they are legal, and no sums of anything.
    """

    def __init__(self, report: Report, checks: SharedChecks) -> None:
        self.report = report
        self._inner = CodecArithmetic()
        self.is_exact = self._inner.is_exact
        self.chunk_bytes = self._inner.chunk_bytes
        self.check, self.check_result = checks.check, checks.check_result
        self.products = self._inner.products
        self.values, self.square = self._inner.values, self._inner.square
        self.gauges, self.check_sum = self._inner.gauges, self._inner.check_sum
        self.forges_results = False
        self.sums_wrongly = False

    def accumulator(
        self,
        num_values: int,
        window: Window,
        scalars: tuple[float, ...] = (),
        centre: Buffer = b"",
    ) -> Accumulator:
        """A zero sum that is watched."""
        inner = self._inner.accumulator(num_values, window, scalars, centre)
        return _WatchedSum(inner, num_values, window, self)

    def finish_sums(
        self, sums: Sequence[Buffer], num_values: int, window: Window, weight: int
    ) -> bytes:
        """Add the sums of cells; what is wrong here is as wrong as without cells."""
        return self.told(self._inner.finish_sums(sums, num_values, window, weight), num_values)

    def told(self, result: bytes, num_values: int) -> bytes:
        """Return what this peer says that the result is."""
        if self.sums_wrongly:
            return _wrong(result, num_values)
        return NAN_SCALE + result[2:] if self.forges_results else result


class _WatchedSum:
    """One chunk's sum and what is in it.

    Parts of different contributors differ, because every peer trains on draws of its own; so a
    part that is added a second time is a bit (c, chunk) that is set twice. Only parts of nothing
    are equal: of peers that were left out for long, and have dropped their work.
    """

    def __init__(
        self, inner: ChunkSum, num_values: int, window: Window, watch: WatchedArithmetic
    ) -> None:
        self._inner = inner
        self._is_sum = not window.rule
        self._num_values = num_values
        self._unit = 2.0 ** (window.e_min - 7)
        self._watch = watch
        self._parts: dict[bytes, int] = {}

    def add(self, part: Buffer, weight: int) -> None:
        """I4: no bit is added twice."""
        data = bytes(part)
        if data in self._parts and data.strip(b"\0"):
            self._watch.report("I4", "a part is added twice to one sum")
        self._parts[data] = weight
        self._inner.add(part, weight)

    def finish(self, total_weight: int) -> bytes:
        """See the production arithmetic."""
        if self._is_sum:
            self._look(self._inner.total.numpy())
        return self._watch.told(self._inner.finish(total_weight), self._num_values)

    def unrounded(self) -> bytes:
        """See the production arithmetic."""
        total = self._inner.unrounded()
        self._look(np.frombuffer(total, dtype="<f8"))
        return _wrong_sum(total) if self._watch.sums_wrongly else total

    def _look(self, total: npt.NDArray[np.float64]) -> None:
        """I5: a sum is a multiple of 2^(e_min - 7), and no larger than float64 holds exactly; a
        rule has no sum."""
        units = total / self._unit
        if not (np.abs(units).max() <= _EXACT and (units == np.rint(units)).all()):
            self._watch.report("I5", "a sum is not exact")


def _wrong(result: bytes, num_values: int) -> bytes:
    """Another mean that an encoder might have written: its last value becomes nothing."""
    place = len(result.rstrip(b"\x00")) - 1
    if place < len(result) - num_values:
        return result  # nothing but zeros and scales
    return result[:place] + b"\x00" + result[place + 1 :]


def _wrong_sum(total: bytes) -> bytes:
    """Another sum that legal parts may have: its largest value becomes nothing."""
    values = np.frombuffer(total, dtype="<f8").copy()
    values[np.abs(values).argmax()] = 0.0
    return values.tobytes()

"""Counts of how often in a row each part of the vector was left out: waiting work ends some day.

Slices differ from op to op, so the count is kept per range of values and split where they cross.
After `EXCLUSIONS_MAX` exclusions in a row the pending work of that range is dropped (protocol.md
rule 9): it was made against an anchor three rounds old, and a peer that is never heard must not
drift away unseen.
"""

from collections.abc import Iterator, Sequence

EXCLUSIONS_MAX = 3
"""The third exclusion in a row drops the pending work."""


class Exclusions:
    """Exclusions in a row, per range of values.

    Args:
        num_values: length of the padded vector.
    """

    def __init__(self, num_values: int) -> None:
        self._num_values = num_values
        self._counts: list[tuple[int, int, int]] = []
        self.reset()

    @property
    def longest(self) -> int:
        """The largest count over all ranges."""
        return max((count for _, _, count in self._counts), default=0)

    def reset(self) -> None:
        """Forget everything: after new state was loaded."""
        self._counts = [(0, self._num_values, 0)]

    def record(self, outcomes: Sequence[tuple[int, int, bool]]) -> tuple[tuple[int, int], ...]:
        """Count one op; the ranges that reached the bound are returned and start again at 0.

        Args:
            outcomes: (start, stop, included) in order; where there is none all stays as it is.
        """
        counts: list[tuple[int, int, int]] = []
        dropped: list[tuple[int, int]] = []
        for start, stop, included in _with_gaps(outcomes, self._num_values):
            for old_start, old_stop, old_count in self._counts:
                low, high = max(start, old_start), min(stop, old_stop)
                if low >= high:
                    continue
                count = old_count if included is None else 0 if included else old_count + 1
                if count >= EXCLUSIONS_MAX:
                    dropped.append((low, high))
                    count = 0
                if counts and counts[-1][2] == count:
                    counts[-1] = (counts[-1][0], high, count)
                else:
                    counts.append((low, high, count))
        self._counts = counts
        return tuple(dropped)


def _with_gaps(
    outcomes: Sequence[tuple[int, int, bool]], num_values: int
) -> Iterator[tuple[int, int, bool | None]]:
    """Yield these outcomes, and None for the values between them."""
    position = 0
    for start, stop, included in outcomes:
        yield position, start, None
        yield start, stop, included
        position = stop
    yield position, num_values, None

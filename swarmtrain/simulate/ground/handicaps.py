"""Handicaps: defects of one peer of a simulated world from its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handicap:
    """Defects of one peer from the start.

    Attributes:
        slowness: factor by which its inner steps take longer.
        lag_s: seconds by which its frames take longer.
        forges_scales: True if the parts it sends carry a scale that no encoder writes.
        forges_results: True if the results of the slices that it owns carry one too.
        nonfinite_op: op for which its difference holds a NaN; 0 for none.
        boasts: True if it says to have trained on a billion samples with every step, and, where
            work may be older, that its own began just now.
        hoards: True if it gives nobody what is asked of it by hash: no state and no result.
    """

    slowness: float = 1.0
    lag_s: float = 0.0
    forges_scales: bool = False
    forges_results: bool = False
    nonfinite_op: int = 0
    boasts: bool = False
    hoards: bool = False


NO_HANDICAP = Handicap()
"""Nothing is wrong."""

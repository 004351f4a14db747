"""Handicaps: defects of one peer of a simulated world from its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handicap:
    """Defects of one peer from the start.

    Attributes:
        slowness: its inner steps take so many times as long.
        lag_s: its frames take so much longer, in seconds.
        forges_scales: the parts it sends carry a scale that no encoder writes.
        forges_results: so do the results of the slices that it owns.
        nonfinite_op: its difference for this op holds a NaN; 0 for none.
        boasts: it says to have trained on a billion samples with every step.
        hoards: it gives nobody what is asked of it by hash: no state and no result.
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

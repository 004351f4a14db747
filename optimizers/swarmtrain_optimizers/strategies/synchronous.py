"""Strategies whose ops are waited for: one at a time, on the whole vector, at each peer's own pace.

DiLoCo is made of this, and so are strategies that differ from it in the outer step or the codec
alone. Not here: the fate of a peer's work (`rebasing`), and the exchange.
"""

from swarmtrain_optimizers.strategies.rebasing import Rebasing

_NEARLY = 0.9
"""Speeds are measured, and no two peers have the same: who needs up to a ninth longer for a round
makes all of its steps. Others wait for it within its share (protocol.md T19)."""


def steps_for(own_steps_per_s: float, wanted_steps_per_s: float, inner_steps: int) -> int:
    """Dynamic local updates: floor(v / w * H) inner steps, at least one (arXiv 2401.09135).

    Args:
        own_steps_per_s: v, the measured speed of a peer.
        wanted_steps_per_s: w, that of who makes all steps.
        inner_steps: H, inner steps of these.

    Raises:
        ValueError: a speed is not positive, or v above w.

    >>> [steps_for(speed, 4.0, 50) for speed in (4.0, 2.0, 0.9)]
    [50, 25, 11]
    """
    if not 0 < own_steps_per_s <= wanted_steps_per_s < float("inf"):
        speeds = f"{own_steps_per_s} and {wanted_steps_per_s}"
        raise ValueError(f"speeds are positive, and nobody is faster than wanted: {speeds}")
    return max(1, int(own_steps_per_s * inner_steps / wanted_steps_per_s))


class Synchronous(Rebasing):
    """Inner steps, an op that is waited for, an outer step; see `Rebasing` for the arguments."""

    _own_steps = 0
    """Inner steps of a slow peer's round; 0 for all of them."""

    @property
    def own_steps(self) -> int:
        """Inner steps of this peer's round."""
        return self._own_steps or self._inner_steps

    def keep_pace(self, own_steps_per_s: float, wanted_steps_per_s: float) -> None:
        """Make so many inner steps a round from now on that most peers need not wait; all of them
        if this one is nearly as fast.

        Raises:
            ValueError: a speed is not positive, or the own one above the wanted one.
        """
        own = steps_for(own_steps_per_s, wanted_steps_per_s, self._inner_steps)
        is_slow = own_steps_per_s < _NEARLY * wanted_steps_per_s
        self._own_steps = own if is_slow else 0

    def is_due(self, steps_since_outer: int) -> bool:
        """True from `own_steps` on; a peer may have made more while an op was under way."""
        return steps_since_outer >= self.own_steps

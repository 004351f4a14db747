"""Results after which the loss leaps, in worlds with a guard, and what peers tell of it.

The hash of a PLAN says if its result is one, so everybody means the same, and an op that comes
again is drawn again. One that nobody cancels is forgotten after a few more.
"""

import math
import random
from collections.abc import Mapping

from swarmtrain_transport.coordinator.ops.guard import GuardTerms

GUARD = GuardTerms(spike=2.0, window=5, back=1, limit=2)

_EVERY = 6
_LASTS_OPS = 3
_USUAL = 2.0
_LIES = (math.nan, math.inf, 1e30, 0.0, -1.0, None)


def has_leapt(plans: Mapping[int, bytes], op: int) -> bool:
    """Return True if the loss of the state after `op` is far above what is usual.

    Args:
        plans: hash of the PLAN of each committed op.
        op: newest op in the state.
    """
    recent = range(op - _LASTS_OPS + 1, op + 1)
    return any(number in plans and plans[number][-1] % _EVERY == 0 for number in recent)


def loss_of(rng: random.Random, *, leapt: bool, lies: bool) -> float | None:
    """Draw what a peer tells of its inner steps."""
    if lies:
        return rng.choice(_LIES)
    usual = _USUAL * (1 + rng.random() / 2)
    return rng.choice((4 * usual, math.nan, math.inf)) if leapt else usual

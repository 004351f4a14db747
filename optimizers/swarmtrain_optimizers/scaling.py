"""Quantities that depend on the size of a swarm: contributors, schedule, outer learning rate.

All are pure functions of what every peer knows of a committed op: who contributed, with which
weights, how many tokens that was. None is applied by itself; a caller decides.

The outer learning rate enters the shared state, so it is made of + - * / on integers and constants
alone: the same bits everywhere.

References:
    Scaling laws for DiLoCo, arXiv 2503.09799 (outer lr by number of replicas).
"""

import math
from collections.abc import Sequence

OUTER_MOMENTUM = 0.9
"""The Nesterov momentum with which the outer learning rates below were found."""

_OUTER_LR = ((1.0, 0.5), (2.0, 0.6), (4.0, 0.6), (8.0, 0.8), (16.0, 1.0))
"""(contributors, best outer lr). One to eight from arXiv 2503.09799: 30 inner steps, models of
335 M parameters and more; for one it says 0.4 to 0.6. Sixteen from MuLoCo (arXiv 2505.23725)."""

_OUTER_LR_MAX = 1.0
"""No outer lr above this: the largest that was published, and the fastest of all where inner steps
go the whole way (`outer_lr`); above it anchors swing about the place they go to."""


def effective_contributors(weights: Sequence[int]) -> float:
    """Return how many contributors of equal weight average as well: (sum w)^2 / sum w^2.

    Equal weights give their number; a swarm of one fast peer and many slow ones is small.

    Raises:
        ValueError: there is no weight, or one is not positive.

    >>> effective_contributors([255, 255, 255, 255])
    4.0
    """
    if not weights or min(weights) < 1:
        raise ValueError(f"weights must be one or more positive integers, they are {weights!r}")
    total = sum(weights)
    return total * total / sum(weight * weight for weight in weights)


def outer_lr(contributors: float, *, momentum: float = OUTER_MOMENTUM) -> float:
    """The outer learning rate for a mean of so many contributions.

    Published are the rates for momentum 0.9 and 1, 2, 4, 8 and 16 contributors (`_OUTER_LR`), those
    up to 8 found with AdamW as the inner optimizer. Between them it is a straight line; above 16 it
    stays.

    Derived is what follows for another momentum mu, the least of three:

    1. The rate whose gain lr / (1 - mu) is that of 0.9: what a lasting difference ends up
       multiplied by. The least above 0.9.
    2. The rate that is the same part of the bound of stability as at 0.9. The least below 0.9,
       where the gain alone asks for up to ten times the rate, and the run would diverge.
    3. 1.

    The bound: let inner steps go the share a of the way to a minimum at 0, so that d = a phi.
    DiLoCo's step m' = mu m + d, phi' = phi - lr (mu m' + d) is then linear in (phi, m), and with
    c = lr a its characteristic polynomial is z^2 - (1 + mu)(1 - c) z + mu (1 - c). Jury's
    conditions leave 0 < c < 2 (1 + mu) / (1 + 2 mu) (at -1; the others are weaker), which is 2
    without momentum, 1.357 at 0.9 and never below 4/3. At c = 1 both roots are 0: two rounds are
    enough. So at a = 1 a rate of this function is always below three quarters of the bound, and no
    momentum comes nearer to its own than 0.9 does.

    Others found 0.9 at momentum 0.8 for eight (MuLoCo, arXiv 2505.23725) and 1 without momentum
    (SparseLoCo, arXiv 2508.15706); this gives 0.816 and 1 for eight.

    Take the contributors of a COMMIT, never the peers that are online: all peers know the former,
    and only they are averaged.

    Args:
        contributors: their number, at least 1; `effective_contributors` if weights differ.
        momentum: momentum of the Nesterov outer step, at least 0 and below 1.

    Raises:
        ValueError: an argument is out of range.

    >>> outer_lr(4), outer_lr(6), outer_lr(100)
    (0.6, 0.7, 1.0)
    >>> [round(outer_lr(8, momentum=momentum), 3) for momentum in (0.0, 0.5, 0.8, 0.95)]
    [1.0, 0.884, 0.816, 0.4]
    """
    if not 1 <= contributors < math.inf:
        raise ValueError(f"contributors must be at least 1, it is {contributors}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, it is {momentum}")
    rate = _on_line(contributors)
    if momentum == OUTER_MOMENTUM:
        return rate
    of_gain = rate * (1.0 - momentum) / (1.0 - OUTER_MOMENTUM)
    of_bound = rate * _stability_bound(momentum) / _stability_bound(OUTER_MOMENTUM)
    return min(of_gain, of_bound, _OUTER_LR_MAX)


def _stability_bound(momentum: float) -> float:
    """Upper bound of lr times the share that inner steps go (derived in `outer_lr`)."""
    return 2.0 * (1.0 + momentum) / (1.0 + 2.0 * momentum)


def _on_line(contributors: float) -> float:
    low_count, low = _OUTER_LR[0]
    for high_count, high in _OUTER_LR[1:]:
        if contributors < high_count:
            return low + (high - low) * (contributors - low_count) / (high_count - low_count)
        low_count, low = high_count, high
    return low


def schedule_step(tokens: int, *, tokens_per_step: int) -> int:
    """The step of a schedule after so many tokens of the whole swarm.

    A schedule is written for a swarm of some size, in steps of `tokens_per_step` = its peers times
    tokens of one peer's inner step. Fed with tokens it ends when the run's tokens are spent,
    however many peers come or go meanwhile; fed with local steps it would end too late in a swarm
    that grew, and too early in one that shrank.

    Args:
        tokens: tokens of committed ops, plus `tokens_since_commit`.
        tokens_per_step: tokens per step of the swarm that the schedule was written for.

    Raises:
        ValueError: an argument is out of range.

    >>> schedule_step(10_000, tokens_per_step=4 * 512)
    4
    """
    if tokens < 0 or tokens_per_step < 1:
        raise ValueError(f"{tokens} tokens in steps of {tokens_per_step} make no schedule")
    return tokens // tokens_per_step


def tokens_since_commit(steps: int, *, inner_steps: int, round_tokens: int) -> int:
    """Estimate the tokens of the swarm since the last commit, at a peer's local step.

    Only the commit says what the others did; until then it is assumed that they go on as in the
    last round: steps / inner_steps of its tokens. A peer that waits for a late op and steps on is
    not taken for a swarm that does: after a whole round the estimate stays.

    Args:
        steps: this peer's inner steps since the commit.
        inner_steps: this peer's inner steps of a round.
        round_tokens: tokens of all contributors of the last committed op.

    Raises:
        ValueError: an argument is out of range.

    >>> tokens_since_commit(5, inner_steps=20, round_tokens=80_000)
    20000
    """
    if steps < 0 or inner_steps < 1 or round_tokens < 0:
        raise ValueError(
            f"{steps} of {inner_steps} steps in a round of {round_tokens} tokens make no estimate"
        )
    return min(steps, inner_steps) * round_tokens // inner_steps

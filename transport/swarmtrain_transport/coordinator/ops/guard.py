"""The guard: a common state on which the loss has leapt is given up for an earlier one (T22).

Peers tell with READY the mean loss of the inner steps that they have made from the newest state.
PLAN keeps what its contributors tell, so the ledger knows what is usual, and a coordinator that was
started anew does too. The loss of validation text is one peer's word, and is not asked. It counts
what more than half of all who are expected say, and what is usual is the higher word of the middle:
so half of the peers, whatever they tell, make no leap. They can hide one. Pure.
"""

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median, median_high, median_low

from swarmtrain_transport import limits
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Ready
from swarmtrain_transport.wire.records import Rewind

UNTOLD = -1.0
"""In the place of a loss that nobody has told."""

_LEAST_ROUNDS = 3
"""Rounds of which the loss must be known before anything can be called unusual."""

Readiness = Mapping[PeerId, Ready | None]
"""The newest READY of each peer that is here."""


@dataclass(frozen=True, slots=True)
class GuardTerms:
    """Settings of the guard.

    Attributes:
        spike: so many times the usual loss is a leap; 0 for no guard.
        window: committed rounds that say what is usual.
        back: results that are given up beside those that came after them.
        limit: times that it goes back from one place before it rests for `window` rounds.
    """

    spike: float = 0.0
    window: int = 10
    back: int = 1
    limit: int = 3


NO_GUARD = GuardTerms()


def told(peers: Iterable[PeerId], ready: Readiness, op: int) -> dict[PeerId, float]:
    """Return the loss of each of these peers, as far as it has told one with its READY of `op`.

    One that is no number is the largest there is; one below 0 says nothing of leaps.
    """
    found = {}
    for peer in peers:
        said = ready.get(peer)
        loss = said.loss if said is not None and said.op == op else None
        if loss is None or loss < 0:
            found[peer] = UNTOLD
        else:
            found[peer] = loss if loss < limits.TOLD_LOSS_MAX else limits.TOLD_LOSS_MAX
    return found


def bound_of(guard: GuardTerms, view: GroupView) -> float:
    """Return the loss above which the next op's is a leap; infinity where that is not known."""
    known = [
        median_high(given)
        for op in sorted(view.commits)[-guard.window :]
        if (given := [one for one in view.commits[op].plan.losses if one > UNTOLD])
    ]
    usual = guard.spike * median(known) if len(known) >= _LEAST_ROUNDS else 0.0
    return usual if usual > 0 else math.inf


def rests_until(guard: GuardTerms, view: GroupView) -> int:
    """Return the op before which the guard has given up, as it has gone back from there too often;
    0 where it has not."""
    until = view.guarded_op + guard.window
    return until if view.guarded >= guard.limit and view.next_op < until else 0


def leapt(
    guard: GuardTerms,
    view: GroupView,
    awaited: AbstractSet[PeerId],
    ready: Readiness,
    at_once: int = 1,
) -> Rewind | None:
    """Return the REWIND that is due in the place of the next PLAN, if any.

    It goes back behind the newest result that the inner steps began from, and `back` - 1 more, or
    to the oldest state before that to which more than half of these peers can go.

    Args:
        guard: settings.
        view: fold of the group.
        awaited: contributors of the next op, and who else was expected.
        ready: see `Readiness`.
        at_once: ops that may be under way at once; their results had not come yet.
    """
    losses = told(sorted(awaited), ready, view.next_op)
    if not guard.spike or not losses or rests_until(guard, view):
        return None
    bound, loss = bound_of(guard, view), median_low(losses.values())
    culprit = view.commit_at(max(0, view.next_op - at_once))
    to = culprit
    for _ in range(guard.back):
        to = view.commit_at(max(0, to - 1))
    pins = sorted(said.pinned for peer in losses if (said := ready.get(peer)) and said.pinned >= 0)
    most = len(losses) // 2
    reached = pins[most] if most < len(pins) else culprit
    to = max(to, reached)
    if not loss > bound or to >= culprit:
        return None
    is_again = view.guarded_op and view.next_op < view.guarded_op + guard.window
    times = 1 + (view.guarded if is_again else 0)
    why = f"after round {culprit} the loss of most was no number"
    if loss < limits.TOLD_LOSS_MAX:
        usual = f"{guard.spike:g} times the usual {bound / guard.spike:.4g}"
        why = f"after round {culprit} most lost {loss:.4g}, above {usual}"
    if times >= guard.limit:
        until = max(view.guarded_op, view.next_op) + guard.window
        why += f"; that was time {times} of {guard.limit}, so the guard rests until round {until}"
    return Rewind(to, why, view.group, losses=losses, bound=bound, times=times)

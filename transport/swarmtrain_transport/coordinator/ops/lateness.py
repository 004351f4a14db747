"""Lateness in an op, in seconds of the others' waiting, by the times at which reports came here.

Counted is what one took beyond most, more than half of the others; nothing is decided here, and
`ledger.standing` says who is not waited for after that. A contribution is late as long as so many
owners lack it as could leave it out (T4), and an owner is late if it lacks as many contributions.
If fewer lack it, it is one's word against the other's and counts against nobody. A slice is late
until it has come through, and a peer that holds less than most from then on.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops import faults
from swarmtrain_transport.coordinator.ops.faults import Moment
from swarmtrain_transport.kinds import GATHER, PAIR, WHOLE
from swarmtrain_transport.ledger.exclusion_rule import AT_ODDS, DIFFERS, UNREACHABLE
from swarmtrain_transport.ledger.pairing import contributors_of, pairs_in
from swarmtrain_transport.ledger.waits import Waits, add, most_s
from swarmtrain_transport.links.link import PeerId

_DISPUTES = (AT_ODDS, DIFFERS, UNREACHABLE)
"""Reasons to move a slice that say nothing of when it came."""


def of_contributions(at: Moment, frozen_s: float) -> Waits:
    """Return for how long contributions were waited for until FREEZE, or until now without it."""
    given_s, gaps = _given_s(at, frozen_s)
    waits: Waits = {}
    if len(given_s) < 2:
        return waits
    unawaited = at.unawaited & given_s.keys()
    due_s = most_s(given_s.values())
    rest_s = max((moment for peer, moment in given_s.items() if peer not in unawaited), default=0.0)
    for peer, moment in given_s.items():
        add(waits, peer, moment - (max(due_s, rest_s) if peer in unawaited else due_s))
    # What few lack of each other is one word against another: STANDING keeps such pairs apart.
    # Counted, it would let a liar see to it that nobody waits for others' contributions.
    bar = at.view.words.bar
    for owner, row in gaps.items() if len(given_s) > 2 else ():
        late = (moment - max(due_s, given_s[peer]) for peer, moment in row.items())
        told = sorted(late, reverse=True)
        add(waits, owner, told[bar - 1] if len(told) >= bar else 0.0)
    return {peer: min(seconds, frozen_s - due_s) for peer, seconds in waits.items()}


def _given_s(
    at: Moment, frozen_s: float
) -> tuple[dict[PeerId, float], dict[PeerId, dict[PeerId, float]]]:
    """Return when each contribution was whole, as so many owners say that nobody may doubt it, and
    when it was at each owner: of those that stay whole, when they were published."""
    reports, plan = at.reports, at.view.plan
    came_s: dict[PeerId, dict[PeerId, float]] = {}
    given_s = {}
    for transfer in reports.transfers:
        owner, first = (
            plan.slices[transfer.index].owner,
            reports.came_s.get((transfer.index, 0), {}),
        )
        until_s = min(frozen_s, at.timers.assigned_s.get(transfer.index, math.inf))
        row = came_s.setdefault(owner, {})
        for giver in transfer.givers if transfer.takers else ():
            moment = min(first.get(giver, math.inf), until_s)
            if not transfer.movable:
                given_s[giver] = moment
            elif giver != owner:
                row[giver] = max(row.get(giver, 0.0), moment)
    if given_s:
        return given_s, {}
    bar = at.view.words.bar
    for peer in reports.awaited:
        told = sorted((row[peer] for row in came_s.values() if peer in row), reverse=True)
        signed_s = min(reports.signed_s.get(peer, math.inf), frozen_s)
        given_s[peer] = max(signed_s, told[bar - 1] if len(told) >= bar else 0.0)
    return given_s, came_s


def of_results(at: Moment, frozen_s: float) -> Waits:
    """Return for how long results were waited for, from FREEZE on."""
    waits: Waits = {}
    held_s = {peer: _held_s(at, peer) for peer in at.waiting_for}
    if at.view.frozen is None or len(held_s) < 2:
        return waits
    due_s = max(frozen_s, most_s(max(held.values(), default=0.0) for held in held_s.values()))
    if at.view.plan.kind == PAIR:
        for pair in pairs_in(contributors_of(at.view.plan)):
            held = [moment for one in pair for moment in held_s.get(one, {}).values()]
            if not held:
                continue  # neither was in time for its own half
            late_s = max(held) - due_s
            for one in held_s.keys() & pair:
                add(waits, one, late_s)
        return waits
    through_s = _through_s(at)
    _add_owners(at, waits, through_s, frozen_s)
    for peer in held_s.keys() - at.unawaited:
        add(
            waits, peer,
            max(moment - max(due_s, through_s[index]) for index, moment in held_s[peer].items()),
        )  # fmt: skip
    return waits


def _held_s(at: Moment, peer: PeerId) -> dict[int, float]:
    """Return when a member held each slice that it is to hold, now where it does not yet."""
    held_s = {}
    for index, attempt in enumerate(at.view.attempts):
        if peer == at.view.owners[index] or peer in at.reports.transfers[index].takers:
            since_s = at.reports.held_s.get((index, attempt), {})
            held_s[index] = min(since_s.get(peer, math.inf), at.now_s)
    return held_s or {-1: 0.0}


def _through_s(at: Moment) -> dict[int, float]:
    """Return when each slice had come through. Of two members one alone could prevent it: then it
    has with its publication."""
    through_s = {-1: 0.0}
    for index, attempt in enumerate(at.view.attempts):
        moment = faults.common_s(at, (index, attempt))
        if len(at.waiting_for) == 2:
            moment = at.reports.held_s.get((index, attempt), {}).get(at.view.owners[index], moment)
        through_s[index] = min(moment, at.now_s)
    return through_s


def _add_owners(at: Moment, waits: Waits, through_s: Mapping[int, float], frozen_s: float) -> None:
    """Count for owners how long their slices were waited for; of two members also as long as the
    other lacks it."""
    view = at.view
    came_s = {i: min(faults.common_s(at, (i, a)), at.now_s) for i, a in enumerate(view.attempts)}
    due_s = max(frozen_s, most_s(came_s.values()))
    late: Waits = {}
    for index, moment in came_s.items():
        relieved = view.tried[index][:-1]
        if not relieved:
            owner = view.owners[index]
            late[owner] = max(late.get(owner, 0.0), moment - due_s)
        moved_s = min(moment, at.timers.assigned_s.get(index, 0.0))
        for owner in relieved:
            if view.words.relieved.get(owner) not in _DISPUTES:
                late[owner] = max(late.get(owner, 0.0), moved_s - due_s)
    for owner, seconds in late.items():
        add(waits, owner, seconds)


def grace_s(at: Moment, indexes: Collection[int]) -> float:
    """Return until when contributions are waited for of those for whom nobody waits: a little
    longer than the others have needed; infinity while one of the others is missing.

    Args:
        at: the moment.
        indexes: slices that they are to be given to.
    """
    if not at.unawaited:
        return math.inf
    awaited, given = at.contributors - at.unawaited, at.reports.given(indexes)
    if not awaited <= given or len(awaited) < at.view.plan.min_contributors:
        return math.inf
    current = enumerate(at.view.attempts)
    rows = [at.reports.came_s.get(slice_try, {}) for slice_try in current]
    return _grace_s(at, [row[peer] for row in rows for peer in row.keys() & awaited])


def results_grace_s(at: Moment) -> float:
    """Return until when their own results are waited for, where contributions stay whole and
    nobody else can make them."""
    view = at.view
    if not at.unawaited or view.frozen is None or view.plan.kind not in WHOLE:
        return math.inf
    places = [(view.owners.index(peer), 0) for peer in view.frozen if peer not in at.unawaited]
    if view.plan.kind == GATHER:
        return _grace_s(at, [faults.common_s(at, place) for place in places])
    pairs = [pair for pair in pairs_in(contributors_of(view.plan)) if not at.unawaited & set(pair)]
    ways = [way for pair in pairs if at.live >= set(pair) for way in (pair, pair[::-1])]
    held = [at.reports.held_s.get((view.owners.index(one), 0), {}) for one, _ in ways]
    return _grace_s(
        at, [row.get(taker, math.inf) for row, (_, taker) in zip(held, ways, strict=True)]
    )


def _grace_s(at: Moment, came_s: Sequence[float]) -> float:
    last_s = max(came_s, default=at.timers.start_s)
    return last_s + max(limits.LATE_GRACE_S, limits.LATE_GRACE * (last_s - at.timers.start_s))


def next_s(at: Moment) -> float:
    """Return when somebody is not waited for any longer; infinity if that is not known."""
    if at.view.frozen is not None:
        return results_grace_s(at)
    return grace_s(at, range(len(at.view.owners)))

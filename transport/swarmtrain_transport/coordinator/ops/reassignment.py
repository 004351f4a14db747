"""A slice goes to another owner: because its owner is dead or stuck, or at odds with a contributor.

Only slices that can move are made again (`ledger.transfers`): T6 and T7 of protocol.md, and the
part of T4 in which it is one peer's word against another's. In cells so is a sum that its owner
names otherwise than who was sent it.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops import faults
from swarmtrain_transport.coordinator.ops.faults import Moment
from swarmtrain_transport.coordinator.ops.slicing import heeded
from swarmtrain_transport.ledger.exclusion_rule import AT_ODDS, DIFFERS, SUM, UNREACHABLE
from swarmtrain_transport.ledger.standing import BARRED
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Reassign, Skip, SliceFreeze

NOTHING: Mapping[PeerId, str] = {}


def relieve(at: Moment) -> Reassign | Skip | None:
    """T6: the slice of an owner that is dead, stuck or at odds with others of its range goes to
    another peer, unless its result is safe and, in cells, nobody needs its sums."""
    decision = _differs(at)
    if decision is not None:
        return decision
    is_due = at.view.frozen is not None and at.now_s >= at.timers.silent_s
    if not is_due and at.live >= set(at.view.owners):
        return None
    for transfer in at.reports.transfers:
        index, owner = transfer.index, at.view.owners[transfer.index]
        if not transfer.movable:
            continue
        if owner not in at.live:
            is_held = at.reports.is_held(index, at.live, 1)
            if not is_held or faults.owes_sums(at, index):
                skip = Skip(at.view.plan.op, f"no owner is left for slice {index}")
                decision = _reassign(at, index, f"owner {faults.absence(at, owner)}")
                if decision is not None or not is_held:
                    return decision or skip
        if is_due and at.now_s >= at.timers.stuck_s(index):
            reason = faults.stuck(at, index)
            # What is published may still come through by the end; a new owner would make it void.
            is_in_time = at.timers.spread_s <= at.now_s <= at.timers.last_s
            is_lost = reason in (faults.SILENT, faults.NO_SUMS) or is_in_time
            decision = _reassign(at, index, reason) if reason and is_lost else None
            if decision is not None:
                return decision
    return None


def _differs(at: Moment) -> Reassign | None:
    """T6 in cells: two owners name a sum differently. First goes who differs from most, then who
    has had its slice for fewer tries, then the owner of the mean: if the next one differs from the
    same peer too, that peer goes."""
    for first in sorted(at.reports.differing) if at.view.frozen is not None else ():
        pairs = at.reports.differences(first)
        times, users = Counter(index for pair in pairs for index in pair), {one for one, _ in pairs}
        tries = at.view.attempts
        for *_, index in sorted((-times[i], tries[i], i not in users, i) for i in times):
            others = {other for pair in pairs if index in pair for other in pair} - {index}
            words = {at.view.owners[other]: SUM for other in sorted(others)}
            decision = _reassign(at, index, DIFFERS, words)
            if decision is not None:
                return decision
    return None


def slice_freeze(at: Moment) -> SliceFreeze | Reassign | Skip | None:
    """T7: the contributors of a reassigned slice, from what its new owner has; who is missing there
    is left out on the word of as many as at FREEZE."""
    plan, frozen = at.view.plan, set(at.view.frozen or ())
    for index, contributors in enumerate(at.view.given_sets):
        if contributors is not None:
            continue
        absent = at.reports.missing(index, at.waiting_for)
        if at.now_s < at.timers.repair_s(index) and not faults.is_settled(at, absent, [index]):
            continue
        is_enough = all(_is_enough(at, peer, index) for peer in absent)
        if absent and (_is_most(at, index, absent) or not is_enough):
            decision = dispute(at, index, absent)
            if decision is not None:
                return decision
        named = tuple(sorted(frozen & at.reports.row(index)))
        least = _least_given(at, index)
        if len(named) < least:
            # Those who could not bring it here may bring it elsewhere.
            missing = at.reports.missing(index, frozen)  # the dead, too
            said = {peer: faults.accusers(at, peer, [index]) for peer in missing}
            left = at.view.weights.keys() - missing
            reason = f"too few contributors of slice {index} are left"
            skip = faults.too_few(at, reason, left, said)
            if len(named) + len(absent) < least:
                return skip
            return dispute(at, index, absent) or skip
        lacked = {peer: at.reports.word(peer, index) for peer in sorted(absent)}
        return SliceFreeze(plan.op, index, at.view.attempts[index], named, lacked)
    return None


def dispute(at: Moment, index: int, gaps: AbstractSet[PeerId]) -> Reassign | None:
    """One owner lacks what too few others lack: its slice goes to somebody else, if there is
    anybody and time for one more try."""
    if at.now_s > at.timers.last_s:
        return None
    lacked = {peer: at.reports.word(peer, index) for peer in sorted(gaps)}
    return _reassign(at, index, UNREACHABLE if _is_most(at, index, gaps) else AT_ODDS, lacked)


def _least_given(at: Moment, index: int) -> int:
    """Return how many must give to a slice's owner, beside those of the other cells."""
    view, others = at.view, 0
    for piece in view.cells.pieces(index):
        given = view.given_sets[piece]
        if piece != index:
            others += len(view.cells.among(view.frozen or (), piece) if given is None else given)
    return max(0, view.plan.min_contributors - others)


def _is_most(at: Moment, index: int, gaps: AbstractSet[PeerId]) -> bool:
    return 2 * len(gaps) > len(at.view.cells.among(at.contributors & at.live, index))


def _is_enough(at: Moment, peer: PeerId, index: int) -> bool:
    """Return True if enough owners, this slice's included, say they lack the peer's part."""
    said = {at.view.owners[index], *at.view.words.against(peer)} - {peer}
    return len(said) >= at.view.words.needed(peer)


def _reassign(
    at: Moment, index: int, reason: str, lacked: Mapping[PeerId, str] = NOTHING
) -> Reassign | None:
    """Choose the new owner: alive, new to this slice, at odds with nobody in this op and not known
    for it, met by the others without a relay, with the fewest slices now; it has the centre if the
    plan names one.

    Where words stand against each other it is drawn, and after a silent owner, with whose word the
    next one's counts: nobody can choose a key with which it is the next to be asked.
    """
    view = at.view
    tried = set(view.tried[index])
    if view.plan.centre:
        tried |= view.boots.keys() - view.weights.keys()
    if view.words.planned == 2:
        # Nor who is lacked here, if it was at fault as an owner itself: else neither goes on.
        tried |= {peer for peer in lacked if view.unfit.get(peer, 0) >= BARRED}
    known = view.words.lacked
    words = Counter([*known, *lacked, *(owner for said in known.values() for owner in said)])
    order = {member.peer: rank for rank, member in enumerate(view.plan.members)}

    def drawn(peer: PeerId) -> int:
        digest = hashlib.sha256(view.plan_hash + peer).digest()
        return int.from_bytes(digest[:8], "little")

    far = dict[PeerId, int]()
    for pair, rate in heeded(at.detours(), frozenset(at.contributors)).items():
        far.update({peer: max(far.get(peer, 0), 1 if rate > 0 else 2) for peer in pair})

    def weight(peer: PeerId) -> tuple[int, ...]:
        last = drawn(peer) if lacked or reason == faults.SILENT else order[peer]
        fewest = view.owners.count(peer), last
        return words[peer], view.unfit.get(peer, 0), far.get(peer, 0), *fewest

    candidates = set(view.cells.among(at.live - tried - set(view.plan.keepers), index))
    attempt = view.attempts[index] + 1
    if not candidates or attempt > limits.ATTEMPTS_MAX:
        return None
    return Reassign(view.plan.op, index, attempt, min(candidates, key=weight), reason, dict(lacked))

"""Faults in an op: the one place where reports are read for who was at fault.

The matrix decides between a contributor and the owners that lack it (`exclusion_rule`). Here are
its inputs, and the words of records on those whom an op leaves out (FREEZE), relieves (REASSIGN) or
has waited for in vain (COMMIT, SKIP). `ledger.standing` remembers it. Nothing is decided here.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.coordinator.ops.reports import Reports, SliceTry
from swarmtrain_transport.coordinator.ops.slicing import Detours
from swarmtrain_transport.coordinator.ops.timers import Timers
from swarmtrain_transport.ledger.exclusion_rule import ABSENT, REFUSED
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Skip, Times

Words = Mapping[PeerId, Mapping[PeerId, str]]
"""Per contributor the owners that lack it, and their words."""

NO_WORDS: Words = {}

SILENT = "owner silent"
ALONE = "owner alone has it"
FEW = "too few have it"
NO_SUMS = "owner gives no sums"
"""Reasons why an owner is relieved, or an op has ended without a result."""


@dataclass(frozen=True)
class Moment:
    """One op as it stands when a decision is asked for.

    Attributes:
        reports: reports of peers in this term.
        timers: deadlines of the op.
        live: members that are held to be alive.
        now_s: the time.
        lives: life lines of the failure detector; only told, never decided upon.
        detours: tells which pairs have no direct way.
    """

    reports: Reports
    timers: Timers
    live: AbstractSet[PeerId]
    now_s: float
    lives: Mapping[PeerId, LifeLine]
    detours: Callable[[], Detours] = dict

    @property
    def view(self) -> OpView:
        """The ledger's view of the op."""
        return self.reports.view

    @cached_property
    def contributors(self) -> AbstractSet[PeerId]:
        """Peers whose contribution may still enter some slice."""
        return self.reports.contributors(self.live)

    @cached_property
    def waiting_for(self) -> AbstractSet[PeerId]:
        """Live contributors of FREEZE: who is to hold the result."""
        return set(self.view.frozen or ()) & self.live

    @cached_property
    def unawaited(self) -> AbstractSet[PeerId]:
        """Contributors for whom nobody waits."""
        return set(self.view.plan.unawaited) & self.view.weights.keys()

    @cached_property
    def members(self) -> AbstractSet[PeerId]:
        """Live members, without keepers as long as there are others."""
        return self.live - set(self.view.plan.keepers) or self.live

    @property
    def is_late(self) -> bool:
        """D_gather has passed."""
        return self.now_s >= self.timers.gather_s

    @property
    def is_over(self) -> bool:
        """D_op has passed."""
        return self.now_s >= self.timers.end_s


# ---- contributions


def accusers(at: Moment, peer: PeerId, rows: Iterable[int]) -> dict[PeerId, str]:
    """Map the owners of these slices, and earlier ones, that lack a contribution to their words."""
    view, known = at.view, at.view.words.lacked.get(peer, {})
    lacking = [index for index in rows if at.reports.missing(index, {peer})]
    now = {view.owners[index]: at.reports.word(peer, index) for index in lacking}
    said = now | {owner: known[owner] for owner in view.words.against(peer)}
    return {owner: word for owner, word in sorted(said.items()) if owner != peer}


def is_settled(at: Moment, peers: AbstractSet[PeerId], rows: Iterable[int]) -> bool:
    """Return True if nothing incomplete can still come: there is nothing to wait for."""
    return all(
        at.reports.word(peer, index) != ABSENT
        for index in rows
        for peer in at.reports.missing(index, peers)
    )


def exclusion(at: Moment, peer: PeerId, said: Mapping[PeerId, str]) -> str:
    """Say why FREEZE leaves a contributor out.

    Args:
        at: the moment of FREEZE.
        peer: the contributor.
        said: words of its accusers, by accuser.
    """
    if peer not in at.reports.awaited:
        return "alone"
    if peer in at.reports.withdrawn:
        return at.reports.withdrawn[peer]
    if peer not in at.live:
        return absence(at, peer)
    refusals = [word for word in said.values() if word.startswith(REFUSED)]
    if refusals:
        return max(refusals, key=refusals.count)
    # If all of it has come, it is not what it has signed, or it has signed nothing.
    has_come = all(at.reports.has_come(peer, index) for index in at.reports.gives_to(peer))
    return "roots" if has_come else "late"


def without(
    at: Moment, contributors: AbstractSet[PeerId], accusers: Words = NO_WORDS
) -> tuple[dict[PeerId, str], dict[PeerId, tuple[PeerId, ...]]]:
    """Say of each contributor that is left out why, and on whose word if it was still able to give:
    FREEZE names it, or SKIP where the others are too few."""
    may_give = at.live - at.reports.withdrawn.keys()
    words = {
        peer: accusers.get(peer, {}) if peer in may_give else {}
        for peer in at.view.weights
        if peer not in contributors
    }
    excluded = {peer: exclusion(at, peer, said) for peer, said in words.items()}
    return excluded, {p: tuple(said)[: limits.VOICES] for p, said in words.items() if said}


def too_few(
    at: Moment, reason: str, contributors: AbstractSet[PeerId], accusers: Words = NO_WORDS
) -> Skip:
    """SKIP, as only these are left: whoever leaves them so few answers for it as at FREEZE, if that
    has not named it yet. Nobody is missing whose contribution nobody takes (the odd one of pairs).
    """
    odd = at.view.weights.keys() - at.reports.awaited
    excluded, said = without(at, contributors | at.view.excluded.keys() | odd, accusers)
    return Skip(at.view.plan.op, reason, excluded=excluded, accusers=said)


def absence(at: Moment, peer: PeerId) -> str:
    """Say why a peer is not counted on: lost, deaf or idle."""
    life = at.lives.get(peer)
    return "lost" if life is None or peer in at.reports.lost else life.fault(at.now_s)


def times(at: Moment, peer: PeerId) -> Times:
    """Return the evidence on a peer that FREEZE leaves out."""
    start_s, life = at.timers.start_s, at.lives.get(peer)
    own = [transfer for transfer in at.reports.transfers if peer in transfer.givers]
    summed = [transfer.index for transfer in own if transfer.movable]
    return Times(
        complete=sum(peer in at.reports.row(index) for index in summed),
        owners=len(summed) or sum(len(transfer.takers) for transfer in own),
        last_s=_since(start_s, at.reports.last_s.get(peer)),
        heard_s=_since(start_s, life.heard_s if life is not None else None),
        frozen_s=_since(start_s, at.now_s),
        deadline_s=round(at.timers.scatter_s - start_s, 3),
    )


def _since(start_s: float, moment_s: float | None) -> float:
    """Seconds after PLAN to the millisecond, -1 for never or before."""
    return -1.0 if moment_s is None or moment_s < start_s else round(moment_s - start_s, 3)


# ---- results


def unsound(at: Moment, index: int) -> str:
    """Return the fault of an owner whose slice should have come through, "" for none."""
    if at.reports.current(index) is None:
        return SILENT
    if is_common(at, index):
        return ""
    return FEW if at.reports.is_held(index, at.live - {at.view.owners[index]}, 1) else ALONE


def stuck(at: Moment, index: int) -> str:
    """Return the fault of a live owner after D_gather, "" for none.

    If its slice has not come through, while most have, it cannot be reached, its publication cannot
    be decoded, or a few falsely say that they hold it. If more have not than half of the
    contributors could own, time is short. Where few own anything, all of these may be at fault.
    """
    if at.view.cells.count > 1:
        if _is_lacked(at, index):
            return NO_SUMS
        if _waits_for_others(at, index):
            return ""
    fault = unsound(at, index)
    lagging = sum(not is_common(at, other) for other in range(len(at.view.owners)))
    is_short = 2 * lagging > len(at.view.weights)
    return "" if is_short and fault != SILENT else fault


def owes_sums(at: Moment, index: int) -> bool:
    """Return True if a live owner of the same range in another cell lacks this owner's sums: with
    whoever is dead nobody else has them."""
    view, cell = at.view, index % at.view.cells.count
    others = [piece for piece in view.cells.pieces(index) if view.owners[piece] in at.live]
    return view.given_sets[index] is not None and any(cell in _lacks(at, one) for one in others)


def _is_lacked(at: Moment, index: int) -> bool:
    """Return True if most owners of the same range in other cells lack this owner's sums, and its
    parts are there: the matrix rule among those who finish a range. One of them is enough if the
    owner that had its slice before lacked them, too."""
    view, cell = at.view, index % at.view.cells.count
    others = [piece for piece in view.cells.pieces(index) if piece != index]
    lacking = [piece for piece in others if cell in _lacks(at, piece)]
    is_most = 2 * len(lacking) > len(others)
    return view.given_sets[index] is not None and (is_most or _is_lacked_in_turn(at, index))


def _is_lacked_in_turn(at: Moment, index: int) -> bool:
    """Return True if two owners of another slice, one after the other, have lacked this owner's
    sums: the first was relieved for it, as it might have lied, and the second one's time is up."""
    view, assigned_s, cell = at.view, at.timers.assigned_s, index % at.view.cells.count
    given_s = assigned_s.get(index, -math.inf)
    return any(
        cell in _lacks(at, piece)
        and cell in at.reports.lacks.get((piece, view.attempts[piece] - 1), ())
        and view.words.relieved.get(view.tried[piece][-2]) == SILENT
        and given_s < assigned_s.get(piece, -math.inf)
        and at.now_s >= at.timers.stuck_s(piece)
        for piece in view.cells.pieces(index)
        if piece != index
    )


def _waits_for_others(at: Moment, index: int) -> bool:
    """Return True if an owner has not published because it lacks the sums of such owners, or of
    those who have just taken their place: a second one that gives it nothing is its own fault,
    unless it is lacked in turn. Nor is it silent if such a new owner has made void what it had
    published."""
    cells, tried, timers = at.view.cells, at.view.tried, at.timers
    lacking = {cells.owned(cell, index) for cell in _lacks(at, index)}
    has_published = (index, at.view.attempts[index]) in at.reports.published
    if has_published and at.reports.current(index) is None:
        lacking |= {*cells.pieces(index)} - {index}
    return any(
        _is_lacked(at, piece)
        if len(tried[piece]) == 1
        else at.now_s < min(timers.stuck_s(piece), timers.gather_s) or _is_lacked_in_turn(at, piece)
        for piece in lacking
    )


def _lacks(at: Moment, index: int) -> frozenset[int]:
    """Cells whose sums an owner that has not published says that it lacks."""
    if at.reports.current(index) is not None:
        return frozenset()
    return at.reports.lacks.get((index, at.view.attempts[index]), frozenset())


def blamed(at: Moment) -> dict[PeerId, str]:
    """For whom an op has waited to its end: owners of slices that did not come through."""
    if at.view.frozen is None or None in at.view.slice_sets:
        return {}
    owners = enumerate(at.view.owners)
    return {owner: fault for index, owner in owners if (fault := unsound(at, index))}


def behind(at: Moment) -> set[PeerId]:
    """Return live contributors that lack a slice that more than half of them have held whole for as
    long as a slice may take. A slice that has come through later is its owner's lateness; else an
    owner could give it to a few in the last moment, and the others would be to blame."""
    lacking = set[PeerId]()
    for slice_try in enumerate(at.view.attempts):
        if common_s(at, slice_try) + limits.D_REPAIR * at.view.plan.deadline_s <= at.now_s:
            lacking |= at.waiting_for - at.reports.held_s[slice_try].keys()
    return lacking


def late(at: Moment) -> set[PeerId]:
    """First owners whose slices have come through so much later than most others that these could
    have been made twice."""
    came_s = [common_s(at, slice_try) for slice_try in enumerate(at.view.attempts)]
    due_s = statistics.median_low(came_s) + limits.D_REPAIR * at.view.plan.deadline_s
    first = [index for index, attempt in enumerate(at.view.attempts) if not attempt]
    return {at.view.owners[index] for index in first if came_s[index] > due_s}


def is_common(at: Moment, index: int) -> bool:
    """Return True if a result has come through: each chunk is with more than half of the live
    contributors, and with half of the live members. So the first can be few, late peers many, and
    still no minority of the members can feign that a result is there, or prevent it."""
    members = at.members
    return at.reports.is_held(index, members, (len(members) + 1) // 2) and (
        not at.waiting_for
        or at.reports.is_held(index, at.waiting_for, len(at.waiting_for) // 2 + 1)
    )


def common_s(at: Moment, slice_try: SliceTry) -> float:
    """Since when more than half of the live contributors hold all of a slice."""
    peers, held_s = at.waiting_for, at.reports.held_s.get(slice_try, {})
    held = sorted(held_s[peer] for peer in peers & held_s.keys())
    return held[len(peers) // 2] if len(held) > len(peers) // 2 else math.inf

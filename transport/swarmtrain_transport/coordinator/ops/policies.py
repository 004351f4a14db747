"""Policies of the kinds of op: when an op is given up, frozen and committed.

Each kind has three pure functions of a moment: `skip` (T9), `freeze` (T4) and `commit` (T8). One
more kind takes three more functions and a line in `POLICIES`. Slices that can move are reassigned
in `reassignment`, in ops of every kind.

A mean waits for the results of all owners. In a gather or a pair op nobody else can publish a
contributor's values, so FREEZE names those who have published, and COMMIT those of them whose
contributions are safe: held by enough others or, in a pair, each by the other. FREEZE keeps the
signed roots, so a restarted coordinator still counts on a contributor that has died meanwhile, if
members hold its bytes.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from swarmtrain_transport.coordinator.ops import faults
from swarmtrain_transport.coordinator.ops.faults import Moment
from swarmtrain_transport.coordinator.ops.lateness import grace_s, results_grace_s
from swarmtrain_transport.coordinator.ops.reassignment import dispute
from swarmtrain_transport.coordinator.ops.sheets import commit_sheets, freeze_sheets
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.ledger.exclusion_rule import ABSENT, matrix_rule
from swarmtrain_transport.ledger.fold import OpView, result_root, slice_root
from swarmtrain_transport.ledger.pairing import contributors_of, least_in, pairs_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Reassign,
    Skip,
    SliceOutcome,
)

Pair = tuple[PeerId, PeerId]

NONE: AbstractSet[PeerId] = frozenset()


class Policy(NamedTuple):
    """One kind of op.

    Attributes:
        skip: gives the op up, or None.
        freeze: names the contributors before FREEZE, or None as long as some are waited for.
        commit: names the result after it, or None.
        num_results: says how many slices' results a contributor is to hold.
    """

    skip: Callable[[Moment], Skip | None]
    freeze: Callable[[Moment], Freeze | Reassign | Skip | None]
    commit: Callable[[Moment], Commit | None]
    num_results: Callable[[OpView], int]


# ---- means


def skip_mean(at: Moment) -> Skip | None:
    """At D_op, unless all is held by then; or when too few are left who could give."""
    if at.is_over:
        is_safe = at.view.frozen is not None and commit_mean(at) is not None
        return None if is_safe else Skip(at.view.plan.op, "deadline", faults.blamed(at))
    if len(at.contributors) < at.view.plan.min_contributors:
        return faults.too_few(at, "too few contributors are left", at.contributors)
    return None


def freeze_mean(at: Moment) -> Freeze | Reassign | Skip | None:
    """Return the contributors that are complete at all owners, once nothing more can come, or at
    D_scatter.

    Slices that were reassigned already are settled by SFREEZE, not by this matrix; but a rule of
    whole vectors needs the measurements of all slices.
    """
    view, words = at.view, at.view.words
    rows = {index: at.reports.row(index) for index in words.settled_by_freeze}
    repaired = [index for index in rows if view.attempts[index]]
    due_s = max([at.timers.scatter_s, *map(at.timers.repair_s, repaired)])
    signed, able = at.reports.signed.keys(), at.contributors
    is_settled = able <= signed and faults.is_settled(at, able, rows)
    if not is_settled and at.now_s < min(due_s, grace_s(at, rows)):
        return None
    before = {peer: words.against(peer) for peer in words.lacked}
    left, accusers = set[PeerId](), dict[PeerId, Mapping[PeerId, str]]()
    for cell in range(view.cells.count):  # each has its own owners and contributors
        own = {index: row for index, row in rows.items() if index % view.cells.count == cell}
        owners = {index: view.owners[index] for index in own}
        near = set(view.cells.among(able & signed, cell))
        while True:
            verdict = matrix_rule(near, own, owners, words.needed, before)
            out, near = near - verdict.contributors, set(verdict.contributors)
            if verdict.reassign is not None:
                absent = near - own[verdict.reassign]
                decision = dispute(at, verdict.reassign, absent)
                if decision is not None:
                    return decision
                out, near = out | absent, near - absent
            accusers |= {peer: faults.accusers(at, peer, own) for peer in out}
            if verdict.reassign is None:
                break
        left |= near
    # To leave out a peer that has died since it gave all would gain nothing, and make void what
    # owners have summed and pushed already. Only the slice that it owned is made again, without it.
    contributors = left | at.reports.given(rows)
    if len(contributors) < view.plan.min_contributors:
        reason = "too few contributions arrived in time"
        return faults.too_few(at, reason, contributors, accusers)
    return _freeze_of(at, contributors, accusers)


def commit_mean(at: Moment) -> Commit | None:
    """Every slice is published and held enough. A late or joining receiver is never waited for:
    only FREEZE's contributors are."""
    indexes = range(len(at.view.owners))
    if None in at.view.slice_sets or len(at.reports.published) < len(indexes):
        return None
    awaited, is_late = at.waiting_for - at.unawaited, at.is_late

    def is_through(index: int) -> bool:
        return (is_late or at.reports.is_with(index, awaited)) and faults.is_common(at, index)

    if not _all_of(at, indexes, is_through) or any(
        map(at.reports.differences, at.reports.differing)
    ):
        return None
    return _commit_of(at, set(at.view.frozen or ()), faults.behind(at), faults.late(at))


def _all_of(at: Moment, indexes: range, holds: Callable[[int], bool]) -> bool:
    """Return True if something holds of all slices. That of which it did not hold the last time is
    asked first, and those after it next: it is asked after each of very many reports."""
    first = at.reports.lacking
    for index in (*indexes[first:], *indexes[:first]):
        if not holds(index):
            at.reports.lacking = index
            return False
    return True


# ---- gathers


def skip_gather(at: Moment) -> Skip | None:
    """At D_op, unless enough is held by then; or when too few contributions may still be."""
    plan = at.view.plan
    if at.is_over:
        if commit_gather(at) is not None:
            return None
        frozen = set(at.view.frozen or ())
        late = {peer for peer in frozen if not faults.is_common(at, _index(at, peer))}
        is_short = 2 * len(late) >= len(frozen)  # if most are late it is nobody's fault
        return _unheld(at, {} if is_short else {peer: at.waiting_for - {peer} for peer in late})
    may_stay = {peer for peer in at.view.weights if _may_stay(at, peer)}
    if len(may_stay) < plan.min_contributors:
        return faults.too_few(at, "too few contributors are left", may_stay)
    return None


def freeze_gather(at: Moment) -> Freeze | Skip | None:
    """Return the contributors that have published, once all live ones have, or at D_scatter."""
    given = _published(at)
    if at.contributors - given and at.now_s < min(at.timers.scatter_s, grace_s(at, _all(at))):
        return None
    if len(given) < at.view.plan.min_contributors:
        return faults.too_few(at, "too few contributions were published in time", given)
    return _freeze_of(at, given)


def commit_gather(at: Moment) -> Commit | None:
    """Leave out at once a contributor that is dead and held by nobody; one that lives, at D_gather
    if most others have come through. At D_op commit all that is held enough, if that is enough."""
    frozen, waiting_for = set(at.view.frozen or ()), at.waiting_for
    spread = {peer for peer in frozen if _is_spread(at, peer)}
    common = {peer for peer in spread if faults.is_common(at, _index(at, peer))}
    kept = spread | waiting_for
    if at.now_s >= results_grace_s(at):
        kept, waiting_for = common, waiting_for - at.unawaited
    if at.is_over or (at.is_late and 2 * len(common) > len(frozen)):
        kept = common
    if len(kept) < max(1, at.view.plan.min_contributors) or not kept <= common:
        return None
    is_all_held = all(at.reports.is_with(_index(at, peer), waiting_for) for peer in spread)
    if not at.is_late and not (waiting_for <= spread and is_all_held):
        return None
    return _commit_of(at, kept, (at.waiting_for - common) | faults.behind(at))


def _may_stay(at: Moment, peer: PeerId) -> bool:
    """Return True if a contribution may still be in the result: its contributor lives, or has left
    it with somebody."""
    is_frozen = at.view.frozen is not None
    if not is_frozen and peer in at.reports.withdrawn:
        return False
    if at.reports.name_of(_index(at, peer)) is None:
        return peer in at.live and not is_frozen
    return peer in at.live or _is_spread(at, peer)


def _is_spread(at: Moment, peer: PeerId) -> bool:
    """Return True if each chunk of a contribution is held by another live peer, or by the
    contributor itself if nobody else is alive."""
    return at.reports.is_held(_index(at, peer), at.live - {peer} or at.live, 1)


# ---- pairs


def skip_pair(at: Moment) -> Skip | None:
    """Skip when too few pairs are left that may become whole; at D_op, unless enough are."""
    plan, (whole, still_open) = at.view.plan, _sorted_pairs(at)
    if 2 * len(whole + still_open) < least_in(plan):
        left = {one for pair in whole for one in pair} | (at.contributors & at.live)
        if at.view.frozen is None:
            left |= _published(at)
        return faults.too_few(at, "too few pairs are left", left)
    if at.is_over and at.view.frozen is not None and 2 * len(whole) < least_in(plan):
        return _unheld(at, {one: {*pair} - {one} for pair in still_open for one in pair})
    return None


def freeze_pair(at: Moment) -> Freeze | Skip | None:
    """Return the contributors that have published, once all have that live and have a partner that
    has, or may still."""
    given, (_, hopeful) = _published(at), _sorted_pairs(at)
    ready = _pairs(at, given)
    if at.now_s < min(at.timers.scatter_s, grace_s(at, _all(at))) and len(ready) < len(hopeful):
        return None
    if 2 * len(ready) < least_in(at.view.plan):
        return faults.too_few(at, "too few contributions were published in time", given)
    return _freeze_of(at, given)


def commit_pair(at: Moment) -> Commit | None:
    """The whole pairs, when no other can become whole, or at D_gather. Nobody waits for a partner
    for longer than the op lasts, and nobody need be told anything of another pair."""
    whole, still_open = _sorted_pairs(at)
    is_due = at.is_late or at.now_s >= results_grace_s(at)
    if (still_open and not is_due) or 2 * len(whole) < least_in(at.view.plan):
        return None
    lacking = {taker for pair in still_open for taker in _lacking(at, pair)}
    return _commit_of(at, {peer for pair in whole for peer in pair}, lacking)


def _pairs(at: Moment, among: AbstractSet[PeerId]) -> list[Pair]:
    """Pairs of which both are among these."""
    return [pair for pair in pairs_in(contributors_of(at.view.plan)) if among >= set(pair)]


def _sorted_pairs(at: Moment) -> tuple[list[Pair], list[Pair]]:
    """Pairs that are whole, and those that may become so: of whom, after FREEZE, both live, as who
    lacks its partner's half can have it from the partner alone."""
    if at.view.frozen is None:
        return [], _pairs(at, _published(at) | at.contributors)
    named = _pairs(at, set(at.view.frozen))
    whole = [pair for pair in named if _is_whole(at, pair)]
    return whole, [pair for pair in named if pair not in whole and at.live >= set(pair)]


def _is_whole(at: Moment, pair: Pair) -> bool:
    """Return True if each of the two has said that it holds all that the other gave."""
    return not _lacking(at, pair)


def _lacking(at: Moment, pair: Pair) -> list[PeerId]:
    """Return those of the two that have not said that they hold what the other gave."""
    ways = pair, pair[::-1]
    return [one for giver, taker in ways for one in _lacks(at, _index(at, giver), {taker})]


# ---- all kinds


def _lacks(at: Moment, index: int, takers: AbstractSet[PeerId]) -> list[PeerId]:
    """Return those of some that have not said that they hold a slice's result."""
    return sorted(taker for taker in takers if not at.reports.is_with(index, {taker}))


def _index(at: Moment, peer: PeerId) -> int:
    """The slice that is this contributor's own."""
    return at.view.owners.index(peer)


def _all(at: Moment) -> range:
    """Indexes of all slices."""
    return range(len(at.view.owners))


def _unheld(at: Moment, takers: Mapping[PeerId, AbstractSet[PeerId]]) -> Skip:
    """SKIP at D_op of contributions that stay whole, and whose have not come through by the words
    of those who were to take them."""
    said = {
        peer: dict.fromkeys(_lacks(at, _index(at, peer), others), ABSENT)
        for peer, others in takers.items()
    }
    lacked = {peer for peer, words in said.items() if words}
    return faults.too_few(at, "deadline", at.view.weights.keys() - lacked, said)


def _published(at: Moment) -> set[PeerId]:
    return at.reports.given(_all(at))


def _freeze_of(
    at: Moment, contributors: AbstractSet[PeerId], accusers: faults.Words = faults.NO_WORDS
) -> Freeze:
    """FREEZE: who contributes, and why each of the others does not."""
    excluded, said = faults.without(at, contributors, accusers)
    named = tuple(sorted(contributors))
    return Freeze(
        at.view.plan.op,
        named,
        excluded,
        {peer: faults.times(at, peer) for peer in excluded},
        at.reports.roots_of(named) if at.view.cells.count == 1 else {},
        scalars=at.reports.totals(named),
        accusers=said,
        sheets=tuple(map(content_hash, freeze_sheets(at.reports, named))),
    )


def _commit_of(
    at: Moment,
    kept: AbstractSet[PeerId],
    behind: AbstractSet[PeerId],
    late: AbstractSet[PeerId] = NONE,
) -> Commit:
    """COMMIT of these contributors; some others were waited for in vain.

    Where contributions stay whole, FREEZE has their roots; else each slice's owner has signed it.
    In cells signatures are in sheets.
    """
    view = at.view
    outcomes, signatures = [], []
    for transfer, owner in zip(at.reports.transfers, view.owners, strict=True):
        outcome, signature = SliceOutcome(0, (), b""), b""
        if transfer.movable:
            published, index = at.reports.current(transfer.index), transfer.index
            assert published is not None
            root, signature = slice_root(published.chunk_hashes), published.signature
            outcome = SliceOutcome(view.attempts[index], view.slice_sets[index] or (), root)
        elif owner in kept:
            signed = view.roots[owner]
            outcome, signature = SliceOutcome(0, (owner,), signed.root), signed.signature
        outcomes.append(outcome)
        signatures.append(signature)
    commit = Commit(
        view.plan.op,
        view.plan_hash,
        tuple(peer for peer in view.frozen or () if peer in kept),
        tuple(outcomes),
        b"",
        tuple(signatures) if view.cells.count == 1 else (),
        behind=tuple(sorted(behind)),
        late=tuple(sorted(late)),
        sheets=tuple(map(content_hash, commit_sheets(at.reports, signatures))),
    )
    return msgspec.structs.replace(commit, result_root=result_root(commit))


POLICIES = {
    MEAN: Policy(skip_mean, freeze_mean, commit_mean, lambda view: len(view.owners)),
    GATHER: Policy(skip_gather, freeze_gather, commit_gather, lambda view: len(view.frozen or ())),
    PAIR: Policy(skip_pair, freeze_pair, commit_pair, lambda view: 2),
}
"""The decisions of each kind; of a pair a contributor holds its own half and its partner's."""

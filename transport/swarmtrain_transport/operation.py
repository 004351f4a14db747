"""The coordinator's side of a mean op: what to decide next, from the ledger and what peers report.

FREEZE, REASSIGN, SFREEZE, COMMIT, SKIP (protocol.md T4 to T9); `decisions` says when it is asked.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.decisions import Decision, Decisions
from swarmtrain_transport.fold import result_root, slice_root
from swarmtrain_transport.ledger import (
    Commit,
    Freeze,
    Reassign,
    Skip,
    SliceFreeze,
    SliceOutcome,
)
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.matrix import MatrixVerdict, matrix_rule


class Operation(Decisions):
    """One mean op in this term."""

    def _decide(self, live: set[PeerId], now_s: float) -> Decision | None:
        if now_s >= self.timers.end_s:
            return Skip(self.view.plan.op, "deadline")
        if len(self._contributors(live)) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributors are left")
        relieved = self._relieve(live, now_s)
        if relieved is not None:
            return relieved
        if self.view.frozen is None:
            return self._freeze(live, now_s)
        return self._slice_freeze(live, now_s) or self._commit(live, now_s)

    def _relieve(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T6: a dead or stuck owner's slice goes to another peer, unless its result is safe."""
        is_late = self.view.frozen is not None and now_s >= self.timers.gather_s
        for index, owner in enumerate(self.view.owners):
            if owner not in live:
                if self._all_held(index, live, 1):
                    continue
                skip = Skip(self.view.plan.op, f"no owner is left for slice {index}")
                return self._reassign(index, live, f"owner {self._fault(owner)}") or skip
            if is_late and now_s >= self.timers.stuck_s(index):
                reason = self._stuck(index, live)
                decision = self._reassign(index, live, reason) if reason else None
                if decision is not None:
                    return decision
        return None

    def _stuck(self, index: int, live: set[PeerId]) -> str:
        """What is wrong with a live owner after the gather deadline, "" for nothing.

        If nobody but itself holds some chunk, while most other slices have come through, it cannot
        be reached, or what it published cannot be decoded. If they have not, time is short.
        """
        if self._current(index) is None:
            return "owner silent"
        others = [other for other in range(len(self.view.owners)) if other != index]
        spread = sum(self._is_spread(other, live) for other in others)
        is_odd = 2 * spread > len(others) and not self._is_spread(index, live)
        return "owner alone has it" if is_odd else ""

    def _is_spread(self, index: int, live: set[PeerId]) -> bool:
        """Whether somebody who is not its owner holds each chunk of the slice."""
        return self._all_held(index, live - {self.view.owners[index]}, 1)

    def _reassign(self, index: int, live: set[PeerId], reason: str) -> Decision | None:
        """The new owner: alive, new to this slice, with the fewest slices now; it has the centre
        if the plan names one."""
        tried = set(self.view.tried[index])
        if self.view.plan.centre:
            tried |= self.view.boots.keys() - self.view.weights.keys()
        candidates = sorted(
            live - tried, key=lambda peer: (self.view.owners.count(peer), self._rank(peer))
        )
        attempt = self.view.attempts[index] + 1
        if not candidates or attempt > limits.ATTEMPTS_MAX:
            return None
        return Reassign(self.view.plan.op, index, attempt, candidates[0], reason)

    def _rank(self, peer: PeerId) -> int:
        return next(i for i, member in enumerate(self.view.plan.members) if member.peer == peer)

    def _freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T4. Slices that were reassigned already are settled by SFREEZE, not by this matrix; but
        a rule of whole vectors needs what all slices were measured to be."""
        candidates = self._contributors(live)
        is_whole = bool(self.view.plan.scalars)
        places = list(enumerate(self.view.attempts))
        rows = {
            index: self.got.get((index, attempt), set())
            for index, attempt in places
            if is_whole or attempt == 0
        }
        repaired = [index for index, attempt in places if is_whole and attempt]
        due_s = max([self.timers.scatter_s, *map(self.timers.repair_s, repaired)])
        signed = self.arrivals.signed.keys()
        if candidates <= signed and all(candidates <= row for row in rows.values()):
            verdict = MatrixVerdict(frozenset(candidates), None)
        elif now_s < due_s:
            return None
        else:
            verdict = matrix_rule(candidates, rows, self.view.plan.min_contributors)
        if verdict.reassign is not None:
            decision = self._reassign(verdict.reassign, live, "unreachable for most")
            if decision is not None:
                return decision
            verdict = MatrixVerdict(frozenset(candidates.intersection(*rows.values())), None)
        contributors = (verdict.contributors & signed) | self._whole(rows)
        if len(contributors) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributions arrived in time")
        excluded = {
            peer: self._exclusion(peer, live)
            for peer in self.view.weights
            if peer not in contributors
        }
        named = tuple(sorted(contributors))
        roots = self.arrivals.signed_roots(named)
        scalars = self.arrivals.totals(named)
        return Freeze(self.view.plan.op, named, excluded, roots=roots, scalars=scalars)

    def _whole(self, rows: Mapping[int, AbstractSet[PeerId]]) -> set[PeerId]:
        """Who has given all that it had to give, alive or not.

        To leave out a peer that has died since would gain nothing, and make void what owners have
        summed and pushed already. Only the slice that it owned is made again, without it.
        """
        given = self.arrivals.signed.keys() - self.refused.keys()
        return {peer for peer in given if rows and all(peer in row for row in rows.values())}

    def _exclusion(self, peer: PeerId, live: set[PeerId]) -> str:
        if peer in self.refused:
            return self.refused[peer]
        if peer not in live:
            return self._fault(peer)
        return "late" if self.arrivals.is_late(peer) else "roots"

    def _slice_freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T7: the contributors of a reassigned slice, from what its new owner has."""
        assert self.view.frozen is not None
        for index, contributors in enumerate(self.view.slice_sets):
            if contributors is not None:
                continue
            arrived = self.got.get((index, self.view.attempts[index]), set())
            wanted = set(self.view.frozen) & live
            if not wanted <= arrived and now_s < self.timers.repair_s(index):
                continue
            named = tuple(sorted(set(self.view.frozen) & arrived))
            if len(named) < self.view.plan.min_contributors:
                # Those who could not bring it here may bring it elsewhere.
                skip = Skip(self.view.plan.op, f"too few contributors of slice {index} are left")
                if len(wanted) < self.view.plan.min_contributors:
                    return skip
                return self._reassign(index, live, "unreachable for most") or skip
            return SliceFreeze(self.view.plan.op, index, self.view.attempts[index], named)
        return None

    def _commit(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T8. A late or joining receiver is never waited for: only FREEZE's contributors are."""
        assert self.view.frozen is not None
        waiting_for = set(self.view.frozen) & live
        needed = min(limits.RESULT_HOLDERS, max(1, len(waiting_for)))
        if len(self.published) < len(self.view.owners):
            return None
        outcomes, signatures = [], []
        for index, contributors in enumerate(self.view.slice_sets):
            published = self._current(index)
            if contributors is None or published is None:
                return None
            if not self._all_held(index, live, needed):
                return None
            if now_s < self.timers.gather_s and not self._held_by(index, waiting_for):
                return None
            root = slice_root(published.chunk_hashes)
            outcomes.append(SliceOutcome(self.view.attempts[index], contributors, root))
            signatures.append(published.signature)
        commit = Commit(
            self.view.plan.op, self.view.plan_hash, self.view.frozen, tuple(outcomes), b"",
            tuple(signatures),
        )  # fmt: skip
        return msgspec.structs.replace(commit, result_root=result_root(commit))

"""The coordinator's side of one op: what to decide next, from the ledger and what peers report.

`decide` is a function of (what is logged, what was reported, who is alive, the time) to the next
record body or None. The caller logs it and asks again, so every decision is durable before
anything follows from it, and a restarted coordinator that replays the log and hears the reports
again goes on without deciding twice (protocol.md T4 to T9, T14).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.failure import LifeLine
from swarmtrain_transport.fold import OpView, result_root, slice_root
from swarmtrain_transport.ledger import (
    Commit,
    Freeze,
    Reassign,
    Skip,
    SliceFreeze,
    SliceOutcome,
    Times,
)
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.matrix import MatrixVerdict, matrix_rule
from swarmtrain_transport.reports import Reports
from swarmtrain_transport.timers import Pace, Timers, most_arrived_s

Decision = Reassign | Freeze | SliceFreeze | Commit | Skip


class Operation(Reports):
    """One op in this term: what was reported of it, and what follows.

    Args:
        view: the ledger's view of the op; it changes as decisions are folded.
        now_s: start of the op, or of this term's part of it.
    """

    def __init__(self, view: OpView, now_s: float) -> None:
        super().__init__(view, now_s)
        self.timers = Timers(now_s, view.plan.deadline_s)
        self._frozen_s = now_s
        self._lives: Mapping[PeerId, LifeLine] = {}

    # ---- decisions

    def decide(
        self,
        alive: AbstractSet[PeerId],
        now_s: float,
        lives: Mapping[PeerId, LifeLine] | None = None,
    ) -> Decision | None:
        """The next record of this op, or None when there is nothing to decide yet.

        Args:
            alive: peers that the failure detector holds to be alive.
            now_s: the time.
            lives: what the failure detector knows; only told, never decided upon.
        """
        if self.view.outcome is not None:
            return None
        self._now_s = now_s
        if self._idle is not None and now_s < self._idle[1] and alive == self._idle[0]:
            return None
        self._lives = lives or {}
        decision = self._decide(alive, now_s)
        later_s = (time_s for time_s in self.timers.wakeups() if time_s > now_s)
        self._idle = (frozenset(alive), min(later_s, default=now_s)) if decision is None else None
        if isinstance(decision, Freeze):
            self._frozen_s = now_s
            times = {peer: self._times(peer) for peer in decision.excluded}
            decision = msgspec.structs.replace(decision, times=times)
        return decision

    def _decide(self, alive: AbstractSet[PeerId], now_s: float) -> Decision | None:
        live = (set(alive) & set(self.view.boots)) - self.lost
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

    # ---- what is measured

    def teach(self, pace: Pace, now_s: float) -> None:
        """The op has ended: what it says of how long the next one may take.

        Measured is how long most contributions took to be whole, and from FREEZE how long most
        contributors took to hold the result, if this term saw all of it.
        """
        outcome, frozen = self.view.outcome, self.view.frozen or ()
        scatter_s = most_arrived_s(list(self.arrivals.whole_s.values()), len(self.view.weights))
        held = [self._held_s[peer] for peer in frozen if peer in self._held_s]
        gather_s = most_arrived_s(held, len(frozen))
        if isinstance(outcome, Skip):
            if now_s >= self.timers.scatter_s:
                pace.was_too_short(self.view.plan.deadline_s)
        elif scatter_s is not None and gather_s is not None and scatter_s <= self._frozen_s:
            pace.measured(scatter_s - self.timers.start_s, max(0.0, gather_s - self._frozen_s))

    def _times(self, peer: PeerId) -> Times:
        """What is known of a peer that FREEZE leaves out."""
        start_s = self.timers.start_s
        rows = self.arrivals.rows()
        life = self._lives.get(peer)
        return Times(
            complete=sum(peer in row for row in rows),
            owners=len(rows),
            last_s=_since(start_s, self.arrivals.last_s.get(peer)),
            heard_s=_since(start_s, life.heard_s if life is not None else None),
            frozen_s=_since(start_s, self._now_s),
            deadline_s=round(self.timers.scatter_s - start_s, 3),
        )

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
        """The new owner: alive, new to this slice, with the fewest slices now."""
        tried = set(self.view.tried[index])
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
        """T4. Slices that were reassigned already are settled by SFREEZE, not by this matrix."""
        candidates = self._contributors(live)
        staying = [i for i, attempt in enumerate(self.view.attempts) if attempt == 0]
        rows = {index: self.got.get((index, 0), set()) for index in staying}
        signed = self.arrivals.signed.keys()
        if candidates <= signed and all(candidates <= rows[index] for index in staying):
            verdict = MatrixVerdict(frozenset(candidates), None)
        elif now_s < self.timers.scatter_s:
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
        return Freeze(self.view.plan.op, named, excluded, roots=roots)

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

    def _fault(self, peer: PeerId) -> str:
        """Why a peer is not counted on: lost, deaf or idle."""
        life = self._lives.get(peer)
        return "lost" if life is None or peer in self.lost else life.fault(self._now_s)

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


def _since(start_s: float, moment_s: float | None) -> float:
    """Seconds after PLAN to the millisecond, -1 for never or before."""
    return -1.0 if moment_s is None or moment_s < start_s else round(moment_s - start_s, 3)

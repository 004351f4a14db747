"""The coordinator's side of a mean op: what to decide next, from the ledger and what peers report.

FREEZE, REASSIGN, SFREEZE, COMMIT, SKIP (protocol.md T4 to T9); `decisions` says when it is asked.
"""

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.decisions import Decision, Decisions
from swarmtrain_transport.ledger.fold import result_root, slice_root
from swarmtrain_transport.ledger.matrix import ABSENT, AT_ODDS, REFUSED, UNREACHABLE, matrix_rule
from swarmtrain_transport.ledger.standing import BARRED
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Reassign,
    Skip,
    SliceFreeze,
    SliceOutcome,
)

NOTHING: Mapping[PeerId, str] = {}


class Operation(Decisions):
    """One mean op in this term."""

    def _decide(self, live: set[PeerId], now_s: float) -> Decision | None:
        if now_s >= self.timers.end_s:
            return Skip(self.view.plan.op, "deadline", self._blamed(live))
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
        """Return True if enough peers other than its owner hold each chunk of the slice."""
        needed = self._needed_elsewhere(set(self.view.frozen or ()) & live)
        return self._all_held(index, live - {self.view.owners[index]}, needed)

    def _reassign(
        self, index: int, live: set[PeerId], reason: str, lacked: Mapping[PeerId, str] = NOTHING
    ) -> Decision | None:
        """The new owner: alive, new to this slice, at odds with nobody in this op and not known
        for it, with the fewest slices now; it has the centre if the plan names one.

        Where words stand against each other it is drawn: nobody can choose a key with which it is
        the next to be asked.
        """
        tried = set(self.view.tried[index])
        if self.view.plan.centre:
            tried |= self.view.boots.keys() - self.view.weights.keys()
        if self.view.words.planned == 2:
            # Nor who is lacked here, if it was at fault as an owner itself: else neither goes on.
            tried |= {peer for peer in lacked if self.view.unfit.get(peer, 0) >= BARRED}
        known = self.view.words.lacked
        words = Counter([*known, *lacked, *(owner for said in known.values() for owner in said)])
        draw = self._drawn if lacked else self._rank
        candidates = sorted(
            live - tried,
            key=lambda peer: (
                words[peer], self.view.unfit.get(peer, 0), self.view.owners.count(peer), draw(peer),
            ),
        )  # fmt: skip
        attempt = self.view.attempts[index] + 1
        if not candidates or attempt > limits.ATTEMPTS_MAX:
            return None
        return Reassign(self.view.plan.op, index, attempt, candidates[0], reason, dict(lacked))

    def _rank(self, peer: PeerId) -> int:
        return next(i for i, member in enumerate(self.view.plan.members) if member.peer == peer)

    def _drawn(self, peer: PeerId) -> int:
        digest = hashlib.sha256(self.view.plan_hash + peer).digest()
        return int.from_bytes(digest[:8], "little")

    def _dispute(
        self, index: int, gaps: AbstractSet[PeerId], live: set[PeerId], now_s: float
    ) -> Decision | None:
        """One owner lacks what too few others lack: its slice goes to somebody else, if there is
        anybody and time for one more try."""
        if not self.timers.has_time(now_s):
            return None
        lacked = {peer: self.arrivals.word(peer, index) for peer in sorted(gaps)}
        reason = UNREACHABLE if self._is_most(gaps, live) else AT_ODDS
        return self._reassign(index, live, reason, lacked)

    def _is_most(self, gaps: AbstractSet[PeerId], live: set[PeerId]) -> bool:
        return 2 * len(gaps) > len(self._contributors(live) & live)

    def _freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T4. Slices that were reassigned already are settled by SFREEZE, not by this matrix; but
        a rule of whole vectors needs what all slices were measured to be."""
        words, candidates = self.view.words, self._contributors(live)
        places = words.settled_by_freeze
        rows = {i: self.got.get((i, self.view.attempts[i]), set()) for i in places}
        repaired = [index for index in places if self.view.attempts[index]]
        due_s = max([self.timers.scatter_s, *map(self.timers.repair_s, repaired)])
        signed = self.arrivals.signed.keys()
        if now_s < due_s and not (candidates <= signed and self._is_settled(candidates, rows)):
            return None
        owners = {index: self.view.owners[index] for index in places}
        before = {peer: words.against(peer) for peer in words.lacked}
        left, accusers = candidates & signed, dict[PeerId, dict[PeerId, str]]()
        while True:
            verdict = matrix_rule(left, rows, owners, words.needed, before)
            for peer in left - verdict.contributors:
                accusers[peer] = self._accusers(peer, rows)
            left = set(verdict.contributors)
            if verdict.reassign is None:
                break
            absent = left - rows[verdict.reassign]
            decision = self._dispute(verdict.reassign, absent, live, now_s)
            if decision is not None:
                return decision
            accusers |= {peer: self._accusers(peer, rows) for peer in absent}
            left -= absent
        return self._frozen(left | self._whole(rows), accusers, live)

    def _is_settled(
        self, peers: AbstractSet[PeerId], rows: Mapping[int, AbstractSet[PeerId]]
    ) -> bool:
        """Return True if nothing incomplete can still come: there is nothing to wait for."""
        return all(
            self.arrivals.word(peer, index) != ABSENT
            for index, row in rows.items()
            for peer in peers - row
        )

    def _accusers(self, peer: PeerId, rows: Mapping[int, AbstractSet[PeerId]]) -> dict[PeerId, str]:
        """Map the owners that lack a contribution, now or at an earlier attempt, to their words."""
        now = {
            self.view.owners[index]: self.arrivals.word(peer, index)
            for index, row in rows.items()
            if peer not in row
        }
        known = self.view.words.lacked.get(peer, {})
        said = now | {owner: known[owner] for owner in self.view.words.against(peer)}
        return {owner: word for owner, word in sorted(said.items()) if owner != peer}

    def _frozen(
        self,
        contributors: set[PeerId],
        accusers: Mapping[PeerId, Mapping[PeerId, str]],
        live: set[PeerId],
    ) -> Decision:
        if len(contributors) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributions arrived in time")
        words = {
            peer: accusers.get(peer, {}) if peer in live and peer not in self.withdrawn else {}
            for peer in self.view.weights
            if peer not in contributors
        }
        named = tuple(sorted(contributors))
        return Freeze(
            self.view.plan.op, named,
            {peer: self._exclusion(peer, live, said) for peer, said in words.items()},
            roots=self.arrivals.signed_roots(named), scalars=self.arrivals.totals(named),
            accusers={p: tuple(said)[: limits.VOICES] for p, said in words.items() if said},
        )  # fmt: skip

    def _whole(self, rows: Mapping[int, AbstractSet[PeerId]]) -> set[PeerId]:
        """Who has given all that it had to give, alive or not.

        To leave out a peer that has died since would gain nothing, and make void what owners have
        summed and pushed already. Only the slice that it owned is made again, without it.
        """
        given = self.arrivals.signed.keys() - self.withdrawn.keys()
        return {peer for peer in given if rows and all(peer in row for row in rows.values())}

    def _exclusion(self, peer: PeerId, live: set[PeerId], said: Mapping[PeerId, str]) -> str:
        if peer in self.withdrawn:
            return self.withdrawn[peer]
        if peer not in live:
            return self._fault(peer)
        refusals = [word for word in said.values() if word.startswith(REFUSED)]
        if refusals:
            return max(refusals, key=refusals.count)
        return "late" if self.arrivals.is_late(peer) else "roots"

    def _slice_freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T7: the contributors of a reassigned slice, from what its new owner has; who is missing
        there is left out on the word of as many as at FREEZE."""
        assert self.view.frozen is not None
        for index, contributors in enumerate(self.view.slice_sets):
            if contributors is not None:
                continue
            arrived = self.got.get((index, self.view.attempts[index]), set())
            absent = (set(self.view.frozen) & live) - arrived
            is_settled = self._is_settled(absent, {index: arrived})
            if now_s < self.timers.repair_s(index) and not is_settled:
                continue
            is_most = self._is_most(absent, live)
            if absent and (is_most or not all(self._is_enough(peer, index) for peer in absent)):
                decision = self._dispute(index, absent, live, now_s)
                if decision is not None:
                    return decision
            named = tuple(sorted(set(self.view.frozen) & arrived))
            if len(named) < self.view.plan.min_contributors:
                # Those who could not bring it here may bring it elsewhere.
                op = self.view.plan.op
                skip = Skip(op, f"too few contributors of slice {index} are left")
                if len(named) + len(absent) < self.view.plan.min_contributors:
                    return skip
                return self._dispute(index, absent, live, now_s) or skip
            lacked = {peer: self.arrivals.word(peer, index) for peer in sorted(absent)}
            attempt = self.view.attempts[index]
            return SliceFreeze(self.view.plan.op, index, attempt, named, lacked)
        return None

    def _is_enough(self, peer: PeerId, index: int) -> bool:
        """Return True if enough owners, this slice's included, say they lack the peer's part."""
        said = {self.view.owners[index], *self.view.words.against(peer)} - {peer}
        return len(said) >= self.view.words.needed(peer)

    def _blamed(self, live: set[PeerId]) -> dict[PeerId, str]:
        """For whom an op has waited to its end: owners of slices that did not come through, or
        else contributors who have not fetched what they could."""
        frozen = self.view.frozen
        if frozen is None or None in self.view.slice_sets:
            return {}
        blamed = {}
        for index, owner in enumerate(self.view.owners):
            if self._current(index) is None:
                blamed[owner] = "owner silent"
            elif not self._is_spread(index, live):
                blamed[owner] = "owner alone has it"
        return blamed or dict.fromkeys(sorted(self._lacking(set(frozen) & live)), "behind")

    def _late(self, waiting_for: set[PeerId]) -> tuple[PeerId, ...]:
        """First owners whose slices have come through so much later than most others that these
        could have been made twice."""
        tries = list(enumerate(self.view.attempts))
        came_s = [self._common_s(slice_try, waiting_for) for slice_try in tries]
        due_s = statistics.median_low(came_s) + limits.D_REPAIR * self.view.plan.deadline_s
        late = {
            self.view.owners[index]
            for index, attempt in tries
            if not attempt and came_s[index] > due_s
        }
        return tuple(sorted(late))

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
            tuple(signatures), behind=tuple(sorted(self._lacking(waiting_for))),
            late=self._late(waiting_for),
        )  # fmt: skip
        return msgspec.structs.replace(commit, result_root=result_root(commit))

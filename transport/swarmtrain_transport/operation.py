"""The coordinator's side of one op: what to decide next, from the ledger and what peers report.

`decide` is a function of (what is logged, what was reported, who is alive, the time) to the next
record body or None. The caller logs it and asks again, so every decision is durable before
anything follows from it, and a restarted coordinator that replays the log and hears the reports
again goes on without deciding twice (protocol.md T4 to T9, T14).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.claims import shown
from swarmtrain_transport.fold import OpView, num_chunks, result_root, slice_root
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
from swarmtrain_transport.messages import Got, Hashes, Have, SliceDone, Withdraw
from swarmtrain_transport.timers import Pace, Timers, most_arrived_s

Decision = Reassign | Freeze | SliceFreeze | Commit | Skip
Report = Got | SliceDone | Have | Withdraw
SliceTry = tuple[int, int]
"""(slice, attempt)."""


@dataclass(frozen=True, slots=True)
class Published:
    """An accepted SLICE_DONE."""

    set_id: int
    chunk_hashes: tuple[bytes, ...]


class Operation:
    """What peers have reported of one op in this term; the rest is in the ledger's view."""

    def __init__(self, view: OpView, now_s: float) -> None:
        self.view = view
        self.timers = Timers(now_s, view.plan.deadline_s)
        self.got: dict[SliceTry, set[PeerId]] = {}
        self.published: dict[SliceTry, Published] = {}
        self.holders: dict[tuple[int, int, int], set[PeerId]] = {}
        self.refused: dict[PeerId, str] = {}
        self.lost: set[PeerId] = set()
        self._now_s = now_s
        self._arrived_s: dict[PeerId, float] = {}
        self._complete_s: dict[PeerId, float] = {}
        self._held_s: dict[PeerId, float] = {}
        self._frozen_s = now_s
        self._idle: tuple[AbstractSet[PeerId], float] | None = None
        """With these alive nothing falls due before this time, unless something is reported."""

    # ---- reports, all idempotent

    def hear(self, peer: PeerId, message: Report, now_s: float) -> Hashes | None:
        """A report on this op; the answer is what its members must hear of it."""
        self._now_s = now_s
        if isinstance(message, Withdraw):
            self.report_withdrawn(peer, message.reason)
            return None
        slice_try = (message.slice_index, message.attempt)
        if isinstance(message, Got):
            self.report_got(peer, slice_try, message.complete, message.refused)
        elif isinstance(message, Have):
            self.report_have(peer, slice_try, message.set_id, message.chunks)
        elif self.report_done(peer, slice_try, message.set_id, message.chunk_hashes) is not None:
            return self._hashes(slice_try)
        return None

    def returned(self, peer: PeerId, boot: bytes) -> list[Hashes]:
        """A peer said HELLO: what it must hear of this op, if it is still the planned process.

        A restarted process has lost what the op's member held (protocol.md, IDS: boot).
        """
        planned = self.view.boots.get(peer)
        if planned is None:
            return []
        if planned != boot:
            self.report_lost(peer)
            return []
        current = enumerate(self.view.attempts)
        return [self._hashes(slice_try) for slice_try in current if self._current(slice_try[0])]

    def _hashes(self, slice_try: SliceTry) -> Hashes:
        published = self.published[slice_try]
        return Hashes(self.view.plan_id, *slice_try, published.set_id, published.chunk_hashes)

    def report_got(
        self, owner: PeerId, slice_try: SliceTry, complete: tuple[PeerId, ...],
        refused: dict[PeerId, str],
    ) -> None:  # fmt: skip
        """An owner holds these contributions whole and valid."""
        if not self._is_owner(owner, slice_try):
            return
        self._idle = None
        known = self.got.setdefault(slice_try, set())
        new = (set(complete) & set(self.view.weights)) - known
        known |= new
        rows = [
            self.got.get((index, attempt), set())
            for index, attempt in enumerate(self.view.attempts)
        ]
        for peer in new:
            self._arrived_s[peer] = self._now_s
            if all(peer in row for row in rows):
                self._complete_s.setdefault(peer, self._now_s)
        for peer, reason in refused.items():
            if peer in self.view.weights:
                self.refused.setdefault(peer, f"refused:{shown(reason, 32)}")

    def report_withdrawn(self, peer: PeerId, reason: str) -> None:
        """A contributor cannot send its own values."""
        self._idle = None
        self.refused.setdefault(peer, f"withdrew:{shown(reason, 32)}")

    def report_done(
        self, owner: PeerId, slice_try: SliceTry, name: int, hashes: tuple[bytes, ...]
    ) -> Published | None:
        """An owner has published; the answer is what to relay, None if it is not news.

        Before FREEZE it may do so for all planned contributors (T3); that counts if FREEZE names
        them all, and else is void. Who was not connected at the time is told at HELLO, so a
        repetition is not relayed.
        """
        if not self._is_owner(owner, slice_try) or name != self.view.result_set_id(slice_try[0]):
            return None
        if len(hashes) != num_chunks(self.view.plan, slice_try[0]):
            return None
        if any(len(chunk_hash) != limits.HASH_BYTES for chunk_hash in hashes):
            return None
        if self._current(slice_try[0]) is not None:
            return None
        for chunk in range(len(hashes)):  # an earlier one was over another set
            self.holders.pop((*slice_try, chunk), None)
        self._idle = None
        published = self.published[slice_try] = Published(name, hashes)
        self.report_have(owner, slice_try, published.set_id, (True,) * len(hashes))
        return published

    def report_have(
        self, peer: PeerId, slice_try: SliceTry, name: int, chunks: tuple[bool, ...]
    ) -> None:
        """A member holds verified result chunks."""
        published = self.published.get(slice_try)
        if published is None or published.set_id != name or peer not in self.view.boots:
            return
        self._idle = None
        for chunk, here in enumerate(chunks[: len(published.chunk_hashes)]):
            if here:
                self.holders.setdefault((*slice_try, chunk), set()).add(peer)
        self._held_s[peer] = self._now_s

    def report_lost(self, peer: PeerId) -> None:
        """The process that was planned is gone for good (new boot id, left, evicted)."""
        self._idle = None
        self.lost.add(peer)
        for holders in self.holders.values():
            holders.discard(peer)

    def _current(self, index: int) -> Published | None:
        """What stands as a slice's result: of its current attempt, over the right set."""
        published = self.published.get((index, self.view.attempts[index]))
        if published is None or published.set_id != self.view.result_set_id(index):
            return None
        return published

    def _is_owner(self, peer: PeerId, slice_try: SliceTry) -> bool:
        index, attempt = slice_try
        return (
            0 <= index < len(self.view.owners)
            and self.view.attempts[index] == attempt
            and self.view.owners[index] == peer
        )

    # ---- decisions

    def decide(
        self,
        alive: AbstractSet[PeerId],
        now_s: float,
        heard_s: Mapping[PeerId, float] | None = None,
    ) -> Decision | None:
        """The next record of this op, or None when there is nothing to decide yet.

        Args:
            alive: peers that the failure detector holds to be alive.
            now_s: the time.
            heard_s: when each peer was last heard of; only told, never decided upon.
        """
        if self.view.outcome is not None:
            return None
        self._now_s = now_s
        if self._idle is not None and now_s < self._idle[1] and alive == self._idle[0]:
            return None
        decision = self._decide(alive, now_s)
        later_s = (time_s for time_s in self.timers.wakeups() if time_s > now_s)
        self._idle = (frozenset(alive), min(later_s, default=now_s)) if decision is None else None
        if isinstance(decision, Freeze):
            self._frozen_s = now_s
            times = {peer: self._times(peer, heard_s or {}) for peer in decision.excluded}
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
        scatter_s = most_arrived_s(list(self._complete_s.values()), len(self.view.weights))
        held = [self._held_s[peer] for peer in frozen if peer in self._held_s]
        gather_s = most_arrived_s(held, len(frozen))
        if isinstance(outcome, Skip):
            if now_s >= self.timers.scatter_s:
                pace.was_too_short(self.view.plan.deadline_s)
        elif scatter_s is not None and gather_s is not None and scatter_s <= self._frozen_s:
            pace.measured(scatter_s - self.timers.start_s, max(0.0, gather_s - self._frozen_s))

    def _times(self, peer: PeerId, heard_s: Mapping[PeerId, float]) -> Times:
        """What is known of a peer that FREEZE leaves out."""
        start_s = self.timers.start_s
        rows = [self.got.get((j, attempt), ()) for j, attempt in enumerate(self.view.attempts)]
        return Times(
            complete=sum(peer in row for row in rows),
            owners=len(rows),
            last_s=_since(start_s, self._arrived_s.get(peer)),
            heard_s=_since(start_s, heard_s.get(peer)),
            frozen_s=_since(start_s, self._now_s),
            deadline_s=round(self.timers.scatter_s - start_s, 3),
        )

    def _contributors(self, live: set[PeerId]) -> set[PeerId]:
        """Peers whose contribution may still enter some slice."""
        if self.view.frozen is None:
            return (set(self.view.weights) & live) - set(self.refused)
        return set(self.view.frozen)

    def _relieve(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T6: a dead or stuck owner's slice goes to another peer, unless its result is safe."""
        for index, owner in enumerate(self.view.owners):
            if self._all_held(index, live, 1):
                continue
            if owner not in live:
                return self._reassign(index, live, "owner lost")
            published = self._current(index) is not None
            silent = self.view.frozen is not None and not published
            if silent and now_s >= self.timers.stuck_s(index):
                decision = self._reassign(index, live, "owner silent")
                if decision is not None:
                    return decision
        return None

    def _reassign(self, index: int, live: set[PeerId], reason: str) -> Decision | None:
        """The new owner: alive, new to this slice, with the fewest slices now."""
        tried = set(self.view.tried[index])
        candidates = sorted(
            live - tried, key=lambda peer: (self.view.owners.count(peer), self._rank(peer))
        )
        attempt = self.view.attempts[index] + 1
        if not candidates or attempt > limits.ATTEMPTS_MAX:
            if reason == "owner lost":
                return Skip(self.view.plan.op, f"no owner is left for slice {index}")
            return None
        return Reassign(self.view.plan.op, index, attempt, candidates[0], reason)

    def _rank(self, peer: PeerId) -> int:
        return next(i for i, member in enumerate(self.view.plan.members) if member.peer == peer)

    def _freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T4. Slices that were reassigned already are settled by SFREEZE, not by this matrix."""
        candidates = self._contributors(live)
        staying = [i for i, attempt in enumerate(self.view.attempts) if attempt == 0]
        rows = {index: self.got.get((index, 0), set()) for index in staying}
        if all(candidates <= rows[index] for index in staying):
            verdict = MatrixVerdict(frozenset(candidates), None)
        elif now_s < self.timers.scatter_s:
            return None
        else:
            verdict = matrix_rule(candidates, rows)
        if verdict.reassign is not None:
            decision = self._reassign(verdict.reassign, live, "unreachable for most")
            if decision is not None:
                return decision
            verdict = MatrixVerdict(frozenset(candidates.intersection(*rows.values())), None)
        contributors = verdict.contributors
        if len(contributors) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributions arrived in time")
        excluded = {
            peer: self._exclusion(peer, live)
            for peer in self.view.weights
            if peer not in contributors
        }
        return Freeze(self.view.plan.op, tuple(sorted(contributors)), excluded)

    def _exclusion(self, peer: PeerId, live: set[PeerId]) -> str:
        if peer in self.refused:
            return self.refused[peer]
        return "late" if peer in live else "lost"

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
                return Skip(self.view.plan.op, f"too few contributors of slice {index} are left")
            return SliceFreeze(self.view.plan.op, index, self.view.attempts[index], named)
        return None

    def _commit(self, live: set[PeerId], now_s: float) -> Decision | None:
        """T8. A late or joining receiver is never waited for: only FREEZE's contributors are."""
        assert self.view.frozen is not None
        waiting_for = set(self.view.frozen) & live
        needed = min(limits.RESULT_HOLDERS, max(1, len(waiting_for)))
        outcomes = []
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
        commit = Commit(
            self.view.plan.op, self.view.plan_hash, self.view.frozen, tuple(outcomes), b""
        )
        return Commit(
            commit.op, commit.plan_hash, commit.contributors, commit.slices, result_root(commit)
        )

    def _chunk_holders(self, index: int) -> list[set[PeerId]] | None:
        slice_try = (index, self.view.attempts[index])
        published = self._current(index)
        if published is None:
            return None
        count = len(published.chunk_hashes)
        return [self.holders.get((*slice_try, chunk), set()) for chunk in range(count)]

    def _all_held(self, index: int, live: set[PeerId], needed: int) -> bool:
        """Whether the slice is published and each chunk has this many live holders."""
        holders = self._chunk_holders(index)
        return holders is not None and all(len(held & live) >= needed for held in holders)

    def _held_by(self, index: int, peers: set[PeerId]) -> bool:
        """Whether all of these peers hold every chunk of the slice."""
        holders = self._chunk_holders(index)
        return holders is not None and all(peers <= held for held in holders)


def _since(start_s: float, moment_s: float | None) -> float:
    """Seconds after PLAN to the millisecond, -1 for never or before."""
    return -1.0 if moment_s is None or moment_s < start_s else round(moment_s - start_s, 3)

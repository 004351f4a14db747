"""The coordinator's side of a gather op: who has published, who holds it, and what is committed.

A contribution is published by its contributor and by nobody else, so nothing is ever reassigned.
FREEZE names who has published, with what; COMMIT those of them whose contributions are held by
somebody else too. Whoever died before that is left out of COMMIT. As FREEZE keeps the signed roots,
a restarted coordinator goes on with what members hold of a contributor that has died meanwhile.
"""

from collections.abc import Set as AbstractSet

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.arrivals import SliceTry
from swarmtrain_transport.coordinator.decisions import Decision, Decisions
from swarmtrain_transport.coordinator.reports import Published, Report
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import num_chunks, result_root, slice_root
from swarmtrain_transport.ledger.gathered import NOTHING_SUMMED, content_name, outcome_of
from swarmtrain_transport.ledger.signed import are_hashes
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Hashes, Roots
from swarmtrain_transport.wire.records import Commit, Freeze, SignedRoot, Skip


class GatherOperation(Decisions):
    """One gather op in this term."""

    # ---- reports

    def hear(self, peer: PeerId, message: Report, now_s: float) -> Hashes | None:
        """As `Reports.hear`; nobody has parts of anybody here, and nothing but SLICE_DONE signs.

        Raises:
            RemoteFault: reason ``roots``: the peer has published two contributions.
        """
        if isinstance(message, Got | Roots):
            return None
        return super().hear(peer, message, now_s)

    def report_done(
        self, owner: PeerId, slice_try: SliceTry, published: Published
    ) -> Published | None:
        """A contributor has published; the answer is what to relay, None if it is not news.

        Raises:
            RemoteFault: reason ``roots``: it has published something else before.
        """
        index, hashes = slice_try[0], published.chunk_hashes
        if not self._is_owner(owner, slice_try) or owner in self.lost:
            return None
        root = slice_root(hashes)
        is_legal = (
            len(hashes) == num_chunks(self.view.plan, index)
            and are_hashes(hashes)
            and published.inputs == NOTHING_SUMMED
            and published.set_id == content_name(root)
        )
        if not is_legal:
            return None
        known, signed = self.published.get(slice_try), self.view.roots.get(owner)
        is_other = known is not None and known.chunk_hashes != hashes
        if is_other or (signed is not None and signed.root != root):
            raise RemoteFault("roots", "two contributions to one op are signed")
        if known is not None or (self.view.frozen is not None and signed is None):
            return None
        self._idle = None
        self.published[slice_try] = published
        self.arrivals.last_s[owner] = self._now_s
        self.arrivals.whole_s.setdefault(owner, self._now_s)
        self.report_have(owner, slice_try, published.set_id, (True,) * len(hashes))
        return published

    def report_have(
        self, peer: PeerId, slice_try: SliceTry, name: int, chunks: tuple[bool, ...]
    ) -> None:
        """A member holds verified chunks of what is named by its content."""
        index, attempt = slice_try
        if not 0 <= index < len(self.view.owners) or attempt != 0 or name != self._name(index):
            return
        if peer not in self.view.boots or peer in self.lost:
            return
        self._holds(peer, slice_try, chunks, num_chunks(self.view.plan, index))

    def owes(self, peer: PeerId, witnesses: AbstractSet[PeerId]) -> bool:
        """Never: who has published nothing by D_scatter is late, and nothing is owed before."""
        return False

    # ---- decisions

    def _decide(self, live: set[PeerId], now_s: float) -> Decision | None:
        plan = self.view.plan
        may_stay = [peer for peer in self.view.weights if self._may_stay(peer, live)]
        if now_s >= self.timers.end_s:
            return self._commit(live, now_s) or Skip(plan.op, "deadline")
        if len(may_stay) < plan.min_contributors:
            return Skip(plan.op, "too few contributors are left")
        if self.view.frozen is None:
            return self._freeze(live, now_s)
        return self._commit(live, now_s)

    def _may_stay(self, peer: PeerId, live: set[PeerId]) -> bool:
        """Whether a contribution may still be in the result: its contributor lives, or has left it
        with somebody."""
        is_frozen = self.view.frozen is not None
        if not is_frozen and peer in self.withdrawn:
            return False
        if self._name(self._index(peer)) is None:
            return peer in live and not is_frozen
        return peer in live or self._is_spread(peer, live)

    def _freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """Once all live contributors have published, or at D_scatter."""
        given = self._published_by()
        awaited = (self.view.weights.keys() & live) - given - self.withdrawn.keys()
        if awaited and now_s < self.timers.scatter_s:
            return None
        if len(given) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributions were published in time")
        return self._frozen(given, live)

    def _published_by(self) -> set[PeerId]:
        """Who has published what counts."""
        given = {peer for peer in self.view.weights if (self._index(peer), 0) in self.published}
        return given - self.withdrawn.keys()

    def _frozen(self, given: set[PeerId], live: set[PeerId]) -> Freeze:
        named = tuple(sorted(given))
        excluded = {
            peer: self._exclusion(peer, live) for peer in self.view.weights if peer not in given
        }
        roots = {peer: self._signed(peer) for peer in named}
        return Freeze(self.view.plan.op, named, excluded, roots=roots)

    def _signed(self, peer: PeerId) -> SignedRoot:
        published = self.published[self._index(peer), 0]
        return SignedRoot(slice_root(published.chunk_hashes), published.signature)

    def _exclusion(self, peer: PeerId, live: set[PeerId]) -> str:
        if peer in self.withdrawn:
            return self.withdrawn[peer]
        return "late" if peer in live else self._fault(peer)

    def _given(self, peer: PeerId) -> tuple[int, int]:
        """Who is left out has published nothing, so nobody has anything of it."""
        return 0, len(self.view.boots) - 1

    def _commit(self, live: set[PeerId], now_s: float) -> Decision | None:
        """Who is dead and held by nobody is left out at once; who lives, at D_gather if most others
        have come through. At D_op whatever is held enough is committed, if that is enough."""
        frozen = self.view.frozen
        if frozen is None:
            return None
        waiting_for = set(frozen) & live
        needed = min(limits.RESULT_HOLDERS, max(1, len(waiting_for)))
        is_late, is_over = now_s >= self.timers.gather_s, now_s >= self.timers.end_s
        spread = {peer for peer in frozen if self._is_spread(peer, live)}
        safe = {peer for peer in spread if self._all_held(self._index(peer), live, needed)}
        elsewhere = self._needed_elsewhere(waiting_for)
        common = {peer for peer in spread if self._is_spread(peer, live, elsewhere)}
        kept = spread | (set(frozen) & live)
        if is_late and 2 * len(common) > len(frozen):
            kept = common
        if is_over:
            kept = safe
        if len(kept) < max(1, self.view.plan.min_contributors) or not kept <= safe:
            return None
        is_all_held = all(self._held_by(self._index(one), waiting_for) for one in spread)
        if not is_late and not (waiting_for <= spread and is_all_held):
            return None
        return self._commit_of(kept, (waiting_for - common) | self._lacking(waiting_for))

    def _commit_of(self, kept: set[PeerId], behind: set[PeerId]) -> Commit:
        """COMMIT of what these have given; some were waited for in vain."""
        roots = self.view.roots
        commit = Commit(
            self.view.plan.op, self.view.plan_hash,
            tuple(peer for peer in self.view.frozen or () if peer in kept),
            outcome_of(self.view.owners, roots, kept), b"",
            tuple(roots[peer].signature if peer in kept else b"" for peer in self.view.owners),
            behind=tuple(sorted(behind)),
        )  # fmt: skip
        return msgspec.structs.replace(commit, result_root=result_root(commit))

    # ---- what follows from the reports

    @property
    def _num_published(self) -> int:
        return len(self.view.frozen or ())

    def _index(self, peer: PeerId) -> int:
        return self.view.owners.index(peer)

    def _name(self, index: int) -> int | None:
        """Names what a contributor has published, None if nothing counts."""
        if self.view.frozen is not None:
            signed = self.view.roots.get(self.view.owners[index])
            return content_name(signed.root) if signed is not None else None
        published = self.published.get((index, 0))
        return published.set_id if published is not None else None

    def _current(self, index: int) -> Published | None:
        return self.published.get((index, 0)) if self._name(index) is not None else None

    def _chunk_holders(self, index: int) -> list[set[PeerId]] | None:
        if self._name(index) is None:
            return None
        count = num_chunks(self.view.plan, index)
        return [self.holders.get((index, 0, chunk), set()) for chunk in range(count)]

    def _is_spread(self, peer: PeerId, live: set[PeerId], needed: int = 1) -> bool:
        """Return True if each chunk of a contribution is held by `needed` other live peers (by all
        if they are fewer), or by the contributor itself if nobody else is alive."""
        others = live - {peer}
        return self._all_held(self._index(peer), others or live, min(needed, len(others or live)))

"""The coordinator's side of a pair op: whose halves have crossed, and which pairs are committed.

Contributors publish as in a gather op, but what one gives goes to its partner alone. FREEZE names
who has published, and what. A pair is *whole* when each of the two has said that it holds all that
the other gave: then both can make their step, and a death changes nothing any more. COMMIT names
those who are in whole pairs. All others make the step of a group of one, so nobody waits for a
partner for longer than the op lasts, and nobody needs to be told anything of another pair.
"""

from swarmtrain_transport.coordinator.decisions import Decision
from swarmtrain_transport.coordinator.gather_operation import GatherOperation
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.ledger.pairing import contributors_of, pairs_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Hashes
from swarmtrain_transport.wire.records import Skip

Pair = tuple[PeerId, PeerId]


class PairOperation(GatherOperation):
    """One pair op in this term."""

    def __init__(self, view: OpView, now_s: float) -> None:
        super().__init__(view, now_s)
        self._pairs = pairs_in(contributors_of(view.plan))
        self._partners = dict(self._pairs) | {second: first for first, second in self._pairs}

    def concerns(self, peer: PeerId, news: Hashes) -> bool:
        """Only the contributor itself and its partner."""
        contributor = self.view.owners[news.slice_index]
        return peer in (contributor, self._partners.get(contributor))

    def report_lost(self, peer: PeerId) -> None:
        """The process that was planned is gone for good. What it has said that it holds stands: it
        was able to make its step, and its partner need not undo anything."""
        self._idle = None
        self.lost.add(peer)

    # ---- decisions

    def _decide(self, live: set[PeerId], now_s: float) -> Decision | None:
        plan = self.view.plan
        if self.view.frozen is None:
            return self._freeze(live, now_s)
        named = [pair for pair in self._pairs if set(pair) <= set(self.view.frozen)]
        whole = [pair for pair in named if self._is_whole(pair)]
        is_over = now_s >= self.timers.end_s
        is_late = is_over or now_s >= self.timers.gather_s
        open_pairs = [p for p in named if p not in whole and self._may_become_whole(p, live)]
        if 2 * len(whole + open_pairs) < plan.min_contributors:
            return Skip(plan.op, "too few pairs are left")
        if open_pairs and not is_late:
            return None
        if 2 * len(whole) >= plan.min_contributors:
            lacking = {taker for pair in open_pairs for taker in self._takers(pair)}
            return self._commit_of({peer for pair in whole for peer in pair}, lacking)
        return Skip(plan.op, "deadline") if is_over else None

    def _freeze(self, live: set[PeerId], now_s: float) -> Decision | None:
        """Once all have published who live and have a partner that has, or may still."""
        given = self._published_by()
        able = given | ((self.view.weights.keys() & live) - self.withdrawn.keys())
        hopeful = [pair for pair in self._pairs if set(pair) <= able]
        if 2 * len(hopeful) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few pairs are left")
        if now_s < self.timers.scatter_s and any(not set(pair) <= given for pair in hopeful):
            return None
        if 2 * sum(set(pair) <= given for pair in hopeful) < self.view.plan.min_contributors:
            return Skip(self.view.plan.op, "too few contributions were published in time")
        return self._frozen(given, live)

    def _exclusion(self, peer: PeerId, live: set[PeerId]) -> str:
        if peer not in self._partners:
            return "alone"
        return super()._exclusion(peer, live)

    def _given(self, peer: PeerId) -> tuple[int, int]:
        """Who is left out has published nothing; one peer would have had it."""
        return 0, int(peer in self._partners)

    @property
    def _num_awaited(self) -> int:
        """The odd one publishes nothing."""
        return len(self._partners)

    # ---- what follows from the reports

    @property
    def _num_published(self) -> int:
        """Its own half and its partner's."""
        return 2

    def _is_whole(self, pair: Pair) -> bool:
        """Whether each of the two holds all that the other gave."""
        first, second = pair
        return self._has_crossed(first, second) and self._has_crossed(second, first)

    def _takers(self, pair: Pair) -> set[PeerId]:
        """Return those of the two that have not said that they hold what the other gave."""
        first, second = pair
        crossings = ((first, second), (second, first))
        return {taker for giver, taker in crossings if not self._has_crossed(giver, taker)}

    def _has_crossed(self, giver: PeerId, taker: PeerId) -> bool:
        return self._held_by(self._index(giver), {taker})

    def _may_become_whole(self, pair: Pair, live: set[PeerId]) -> bool:
        """Whether who lacks its partner's half is alive, and the partner, who alone has it, too."""
        first, second = pair
        crossings = ((first, second), (second, first))
        missing = [two for two in crossings if not self._has_crossed(*two)]
        return all(set(two) <= live for two in missing)

"""Record of faults, made from the ledger: it says who is not counted on for a while.

Everything follows from records of ops that have ended, so a restarted coordinator knows it, and
every peer knows the same. A peer's *own* fault is what it says or leaves unsaid itself, or what
enough owners say of it (`matrix.voices_needed`); one owner's word is none. A peer that is at fault
again and again gives nothing for a while: nobody waits for it then. An owner at fault owns nothing
for a while, which costs its training nothing. And a word of one against the other is kept for the
pair: either may lie, so neither is blamed, but they are kept apart while others can stand in.

Pure, and bounded: what is old is forgotten, and no more pairs are kept than a full roster has.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.exclusion_rule import DIFFERS, UNREACHABLE, WITHDREW, voices_needed
from swarmtrain_transport.ledger.pairing import contributors_of, partner_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Plan,
    Reassign,
    Skip,
    SliceFreeze,
)

_ALONE = "alone"
"""The odd one of a pair op: FREEZE leaves it out, and nobody is at fault."""

BARRED = 3
"""Weight against an owner that is barred for its own faults; to be at odds with somebody weighs
less."""

_CONDUCTS_KEPT = 1024
"""Peers of whom `status` can tell how they have behaved: more than a roster has."""

_LATER = {"is_later": True}
"""See `fold.LATER`."""

Pair = tuple[PeerId, PeerId]
"""(contributor, owner): the owner says that the contributor's part is not there, or not legal."""


@dataclass(slots=True)
class Words:
    """Faults in one op so far, as the ledger tells them.

    Attributes:
        planned: number of contributors planned; in cells of a cell at most.
        first: the owners that PLAN names.
        cells: cells of the members.
        owners, attempts: current ones, per slice.
        is_whole: FREEZE settles slices with a later owner too (scalars).
        lacked: per contributor the owners that have lacked it, and in which way.
        relieved: owners that have lost a slice, and why.
        differed: owners that named a sum otherwise than one that has lost its slice by it.
        at_fault: peers left out or late by their own fault, with the reason.
        short: contributors of FREEZE that are missing in some slice.
    """

    planned: int
    first: frozenset[PeerId]
    owners: list[PeerId]
    attempts: list[int]
    is_whole: bool
    cells: Cells
    lacked: dict[PeerId, dict[PeerId, str]] = field(default_factory=dict)
    relieved: dict[PeerId, str] = field(default_factory=dict)
    differed: set[PeerId] = field(default_factory=set)
    at_fault: dict[PeerId, str] = field(default_factory=dict)
    short: set[PeerId] = field(default_factory=set)
    left_out: dict[PeerId, str] = field(default_factory=dict)
    _frozen: tuple[PeerId, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> "Words":
        """Right after PLAN."""
        owners = [spec.owner for spec in plan.slices]
        planned = -(-len(contributors_of(plan)) // plan.cells)
        attempts, cells = [0] * len(owners), Cells.in_plan(plan)
        return cls(planned, frozenset(owners), owners, attempts, bool(plan.scalars), cells)

    @property
    def settled_by_freeze(self) -> list[int]:
        """Slices whose contributors FREEZE decides, or would decide now."""
        return [i for i, attempt in enumerate(self.attempts) if self.is_whole or not attempt]

    @property
    def bar(self) -> int:
        """Words that make it a contributor's own fault, however few own something: by rates that
        they claim, or by quarrels, two could become the only owners of all."""
        return voices_needed(self.planned, self.planned - 1)

    def needed(self, peer: PeerId) -> int:
        """Return how many words leave this contributor out."""
        cell = self.cells.cell_of(peer)
        able = ({*self.cells.among(self.first, cell)} | self.against(peer)) - {peer}
        return voices_needed(self.planned, len(able))

    def against(self, peer: PeerId) -> set[PeerId]:
        """Owners whose word counts against a contributor: not those that lacked most of all."""
        said = self.lacked.get(peer, {})
        return {owner for owner in said if self.relieved.get(owner) != UNREACHABLE}

    def apply(self, body: Reassign | Freeze | SliceFreeze | Skip) -> None:
        """Fold one legal decision of the op."""
        if isinstance(body, Reassign):
            owner = self.owners[body.slice_index]
            if body.reason == DIFFERS:
                self.differed |= body.lacked.keys()
            else:
                self._lacks(owner, body.lacked)
            self.relieved[owner] = body.reason
            self.owners[body.slice_index] = body.owner
            self.attempts[body.slice_index] = body.attempt
        elif isinstance(body, SliceFreeze):
            self._lacks(self.owners[body.slice_index], body.lacked)
            self.short |= set(self._frozen) - set(body.contributors)
            for peer in body.lacked:
                if len(self.against(peer)) >= self.bar:
                    self.at_fault.setdefault(peer, "late")
        else:
            if isinstance(body, Freeze):
                self._frozen = body.contributors
            self.left_out |= body.excluded
            for peer, reason in body.excluded.items():
                said = body.accusers.get(peer, ())
                is_own = not said or len(said) >= self.bar
                if is_own and reason != _ALONE:
                    self.at_fault[peer] = reason
                self._accused(peer, reason, said)

    def _lacks(self, owner: PeerId, lacked: Mapping[PeerId, str]) -> None:
        for peer, word in lacked.items():
            if peer != owner:
                self.lacked.setdefault(peer, {})[owner] = word

    def _accused(self, peer: PeerId, reason: str, owners: Iterable[PeerId]) -> None:
        for owner in owners:
            self.lacked.setdefault(peer, {}).setdefault(owner, reason)


@dataclass(slots=True)
class Score:
    """Faults of one peer in one part that it plays.

    Attributes:
        points: FAULT_POINTS per fault, less one for each op that went well.
        rounds: length of the next bar.
        until: last op of the bar.
        last: op of its newest fault.
    """

    points: int = 0
    rounds: int = 1
    until: int = -1
    last: int = -1

    def fault(self, op: int, *, is_fatal: bool = False) -> None:
        """Count a fault in an op; a fatal one, for which the op was skipped, bars at once."""
        self.last = op
        self.points += limits.BARRED_POINTS if is_fatal else limits.FAULT_POINTS
        if self.points >= limits.BARRED_POINTS:
            self.until = op + self.rounds
            self.rounds = min(limits.BARRED_ROUNDS_MAX, 2 * self.rounds)
            self.points = limits.PROBATION_POINTS

    def good(self) -> None:
        """An op went well."""
        self.points = max(0, self.points - 1)
        if not self.points:
            self.rounds = 1


@dataclass(slots=True)
class Odds:
    """Dispute between two peers.

    Attributes:
        rounds: rounds for which they were kept apart last; 0 after a first word.
        until: last op for which they are kept apart.
        last: op of the newest word.
    """

    rounds: int = 0
    until: int = -1
    last: int = -1

    def word(self, op: int) -> None:
        """Hear once more that the other's part is not there."""
        if self.last >= 0:
            self.rounds = min(limits.BARRED_ROUNDS_MAX, max(limits.ODDS_ROUNDS, 2 * self.rounds))
            self.until = op + self.rounds
        self.last = op


@dataclass(slots=True)
class Lateness:
    """Time of the last hour for which a group has waited for its peers, in milliseconds.

    After a span of time all earlier waiting is multiplied by the hour over the hour plus that span:
    in whole numbers, so that everybody has the same.

    Attributes:
        run: the hour itself, less while the run is younger.
        of: waits for each peer, beyond what most needed; the newest behind.
    """

    run: int = field(default=0, metadata=_LATER)
    of: dict[PeerId, int] = field(default_factory=dict, metadata=_LATER)

    def passed(self, took: int, waited: Mapping[PeerId, int]) -> None:
        """Count an op that took so long since the one before."""
        hour = 1000 * limits.LATE_WINDOW_S
        self.run = self.run * hour // (hour + took) + took
        self.of = {
            peer: left for peer, ms in self.of.items() if (left := ms * hour // (hour + took))
        }
        self.waited(waited)

    def waited(self, waited: Mapping[PeerId, int]) -> None:
        """Add for how long some were waited for."""
        for peer, ms in waited.items():
            self.of[peer] = self.of.pop(peer, 0) + ms
        _shorten(self.of, _CONDUCTS_KEPT)

    def seconds(self, peer: PeerId) -> float:
        """Return for how long the others have waited for a peer."""
        return self.of.get(peer, 0) / 1000

    def is_beyond(self, peer: PeerId) -> bool:
        """Return True if the others have waited for a peer for more than its share."""
        share = max(1000 * limits.LATE_LEAST_S, limits.LATE_SHARE * self.run)
        return self.of.get(peer, 0) > share

    def unawaited(self, present: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those present for whom nobody waits: the worst that are beyond their share, as
        long as most remain. Of two it is one."""
        beyond = [peer for peer in present & self.of.keys() if self.is_beyond(peer)]
        worst = sorted(beyond, key=lambda peer: (-self.of[peer], peer))
        return set(worst[: len(present) - 1 if len(present) < 3 else (len(present) - 1) // 2])


@dataclass(slots=True)
class Conduct:
    """Counts of how often a contributor was left out, per reason, and of whose words there were
    against it, whatever they have cost it. For people."""

    left_out: Counter[str] = field(default_factory=Counter)
    accused_by: Counter[PeerId] = field(default_factory=Counter)


@dataclass(slots=True)
class Standing:
    """The fold of all ops that have ended.

    Attributes:
        contributors, owners: scores of who was at fault in this part.
        pairs: words between contributors and owners.
        conducts: peers' conduct, the one heard of last behind.
        lateness: time for which the others have waited for whom.
        vain_ops: SKIPs since the last COMMIT that came because some were missing.
        failed: those who were missing in the last of them.
    """

    contributors: dict[PeerId, Score] = field(default_factory=dict)
    owners: dict[PeerId, Score] = field(default_factory=dict)
    pairs: dict[Pair, Odds] = field(default_factory=dict)
    conducts: dict[PeerId, Conduct] = field(default_factory=dict)
    _is_mutual: bool = False
    lateness: Lateness = field(default_factory=Lateness, metadata=_LATER)
    vain_ops: int = field(default=0, metadata=_LATER)
    failed: list[PeerId] = field(default_factory=list, metadata=_LATER)

    # ---- the fold

    def ended(
        self, plan: Plan, words: Words, outcome: Commit | Skip, newest: int | None = None
    ) -> None:
        """An op has its outcome.

        Args:
            plan, words, outcome: those of the op.
            newest: the newest op that is planned: what follows begins after it; this op where
                none are under way at once.
        """
        op = plan.op if newest is None else newest
        self._is_mutual = plan.kind == PAIR
        given = contributors_of(plan)
        blamed = outcome.blamed.keys() if isinstance(outcome, Skip) else set[PeerId]()
        at_fault = dict(words.at_fault)
        lacked = {peer: dict(said) for peer, said in words.lacked.items()}
        if isinstance(outcome, Commit):
            for peer in outcome.behind:
                partner = partner_in(given, peer) if self._is_mutual else None
                if partner is None:
                    at_fault.setdefault(peer, "behind")
                else:  # one peer's word on the other
                    lacked.setdefault(partner, {})[peer] = "absent"
        for peer in given:
            if peer in at_fault:
                self.contributors.setdefault(peer, Score()).fault(op)
            elif isinstance(outcome, Commit) and peer in outcome.contributors:
                self._went_well(self.contributors, peer, is_good=peer not in words.short)
        late = set(outcome.late) & set(words.owners) if isinstance(outcome, Commit) else set()
        self._owned(op, words, blamed, late, is_committed=isinstance(outcome, Commit))
        self._at_odds(op, lacked, at_fault)
        self._noted(words, lacked)
        self._in_vain(outcome)
        self._forget(plan.op)
        self.lateness.passed(outcome.took, outcome.waited)

    def _owned(
        self,
        op: int,
        words: Words,
        blamed: AbstractSet[PeerId],
        late: AbstractSet[PeerId],
        *,
        is_committed: bool,
    ) -> None:
        for peer in sorted(blamed):
            self.owners.setdefault(peer, Score()).fault(op, is_fatal=True)
        at_fault = words.relieved.keys() | words.differed | late
        for peer in sorted(at_fault - blamed):
            self.owners.setdefault(peer, Score()).fault(op)
        for peer in set(words.owners) - at_fault:
            self._went_well(self.owners, peer, is_good=is_committed)

    def _at_odds(
        self,
        op: int,
        lacked: Mapping[PeerId, Mapping[PeerId, str]],
        at_fault: Collection[PeerId],
    ) -> None:
        """Words of one against the other; who is at fault itself is neither accused by one more,
        nor a witness."""
        for contributor, said in lacked.items():
            for owner in said:
                if contributor not in at_fault and owner not in at_fault:
                    odds = self.pairs.pop((contributor, owner), None) or Odds()
                    odds.word(op)
                    self.pairs[contributor, owner] = odds

    @staticmethod
    def _went_well(scores: dict[PeerId, Score], peer: PeerId, *, is_good: bool) -> None:
        if is_good and peer in scores:
            scores[peer].good()

    def _noted(self, words: Words, lacked: Mapping[PeerId, Mapping[PeerId, str]]) -> None:
        for peer in sorted(words.left_out.keys() | lacked.keys()):
            conduct = self.conducts.pop(peer, None) or Conduct()
            self.conducts[peer] = conduct
            if peer in words.left_out:
                conduct.left_out[words.left_out[peer]] += 1
            conduct.accused_by.update(lacked.get(peer, {}).keys())
            _shorten(conduct.left_out, limits.CELL_PEERS_MAX)
            _shorten(conduct.accused_by, limits.CELL_PEERS_MAX)
        _shorten(self.conducts, _CONDUCTS_KEPT)

    def _in_vain(self, outcome: Commit | Skip) -> None:
        """Count SKIPs since the last COMMIT for want of some, and note of whom in the last one.
        Whoever has withdrawn says so early, and wastes nobody's time."""
        out = outcome.excluded if isinstance(outcome, Skip) else {}
        self.failed = sorted(peer for peer, why in out.items() if not why.startswith(WITHDREW))
        self.vain_ops = 0 if isinstance(outcome, Commit) else self.vain_ops + bool(self.failed)

    def _forget(self, op: int) -> None:
        """Drop what happened long ago, and the oldest disputes beyond `limits.ODDS_KEPT`."""
        long_ago = op - limits.BARRED_ROUNDS_MAX
        for scores in (self.contributors, self.owners):
            for peer in [p for p, s in scores.items() if max(s.last, s.until) < long_ago]:
                del scores[peer]
        for pair in [p for p, odds in self.pairs.items() if max(odds.last, odds.until) < long_ago]:
            del self.pairs[pair]
        _shorten(self.pairs, limits.ODDS_KEPT)

    def rewound(self, op: int) -> None:
        """Ops after this one are cancelled and their numbers come again; faults stay faults."""
        most = op + limits.BARRED_ROUNDS_MAX
        for score in (*self.contributors.values(), *self.owners.values()):
            score.last, score.until = min(score.last, max(0, op)), min(score.until, most)
        for odds in self.pairs.values():
            odds.last, odds.until = min(odds.last, max(0, op)), min(odds.until, most)

    # ---- what follows from it

    def barred_until(self, peer: PeerId, op: int) -> int:
        """The last op to which the peer gives nothing for its own faults; -1 if it may now."""
        return _until(self.contributors, peer, op)

    def owns_nothing_until(self, peer: PeerId, op: int) -> int:
        """The last op in which the peer should own nothing for faults as owner; -1 if it may."""
        return _until(self.owners, peer, op)

    def at_odds_with(self, peer: PeerId, op: int) -> set[PeerId]:
        """Return those with whom the peer is kept apart in this op, as contributor or as owner."""
        apart = [pair for pair, odds in self.pairs.items() if odds.until >= op and peer in pair]
        return {other for pair in apart for other in pair} - {peer}

    def barred(self, op: int, present: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those present that give nothing to this op for their own faults."""
        faulty = self.contributors.keys() & present
        return {peer for peer in faulty if self.barred_until(peer, op) >= 0}

    def apart(self, op: int) -> dict[PeerId, set[PeerId]]:
        """Return with whom each should be no pair in this op."""
        apart: dict[PeerId, set[PeerId]] = {}
        for (one, other), odds in self.pairs.items():
            if odds.until >= op:
                apart.setdefault(one, set()).add(other)
                apart.setdefault(other, set()).add(one)
        return apart

    def sidelined(self, op: int, present: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those present that give nothing to this op: the barred, and contributors that
        enough of the others have accused lately (T1)."""
        barred = self.barred(op, present)
        able = present - barred
        accusers: dict[PeerId, set[PeerId]] = {}
        for pair, odds in self.pairs.items():
            if max(odds.until, odds.last + limits.WORD_ROUNDS) < op or not able >= set(pair):
                continue
            contributor, owner = pair
            accusers.setdefault(contributor, set()).add(owner)
            if self._is_mutual:
                accusers.setdefault(owner, set()).add(contributor)
        needed = voices_needed(len(able), len(able) - 1)
        return barred | {peer for peer, said in accusers.items() if len(said) >= needed}

    def pause_s(self, gives: AbstractSet[PeerId]) -> float:
        """Return for how long after the last PLAN the next one waits if just these gave to it: a
        while that grows if somebody is among them for want of whom the last op was skipped."""
        over = self.vain_ops - limits.VAIN_OPS
        if over < 0 or gives.isdisjoint(self.failed):
            return 0.0
        return float(min(limits.VAIN_PAUSE_MAX_S, limits.VAIN_PAUSE_S * (1 << min(over, 16))))

    def unfit(self, op: int, members: Collection[PeerId]) -> dict[PeerId, int]:
        """Return a weight against each of these that should own nothing in this op: most for own
        faults and lateness, less for an owner that lacks somebody, least for the contributor that
        it lacks."""
        against = {peer: BARRED * (self.owns_nothing_until(peer, op) >= 0) for peer in members}
        for peer in self.lateness.unawaited(against.keys()):
            against[peer] += BARRED
        for peer in members:
            against[peer] += BARRED * (self.barred_until(peer, op) >= 0)
        for (contributor, owner), odds in self.pairs.items():
            if odds.until >= op and contributor in against and owner in against:
                against[owner] += 2
                against[contributor] += 1
        return {peer: weight for peer, weight in against.items() if weight}


def in_words(lateness: Lateness, peer: PeerId) -> str:
    """Say for how long the others have waited for a peer, as a clause."""
    share = 100 * lateness.of.get(peer, 0) // max(1, lateness.run)
    return (
        f"the others have waited {lateness.seconds(peer):.0f} s for it within the last hour, "
        f"{share} % of their time"
    )


def _shorten(kept: dict[Any, Any], most: int) -> None:
    """Drop the oldest entries of a dict."""
    while len(kept) > most:
        del kept[next(iter(kept))]


def _until(scores: Mapping[PeerId, Score], peer: PeerId, op: int) -> int:
    score = scores.get(peer)
    return score.until if score is not None and score.until >= op else -1

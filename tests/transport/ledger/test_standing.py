"""Tests of the ledger's memory: a peer's own faults bar it for a while, one's word against another
keeps the two apart, and all of it is forgotten when it is long ago."""

from typing import Any

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.standing import Score, Words
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Member,
    Plan,
    Reassign,
    Rewind,
    Skip,
    SliceFreeze,
)
from tests.transport.rig import BOOT, A, B, C, Chain, D, E, begun_chain, commit_of

FIVE = (A, B, C, D, E)
MOST = limits.BARRED_ROUNDS_MAX


class History(Chain):
    """A run of five whose ops go as they are told to."""

    def __init__(self, peers: tuple[PeerId, ...] = FIVE) -> None:
        super().__init__()
        self.peers = peers
        for record in begun_chain(peers, 8 * len(peers)).records:
            self.view.apply(record, self.ledger.append(record))
            self.records.append(record)

    @property
    def op(self) -> int:
        return self.view.first.last_op

    def begin(self, *, without: tuple[PeerId, ...] = ()) -> Plan:
        """PLAN; some are receivers only."""
        members = tuple(Member(peer, BOOT, int(peer not in without)) for peer in self.peers)
        plan = self.plan(self.peers, members=members)
        self.add(plan)
        return plan

    def freeze(
        self, excluded: dict[PeerId, str], accusers: dict[PeerId, Any] | None = None
    ) -> None:
        stays = tuple(peer for peer in self.peers if peer not in excluded)
        self.add(Freeze(self.op + 1, stays, excluded, accusers=accusers or {}))

    def end(self, *behind: PeerId) -> None:
        op = self.view.first.in_progress
        assert op is not None
        if op.frozen is None:
            self.freeze({})
        body = commit_of(op)
        self.add(Commit(body.op, body.plan_hash, body.contributors, body.slices, b"", (), behind))

    def good(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.begin()
            self.end()

    def excludes(self, peer: PeerId, reason: str = "late", *accusers: PeerId) -> None:
        self.begin()
        self.freeze({peer: reason}, {peer: accusers} if accusers else {})
        self.end()

    def dispute(self, contributor: PeerId, owner: PeerId, word: str = "absent") -> None:
        """One owner's word, and its slice goes to somebody else."""
        self.begin()
        index = self.peers.index(owner)
        other = next(peer for peer in self.peers if peer not in (owner, contributor))
        self.add(Reassign(self.op + 1, index, 1, other, "at odds", {contributor: word}))
        self.freeze({})
        self.add(SliceFreeze(self.op + 1, index, 1, self.peers))
        self.end()

    def sidelined(self) -> set[PeerId]:
        return self.view.first.standing.sidelined(self.op + 1, set(self.peers))

    def unfit(self) -> dict[PeerId, int]:
        return self.view.first.standing.unfit(self.op + 1, self.peers)


# ---- own faults


@pytest.mark.parametrize("reason", ["late", "idle", "deaf", "roots", "lost", "withdrew:nonfinite"])
def test_three_faults_in_a_row_bar_for_one_round_and_the_next_one_for_two(reason: str) -> None:
    run = History()
    for _ in range(2):
        run.excludes(B, reason)
        assert run.sidelined() == set()
    run.excludes(B, reason)
    assert run.sidelined() == {B}
    barred = []
    for _ in range(7):
        start = run.op
        while B in run.sidelined():
            run.begin(without=(B,))
            op = run.view.first.in_progress
            assert op is not None
            run.add(Freeze(op.plan.op, tuple(p for p in FIVE if p != B), {}))
            run.end()
        barred.append(run.op - start)
        run.excludes(B, reason)
    assert barred == [1, 2, 4, 8, 16, 32, 64]
    assert run.view.first.standing.barred_until(B, run.op + 1) == run.op + MOST


def test_who_is_at_fault_once_in_five_is_not_barred_and_oftener_it_is() -> None:
    score = Score()
    for op in range(1, 400):
        score.fault(op) if op % 5 == 0 else score.good()
    assert score.until < 0
    often = Score()
    for op in range(1, 60):
        often.fault(op) if op % 4 == 0 else often.good()
    assert often.until > 0


def test_nothing_is_left_of_faults_after_as_many_good_ops_as_they_weigh() -> None:
    run = History()
    for _ in range(3):
        run.excludes(B)
    run.good(limits.PROBATION_POINTS)
    assert run.view.first.standing.contributors[B].rounds == 1
    assert run.view.first.standing.contributors[B].points == 0


def test_to_be_left_out_on_too_few_words_is_nobodys_fault() -> None:
    run = History()
    for _ in range(6):
        run.excludes(B, "refused:scale", A, C)
        assert B not in run.view.first.standing.contributors
    for _ in range(3):
        run.excludes(D, "refused:scale", A, B, C)
    assert D in run.sidelined()


def test_who_is_missing_in_a_repaired_slice_by_enough_words_is_at_fault() -> None:
    run = History()
    run.begin()
    op = run.op + 1
    for attempt, owner in ((1, B), (2, C)):
        run.add(Reassign(op, 0, attempt, owner, "at odds", {E: "absent"}))
    run.freeze({})
    run.add(SliceFreeze(op, 0, 2, (A, B, C, D), {E: "absent"}))
    run.end()
    assert run.view.first.standing.contributors[E].points == limits.FAULT_POINTS
    assert not run.view.first.standing.pairs, "it was not one owner's word"


def test_commit_that_has_not_waited_for_somebody_is_its_fault() -> None:
    run = History()
    for _ in range(3):
        run.begin()
        run.end(D)
    assert run.sidelined() == {D}


def test_an_owner_that_does_not_publish_owns_nothing_and_goes_on_giving() -> None:
    run = History()
    for _ in range(3):
        run.begin()
        run.freeze({})
        run.add(Reassign(run.op + 1, 1, 1, A, "owner silent"))
        run.add(SliceFreeze(run.op + 1, 1, 1, FIVE))
        run.end()
    assert run.sidelined() == set()
    assert set(run.unfit()) == {B}
    assert run.view.first.standing.owns_nothing_until(B, run.op + 1) == run.op + 1
    run.good(2)
    assert run.unfit() == {}


def test_an_op_that_was_skipped_for_somebody_bars_at_once() -> None:
    run = History()
    run.begin()
    run.freeze({})
    run.add(Skip(run.op + 1, "deadline", {B: "owner silent", C: "owner alone has it"}))
    assert set(run.unfit()) == {B, C}


def skips_for(run: History, peer: PeerId, *accusers: PeerId) -> None:
    run.begin()
    said = {peer: accusers} if accusers else {}
    run.add(Skip(run.op + 1, "too few", excluded={peer: "refused:scale"}, accusers=said))


@pytest.mark.parametrize("accusers", [(), (A, C, D)])
def test_who_leaves_too_few_for_an_op_is_at_fault_as_if_it_had_been_frozen(
    accusers: tuple[PeerId, ...],
) -> None:
    run = History()
    for _ in range(3):
        assert run.sidelined() == set()
        skips_for(run, B, *accusers)
    assert run.sidelined() == {B}
    skips_for(run, B, *accusers)
    assert run.view.first.standing.barred_until(B, run.op + 1) == run.op + 2


def test_too_few_words_make_a_skip_nobodys_fault() -> None:
    run = History()
    for _ in range(4):
        skips_for(run, B, A, C)
    assert run.view.first.standing.contributors == {}
    assert run.view.first.standing.at_odds_with(B, run.op + 1) == {A, C}


def test_ops_in_vain_in_a_row_put_the_next_off_if_it_needs_the_same_again() -> None:
    run = History()
    for _ in range(limits.VAIN_OPS):
        assert run.view.first.standing.pause_s({B}) == 0.0
        skips_for(run, B)
    assert run.view.first.standing.pause_s({B, C}) == limits.VAIN_PAUSE_S
    assert run.view.first.standing.pause_s({A, C}) == 0.0
    for _ in range(20):
        skips_for(run, B)
    assert run.view.first.standing.pause_s({B}) == limits.VAIN_PAUSE_MAX_S
    run.begin()
    run.add(Skip(run.op + 1, "too few", excluded={B: "withdrew:above-window"}))
    assert run.view.first.standing.pause_s({B}) == 0.0  # its own early word wastes nobody's time
    run.good()
    assert run.view.first.standing.pause_s({B}) == 0.0


# ---- words of one against the other


def test_two_words_in_eight_rounds_part_the_two_and_either_owns_nothing() -> None:
    run = History()
    run.dispute(B, A)
    assert run.unfit() == {} and run.sidelined() == set()
    run.good(limits.ODDS_ROUNDS - 2)
    run.dispute(B, A)
    unfit = run.unfit()
    assert set(unfit) == {A, B} and unfit[A] > unfit[B], "it is the owner that must be another"
    assert run.sidelined() == set(), "one owner's word never bars"
    assert run.view.first.standing.at_odds_with(B, run.op + 1) == {A}
    run.good(limits.ODDS_ROUNDS)
    assert run.unfit() == {}
    run.dispute(B, A)
    run.good(2 * limits.ODDS_ROUNDS - 1)
    assert set(run.unfit()) == {A, B}


def test_an_owner_that_says_it_of_one_after_the_other_owns_nothing_at_last() -> None:
    run = History()
    for victim in (B, C, D):
        run.dispute(victim, A)
    assert set(run.unfit()) == {A}
    assert run.sidelined() == set()


def test_a_contributor_of_whom_most_have_the_same_to_say_is_a_receiver() -> None:
    run = History()
    run.dispute(E, A)
    run.dispute(E, B)
    assert run.sidelined() == set()
    run.dispute(E, C)
    assert run.sidelined() == {E}
    run.good(limits.WORD_ROUNDS - 2)
    assert run.sidelined() == set()


def test_partners_that_do_not_say_that_they_have_the_others_half_are_at_odds() -> None:
    peers = (A, B, C, D, E)
    run = History()
    standing = run.view.first.standing
    for number, partner in enumerate((B, C, D), start=1):
        order = (A, partner, *(p for p in peers if p not in (A, partner)))
        members = tuple(Member(peer, BOOT, 1) for peer in order)
        plan = run.plan(order, members=members, op=number, kind=PAIR)
        standing.ended(plan, Words.of(plan), Commit(number, b"", peers[2:4], (), b"", (), (A,)))
    assert standing.sidelined(4, set(peers)) == {A}
    assert not standing.contributors


def test_who_is_at_fault_itself_is_no_witness() -> None:
    run = History()
    for _ in range(2):
        run.begin()
        run.add(Reassign(run.op + 1, 0, 1, C, "at odds", {B: "absent"}))
        run.freeze({A: "late"})
        run.add(SliceFreeze(run.op + 1, 0, 1, (B, C, D, E)))
        run.end()
    assert run.view.first.standing.pairs == {}


# ---- bounds


def test_what_is_long_ago_is_forgotten() -> None:
    run = History()
    run.dispute(B, A)
    run.excludes(C)
    standing = run.view.first.standing
    assert standing.pairs and standing.contributors
    run.good(MOST + 2)
    assert not standing.pairs and not standing.contributors and not standing.owners
    assert set(standing.conducts) == {B, C}, "people may still ask"


def test_what_a_rewind_cancels_lasts_no_longer_for_it() -> None:
    run = History()
    run.good(60)
    for _ in range(3):
        run.excludes(B)
    run.add(Rewind(2, "nobody has it"))
    assert run.view.first.standing.barred_until(B, 3) <= 2 + MOST


def test_conduct_says_how_often_and_by_whom() -> None:
    run = History()
    run.dispute(B, A, "refused:scale")
    run.excludes(B, "late", A, C, D)
    run.excludes(B)
    conduct = run.view.first.standing.conducts[B]
    assert conduct.left_out == {"late": 2}
    assert conduct.accused_by == {A: 2, C: 1, D: 1}


def test_a_restart_remembers_all_of_it() -> None:
    run = History()
    for _ in range(3):
        run.excludes(B)
        run.dispute(C, A)
    again = LedgerView()
    ledger = Chain().ledger
    for record in run.records:
        again.apply(record, ledger.append(record))
    assert again.first.standing == run.view.first.standing


def test_an_owner_that_others_have_waited_for_is_at_fault_as_owner() -> None:
    run = History((A, B, C, D))
    for _ in range(3):
        run.begin()
        run.freeze({})
        op = run.view.first.in_progress
        assert op is not None
        run.add(msgspec.structs.replace(commit_of(op), late=(D, b"nobody")))
    assert run.view.first.standing.owns_nothing_until(D, run.op + 1) == run.op + 1
    assert set(run.view.first.standing.owners) == {D} and not run.view.first.standing.contributors


def test_two_who_own_all_that_others_own_do_not_make_a_third_be_at_fault() -> None:
    """They may claim to be much faster than the others, or see to it that these own nothing."""
    run = History()
    slices = tuple(
        msgspec.structs.replace(spec, owner=owner)
        for spec, owner in zip(run.plan(FIVE).slices, (D, E, D, E, C), strict=True)
    )
    for _ in range(3):
        run.add(run.plan(FIVE, slices=slices))
        run.freeze({C: "refused:scale"}, {C: (D, E)})
        run.end()
    standing, op = run.view.first.standing, run.op + 1
    assert standing.sidelined(op, set(FIVE)) == set()
    assert {D, E} <= {peer for peer, weight in standing.unfit(op, FIVE).items() if weight}


def test_who_is_kept_apart_is_known_from_either_side_for_as_long_as_it_lasts() -> None:
    run = History()
    run.dispute(A, B)
    assert run.view.first.standing.apart(run.op + 1) == {}
    run.dispute(A, B)
    assert run.view.first.standing.apart(run.op + 1) == {A: {B}, B: {A}}
    assert run.view.first.standing.apart(run.op + limits.ODDS_ROUNDS + 1) == {}

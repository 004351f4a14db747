"""Decisions of a coordinator in a pair op, at every point at which somebody may die."""

import itertools

import pytest

from swarmtrain_transport.coordinator.ops.timers import Pace
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import result_root, slice_root
from swarmtrain_transport.wire.messages import Hashes, Withdraw
from swarmtrain_transport.wire.records import Commit, Freeze, Skip
from tests.transport.coordinator.ops.gather_table import (
    DEADLINE_S,
    GATHER_S,
    SCATTER_S,
    hashes_of,
    published_by,
)
from tests.transport.coordinator.ops.pair_table import pair_table
from tests.transport.rig import BOOT, A, B, C, D, E

# ---- who hears of it


def test_only_the_contributor_and_its_partner_hear_of_what_it_has_published():
    op = pair_table(A, B, C, D, E)
    (news,) = op.publish(C)
    assert isinstance(news, Hashes)
    assert [peer for peer in (A, B, C, D, E) if op.op.reports.concerns(peer, news)] == [C, D]


def test_who_comes_back_is_told_of_its_own_pair_only():
    op = pair_table()
    op.publish(A, B, C, D)
    told = op.op.reports.returned(A, BOOT)
    assert sorted(news.slice_index for news in told) == [0, 1]
    assert op.op.reports.returned(A, b"another process") == []


# ---- FREEZE


def test_freeze_waits_for_both_of_every_pair_that_may_still_come_about():
    op = pair_table()
    op.publish(A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None
    op.publish(D)
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B, C, D), {})


def test_the_odd_one_is_not_waited_for_and_the_ledger_says_that_it_was_alone():
    op = pair_table(A, B, C)
    op.publish(A, B)
    freeze = op.decide(1.0)
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B), {C: "alone"})
    assert (freeze.times[C].complete, freeze.times[C].owners) == (0, 0)


def test_who_has_lost_its_partner_is_not_waited_for_unless_that_one_had_published():
    op = pair_table()
    op.publish(A, B)
    op.lose(D)
    freeze = op.decide(1.0)
    assert isinstance(freeze, Freeze)
    assert freeze.excluded == {C: "late", D: "lost"}, "nobody waits for C: it has no partner left"
    other = pair_table()
    other.publish(A, B, D)
    other.lose(D)
    assert other.decide(1.0) is None, "C may still take what D has published"


def test_who_has_published_nothing_at_d_scatter_is_late():
    op = pair_table()
    op.publish(A, B, C)
    freeze = op.decide(SCATTER_S)
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B, C), {D: "late"})


def test_who_withdraws_is_left_out_and_its_partner_not_waited_for():
    op = pair_table()
    op.op.reports.hear(D, Withdraw(op.view.plan_id, "nonfinite"), 0.0)
    op.publish(A, B)
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert freeze.excluded == {C: "late", D: "withdrew:nonfinite"}


def test_the_op_is_skipped_at_once_when_no_pair_can_come_about_any_more():
    op = pair_table()
    op.publish(A)
    op.lose(B, C)
    lost = {B: "lost", C: "lost"}
    assert op.decide(1.0) == Skip(1, "too few pairs are left", excluded=lost)


def test_the_op_is_skipped_at_d_scatter_when_too_few_have_published():
    op = pair_table(min_contributors=4)
    op.publish(A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None
    reason = "too few contributions were published in time"
    assert op.decide(SCATTER_S) == Skip(1, reason, excluded={D: "late"})


def test_two_contributions_of_one_peer_are_refused():
    op = pair_table()
    op.publish(A)
    with pytest.raises(RemoteFault, match="two contributions"):
        op.publish(A, version=1)


# ---- COMMIT


def test_a_pair_is_whole_when_each_holds_what_the_other_gave():
    op = pair_table()
    op.frozen()
    op.cross(A, B)
    op.have(C, D)
    op.have(D, C, flags=(True, False))
    assert op.decide(GATHER_S - 0.01) is None
    op.have(D, C)
    commit = op.decide()
    assert isinstance(commit, Commit)
    assert commit.contributors == (A, B, C, D)
    assert [one.root for one in commit.slices] == [
        slice_root(hashes_of(op.view, peer)) for peer in (A, B, C, D)
    ]
    assert commit.signatures == tuple(published_by(op.view, p).signature for p in (A, B, C, D))
    assert commit.result_root == result_root(commit)


def test_what_others_hold_makes_no_pair_whole():
    op = pair_table()
    op.frozen()
    op.cross(C, D)
    op.have(A, C, D)
    op.have(C, A, B)
    op.have(D, A, B)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.committed(GATHER_S) == (C, D)


@pytest.mark.parametrize("crossed", [(), ((A, B),), ((B, A),)])
def test_a_death_before_the_pair_is_whole_leaves_both_alone(crossed):
    for dead in (A, B):
        op = pair_table()
        op.frozen()
        op.cross(C, D)
        for taker, giver in crossed:
            op.have(taker, giver)
        op.lose(dead)
        commit = op.decide(1.0)
        assert isinstance(commit, Commit)
        assert commit.contributors == (C, D)
        assert [one.contributors for one in commit.slices] == [(), (), (C,), (D,)]
        assert (commit.slices[0].root, commit.signatures[0]) == (b"", b"")


def test_a_death_after_the_pair_is_whole_changes_nothing():
    for how in ("silent", "lost"):
        op = pair_table()
        op.frozen()
        op.cross(A, B)
        op.have(C, D)
        op.lose(A)
        if how == "lost":
            op.op.reports.lose(A)
        assert op.decide(1.0) is None, "C and D may still become whole"
        op.have(D, C)
        assert op.committed() == (A, B, C, D)


def test_a_live_pair_is_waited_for_until_d_gather():
    op = pair_table()
    op.frozen()
    op.cross(A, B)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.committed(GATHER_S) == (A, B)


def test_commit_names_who_has_not_said_that_it_holds_its_partners_half():
    op = pair_table(A, B, C, D)
    op.frozen()
    op.cross(A, B)
    op.have(C, D)
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit) and commit.behind == (D,)


def test_with_too_few_whole_pairs_at_d_gather_the_others_have_until_d_op():
    op = pair_table(min_contributors=4)
    op.frozen()
    op.cross(A, B)
    assert op.decide(GATHER_S) is None
    op.cross(C, D)
    assert op.committed() == (A, B, C, D)
    late = pair_table(min_contributors=4)
    late.frozen()
    late.cross(A, B)
    assert late.decide(DEADLINE_S - 0.01) is None
    late_ones = {C: "late", D: "late"}
    skip = Skip(1, "deadline", excluded=late_ones, accusers={C: (D,), D: (C,)})
    assert late.decide(DEADLINE_S) == skip


def test_too_few_pairs_that_can_still_become_whole_end_the_op_at_once():
    op = pair_table(min_contributors=4)
    op.frozen()
    op.cross(A, B)
    op.lose(C)
    assert op.decide(1.0) == Skip(1, "too few pairs are left", excluded={C: "lost"})


def test_who_has_published_without_its_partner_is_in_no_pair():
    op = pair_table()
    op.publish(A, B, C)
    assert isinstance(op.decide(SCATTER_S), Freeze)
    op.cross(A, B)
    assert op.committed() == (A, B)


# ---- a coordinator that dies


def test_a_restarted_coordinator_hears_what_each_holds_again_and_decides_once():
    op = pair_table()
    op.frozen()
    op.cross(A, B)
    op.restart()
    assert op.decide(1.0) is None
    op.cross(A, B)
    op.cross(C, D)
    assert op.committed() == (A, B, C, D)


def test_after_a_restart_a_pair_with_a_dead_one_is_not_whole_any_more():
    op = pair_table()
    op.frozen()
    op.cross(A, B)
    op.restart()
    op.lose(B)
    op.have(A, B)
    op.cross(C, D)
    assert op.committed(2.0) == (C, D), "B's word that it holds A's half died with the coordinator"


def test_after_a_restart_nobody_may_publish_something_else():
    op = pair_table()
    op.frozen()
    op.restart()
    with pytest.raises(RemoteFault, match="two contributions"):
        op.publish(A, version=1)
    op.have(B, A, version=1)
    op.have(A, B)
    op.cross(C, D)
    assert op.committed(GATHER_S) == (C, D), "B holds other bytes than A has signed"


def test_at_every_order_of_reports_and_deaths_the_ledger_can_be_folded_and_the_op_ends():
    reports = [("publish", A), ("publish", B), ("publish", C), ("publish", D)]
    halves = [("have", A, B), ("have", B, A), ("have", C, D), ("have", D, C)]
    for dead, moment, turn in itertools.product((A, B, C, D), range(9), range(4)):
        op = pair_table()
        steps = reports[turn:] + reports[:turn] + halves[turn:] + halves[:turn]
        for number, (what, peer, *others) in enumerate(steps):
            if number == moment:
                op.lose(dead)
            if peer in op.alive and op.view.outcome is None:
                op.publish(peer) if what == "publish" else op.have(peer, *others)
            while op.decide(1.0) is not None:
                pass
        while op.decide(DEADLINE_S) is not None:
            pass
        outcome = op.view.outcome
        assert isinstance(outcome, Commit), "one pair has always come through"
        whole = {
            frozenset(pair) for pair in ((A, B), (C, D)) if set(pair) <= {*outcome.contributors}
        }
        assert set(outcome.contributors) == set().union(*whole)
        assert len(whole) == 2 or dead not in outcome.contributors


def test_how_long_an_op_takes_is_learned_from_those_who_are_in_pairs():
    op = pair_table(A, B, C)
    pace = Pace()
    op.now_s = 2.0
    op.frozen(A, B)
    op.now_s = 5.0
    op.cross(A, B)
    assert op.committed() == (A, B)
    op.op.teach(pace, 5.0)
    assert (pace.scatter_s, pace.gather_s) == (2.0, 3.0)

"""Decisions of a coordinator in a gather op, at every point at which somebody may die."""

import pytest

from swarmtrain_transport.coordinator.ops.timers import Pace
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import result_root, slice_root
from swarmtrain_transport.wire.messages import Withdraw
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Member,
    SignedRoot,
    Skip,
)
from tests.transport.coordinator.ops.gather_table import (
    DEADLINE_S,
    GATHER_S,
    SCATTER_S,
    gather_table,
    hashes_of,
    published_by,
)
from tests.transport.rig import BOOT, A, B, C, D, E

# ---- FREEZE


def test_freeze_waits_for_every_live_contributor_and_keeps_what_each_has_signed():
    op = gather_table()
    op.publish(A, B)
    assert op.decide(SCATTER_S - 0.01) is None
    op.publish(C)
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B, C), {})
    for peer in (A, B, C):
        done = published_by(op.view, peer)
        assert freeze.roots[peer] == SignedRoot(slice_root(done.chunk_hashes), done.signature)


def test_who_has_published_nothing_at_d_scatter_is_late():
    op = gather_table()
    op.publish(A, B)
    freeze = op.decide(SCATTER_S)
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B), {C: "late"})
    assert (freeze.times[C].complete, freeze.times[C].owners) == (0, 2)


def test_who_dies_before_it_has_published_is_not_waited_for():
    op = gather_table()
    op.publish(A, B)
    op.lose(C)
    freeze = op.decide(1.0)
    assert isinstance(freeze, Freeze)
    assert (freeze.contributors, freeze.excluded) == ((A, B), {C: "lost"})


def test_who_withdraws_is_left_out_with_its_reason():
    op = gather_table()
    op.op.reports.hear(C, Withdraw(op.view.plan_id, "nonfinite"), 0.0)
    op.publish(A, B)
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert freeze.excluded == {C: "withdrew:nonfinite"}


def test_the_op_is_skipped_at_once_when_too_few_can_still_publish():
    op = gather_table(min_contributors=2)
    op.publish(A)
    op.lose(B, C)
    lost = {B: "lost", C: "lost"}
    assert op.decide(1.0) == Skip(1, "too few contributors are left", excluded=lost)


# ---- COMMIT


def test_commit_waits_until_every_live_contributor_holds_all():
    op = gather_table()
    op.frozen()
    op.have(A, B, C)
    op.have(B, A, C)
    op.have(C, A)
    assert op.decide(GATHER_S - 0.01) is None
    op.have(C, B, flags=(True, False))
    assert op.decide() is None
    op.have(C, B)
    commit = op.decide()
    assert isinstance(commit, Commit)
    assert commit.contributors == (A, B, C)
    assert [one.contributors for one in commit.slices] == [(A,), (B,), (C,)]
    assert [one.root for one in commit.slices] == [
        slice_root(hashes_of(op.view, peer)) for peer in (A, B, C)
    ]
    assert commit.signatures == tuple(published_by(op.view, p).signature for p in (A, B, C))
    assert commit.result_root == result_root(commit)


def test_commit_does_not_wait_for_receivers():
    members = (*(Member(peer, BOOT, 1) for peer in (A, B)), Member(D, BOOT, 0))
    op = gather_table(A, B, members=members)
    op.frozen()
    op.have(A, B)
    op.have(B, A)
    assert op.committed() == (A, B)


def test_who_dies_after_it_has_published_and_is_held_by_nobody_is_left_out_of_commit():
    op = gather_table()
    op.frozen()
    op.have(A, B)
    op.have(B, A)
    op.lose(C)
    commit = op.decide(1.0)
    assert isinstance(commit, Commit)
    assert commit.contributors == (A, B)
    assert [one.contributors for one in commit.slices] == [(A,), (B,), ()]
    assert (commit.slices[2].root, commit.signatures[2]) == (b"", b"")


def test_who_dies_before_freeze_and_is_held_by_somebody_stays_in():
    op = gather_table()
    op.publish(C)
    op.have(A, C)
    op.lose(C)
    op.publish(A, B)
    assert isinstance(op.decide(), Freeze)
    op.have(A, B)
    op.have(B, A)
    assert op.decide() is None  # B can still get it of A
    op.have(B, C)
    assert op.committed() == (A, B, C)


def test_the_chunks_of_the_dead_may_be_with_different_peers():
    op = gather_table(A, B, C, D)
    op.frozen()
    op.lose(D)
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    op.have(A, D, flags=(True, False))
    op.op.reports.lose(D)
    op.have(B, D, flags=(False, True))
    assert op.decide() is None  # it is with the living, who get it of each other
    for peer in (A, B, C):
        op.have(peer, D)
    assert op.committed() == (A, B, C, D)


def test_after_d_gather_it_is_enough_if_more_than_half_hold_it():
    op = gather_table(A, B, C, D)
    op.frozen()
    for peer in (A, B, C):
        op.have(peer, A, B, C, D)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.committed(GATHER_S) == (A, B, C, D)


def test_commit_names_for_whom_it_has_waited_in_vain():
    op = gather_table(A, B, C, D, E)
    op.frozen()
    for peer in (A, B, C, D):
        op.have(peer, A, B, C, D)  # E fetches nothing, and what E gave nobody can get
    assert op.decide(GATHER_S - 0.01) is None
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit)
    assert (commit.contributors, commit.behind) == ((A, B, C, D), (E,))


def test_what_a_contributor_gives_to_some_in_the_last_moment_the_others_are_not_blamed_for():
    op = gather_table(A, B, C, D, E)
    op.frozen()
    for peer in (A, B, C, D, E):
        op.have(peer, A, B, C, D)
    op.now_s = GATHER_S - 1.0
    op.have(A, E)
    op.have(B, E)
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit) and commit.behind == ()


def test_what_a_contributor_gives_to_one_other_alone_is_left_out_as_its_own_fault():
    op = gather_table(A, B, C, D, E)
    op.frozen()
    for peer in (A, B, C, D, E):
        op.have(peer, A, B, C, D)
    op.have(A, E)
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit)
    assert (commit.contributors, commit.behind) == ((A, B, C, D), (E,))


def test_one_who_never_says_that_it_has_a_contribution_is_named_and_not_its_contributor():
    op = gather_table(A, B, C)
    op.frozen()
    for peer in (A, B):
        op.have(peer, A, B, C)
    op.have(C, B)
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit)
    assert (commit.contributors, commit.behind) == ((A, B, C), (C,)), "of three, two are enough"


def test_what_few_of_many_say_that_they_hold_is_left_out():
    peers = tuple(bytes([number]) * 32 for number in range(1, 8))
    op = gather_table(*peers)
    op.frozen()
    for peer in peers:
        op.have(peer, *peers[:6])
    for peer in peers[:2]:
        op.have(peer, peers[6])
    assert op.committed(GATHER_S) == peers[:6], "with its contributor three of seven have the last"


def test_a_contribution_that_nobody_can_get_is_left_out_at_d_gather():
    """The contributor lives, and cannot be reached, or has published what cannot be decoded."""
    op = gather_table()
    op.frozen()
    for peer in (A, B, C):
        op.have(peer, A, B)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.committed(GATHER_S) == (A, B)


def test_where_nothing_has_come_through_at_d_gather_time_is_short_and_nobody_is_blamed():
    op = gather_table()
    op.frozen()
    assert op.decide(GATHER_S) is None
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    assert op.committed(GATHER_S + 1) == (A, B, C)


def test_it_is_skipped_at_d_op_if_too_few_are_held():
    op = gather_table(min_contributors=2)
    op.frozen()
    op.have(A, B)
    assert op.decide(DEADLINE_S - 0.01) is None
    assert op.decide(DEADLINE_S) == Skip(1, "deadline")


def test_it_is_skipped_at_once_if_the_dead_have_left_too_little():
    op = gather_table(min_contributors=3)
    op.frozen()
    op.op.reports.lose(C)
    op.lose(C)
    assert op.decide(1.0) == Skip(1, "too few contributors are left", excluded={C: "lost"})


def test_nobody_is_waited_for_who_is_silent_and_held_by_nobody_though_all_are_needed():
    op = gather_table(min_contributors=3)
    op.frozen()
    op.have(A, C)
    op.lose(C)
    assert op.decide(1.0) is None  # B can still get it of A
    op.lose(A)
    lost = {A: "lost", C: "lost"}
    assert op.decide(2.0) == Skip(1, "too few contributors are left", excluded=lost)


def test_one_contributor_is_not_enough_of_a_holder_while_another_member_lives():
    members = (Member(A, BOOT, 1), Member(D, BOOT, 0))
    op = gather_table(A, members=members)
    op.frozen()
    assert op.decide() is None
    op.have(D, A)
    assert op.committed() == (A,)


def test_a_peer_that_is_alone_commits_alone():
    op = gather_table(A)
    op.frozen()
    assert op.committed() == (A,)


def test_a_holder_that_is_gone_holds_nothing():
    op = gather_table()
    op.frozen()
    for peer in (A, B):
        op.have(peer, A, B)
    op.have(A, C)
    op.op.reports.lose(C)
    op.op.reports.lose(A)
    op.lose(A, C)
    op.have(A, C)  # said by nobody who is in the op
    assert op.committed(1.0) == (A, B)


# ---- a restarted coordinator


def test_after_a_restart_peers_repeat_what_they_said_and_the_same_follows():
    op = gather_table()
    op.publish(A, B)
    op.restart()
    assert [news.chunk_hashes for news in op.publish(A, B, C) if news] == [
        hashes_of(op.view, peer) for peer in (A, B, C)
    ]
    assert isinstance(op.decide(), Freeze)
    op.restart()
    assert op.decide() is None
    op.publish(A, B, C)
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    assert op.committed() == (A, B, C)


def test_after_a_restart_what_members_hold_of_the_dead_still_counts():
    """SLICE_DONE is not said again by who has died; FREEZE knows what it was."""
    op = gather_table()
    op.frozen()
    op.lose(C)
    op.restart()
    op.publish(A, B)
    for peer in (A, B):
        op.have(peer, A, B, C)
    assert op.committed() == (A, B, C)


def test_after_a_restart_nobody_may_publish_something_else():
    op = gather_table()
    op.frozen()
    op.restart()
    with pytest.raises(RemoteFault, match="two contributions"):
        op.publish(C, version=1)
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    assert op.committed() == (A, B, C)


def test_what_was_held_of_another_version_before_a_restart_counts_for_nothing():
    op = gather_table()
    op.publish(A, B, C)
    op.restart()
    op.publish(A, B)
    op.publish(C, version=1)
    op.have(A, C, version=0)
    op.have(B, C, version=0)
    op.publish(A, B)
    assert isinstance(op.decide(), Freeze)
    for peer in (A, B, C):
        op.have(peer, A, B)
    assert op.decide(1.0) is None
    assert op.committed(GATHER_S) == (A, B)


def test_the_op_teaches_how_long_publishing_and_gathering_take():
    op = gather_table()
    op.now_s = 2.0
    op.frozen()
    op.now_s = 7.0
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    assert op.committed() == (A, B, C)
    pace = Pace()
    op.op.teach(pace, 7.0)
    assert (pace.scatter_s, pace.gather_s) == (2.0, 5.0)

"""COMMIT and SKIP, and the reports that count for neither (protocol.md T8, T9, T14)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.coordinator.ops.timers import Pace
from swarmtrain_transport.ledger.fold import result_root, set_id, slice_root
from swarmtrain_transport.ledger.signed_roots import inputs_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Hashes, Have, SliceDone
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Member,
    Reassign,
    Skip,
    SliceSpec,
)
from tests.transport.coordinator.ops.table import (
    DEADLINE_S,
    GATHER_S,
    REPAIR_S,
    SCATTER_S,
    Table,
    table,
    with_receivers,
)
from tests.transport.rig import BOOT, STRANGER, A, B, C, D, E, done_of, plan_body, received

SEVEN = tuple(bytes([number]) * 32 for number in range(1, 8))

# ---- reports that do not count


def test_reports_of_other_owners_attempts_and_slices_change_nothing() -> None:
    op = table()
    absurd = [(-1, 0), (3, 0), (1 << 62, 0), (0, 1), (0, -1), (0, 1 << 62)]
    for index, attempt in absurd:
        whole = received(0, (A, B, C))
        op.op.reports.hear(A, Got(op.view.plan_id, index, attempt, whole, {B: "scale"}), 0.0)
        op.op.reports.hear(
            A, SliceDone(op.view.plan_id, index, attempt, 0, (bytes(32),), b"", b""), 0.0
        )
        op.op.reports.hear(A, Have(op.view.plan_id, index, attempt, 0, (True,)), 0.0)
    op.op.reports.hear(B, Got(op.view.plan_id, 0, 0, received(0, (A, B, C)), {C: "scale"}), 0.0)
    assert (
        not op.op.reports.got
        and not op.op.reports.withdrawn
        and not op.op.reports.published
        and not op.op.reports.holders
    )


def test_only_planned_contributors_count_in_got() -> None:
    op = with_receivers(D)
    op.got(0, A, STRANGER, D, b"", refused={STRANGER: "scale", D: "scale"})
    assert op.op.reports.got == {(0, 0): {A}}
    assert op.op.reports.word(D, 0) == "absent"


def test_slice_done_counts_with_the_frozen_set_and_one_hash_per_chunk() -> None:
    op = table()
    plan_id = op.view.plan_id
    hashes = op.hashes(0)
    name = set_id((A, B, C))
    op.freeze()
    wrong = [
        (A, set_id((A, B)), hashes),
        (A, name, hashes[:1]),
        (A, name, (*hashes, hashes[0])),
        (A, name, (hashes[0], b"short")),
        (B, name, hashes),
        (STRANGER, name, hashes),
    ]
    for peer, claimed, listed in wrong:
        done = SliceDone(plan_id, 0, 0, claimed, listed, inputs_of(received(0, (A, B, C))), b"")
        assert op.op.reports.hear(peer, done, 0.0) is None
    assert not op.op.reports.published
    expected = Hashes(plan_id, 0, 0, name, hashes)
    assert op.op.reports.hear(A, done_of(op.view, 0, (A, B, C), hashes), 0.0) == expected


def test_the_first_slice_done_stands_and_is_relayed_once() -> None:
    """Or one owner could make the coordinator send to everybody as often as it likes."""
    op = table()
    op.freeze()
    assert op.done(0) is not None
    assert op.done(0) is None
    other = tuple(bytes([9]) * 32 for _ in op.hashes(0))
    again = done_of(op.view, 0, (A, B, C), other)
    assert op.op.reports.hear(A, again, 0.0) is None
    assert op.op.reports.published[(0, 0)].chunk_hashes == op.hashes(0)


def test_have_counts_for_members_and_for_the_named_set_only() -> None:
    op = table()
    op.freeze()
    op.done(0)
    before = {key: set(value) for key, value in op.op.reports.holders.items()}
    op.have(0, STRANGER)
    op.op.reports.hear(B, Have(op.view.plan_id, 0, 0, 12345, (True, True)), 0.0)
    assert op.op.reports.holders == before
    op.op.reports.hear(B, Have(op.view.plan_id, 0, 0, set_id((A, B, C)), (True,) * 100_000), 0.0)
    assert set(op.op.reports.holders) == {(0, 0, 0), (0, 0, 1)}


# ---- COMMIT and SKIP


def test_commit_waits_until_every_living_contributor_has_everything() -> None:
    op = table()
    op.freeze()
    op.publish(A, B)
    for index in (0, 1):
        op.have(index, C)
    op.have(2, C)
    commit = op.decide()
    assert isinstance(commit, Commit)
    assert commit.contributors == (A, B, C)
    assert [outcome.root for outcome in commit.slices] == [
        slice_root(op.hashes(index)) for index in op.indexes
    ]
    assert commit.result_root == result_root(commit)
    assert commit.plan_hash == op.view.plan_hash


def test_commit_does_not_follow_from_slice_done_alone() -> None:
    op = table()
    op.freeze()
    op.publish()
    assert op.decide(GATHER_S - 0.01) is None
    assert op.decide(GATHER_S) is None


def test_a_late_reader_is_waited_for_until_d_gather_and_then_holders_suffice() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A, B, C)
    op.have(3, D)
    assert op.decide(GATHER_S - 0.01) is None
    commit = op.decide(GATHER_S)
    assert isinstance(commit, Commit) and commit.behind == (D,)


def test_at_d_op_what_is_held_is_committed_and_a_skip_names_for_whom_it_has_waited() -> None:
    op = table(A, B, C)
    op.freeze()
    op.publish(A, B)  # C says of nothing that it has it, but owns a slice
    commit = op.decide(100.0)
    assert isinstance(commit, Commit) and commit.behind == (C,)
    silent = table(A, B, C)
    silent.freeze()
    silent.done(0)
    silent.have(0, B, C)
    silent.done(1)
    assert silent.decide(GATHER_S) is not None, "C is relieved"
    silent.got(2, A, B, C)
    silent.decide_all()
    skip = silent.decide(200.0)
    assert isinstance(skip, Skip)
    assert skip.blamed == {silent.view.owners[2]: "owner silent", B: "owner alone has it"}


def test_after_d_gather_each_chunk_still_needs_its_holders() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A)
    for index in op.indexes:
        op.have(index, B, chunks=(True, False))
    op.have(0, C, chunks=(False, True))
    assert op.decide(GATHER_S) is None
    for index in op.indexes:
        op.have(index, B, C)
    assert isinstance(op.decide(), Commit)


def test_the_dead_hold_nothing() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A, B, C, D)
    op.lose(D)
    assert isinstance(op.decide(), Commit)
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A, D)
    op.have(0, B)
    op.lose(D)
    assert not any(isinstance(d, Commit) for d in op.decide_all(GATHER_S))


def test_receivers_are_never_waited_for() -> None:
    op = with_receivers(D, E)
    op.freeze()
    op.publish(A, B, C)
    assert isinstance(op.decide(), Commit)


def test_a_few_that_contribute_alone_cannot_commit_what_most_members_lack() -> None:
    """Three colluders that were READY first are all contributors of a PLAN of seven: with their own
    words for holders they would commit what nobody honest can ever have."""
    honest = SEVEN[3:]
    members = tuple(Member(peer, BOOT, int(peer not in honest)) for peer in SEVEN)
    op = table(*SEVEN[:3], members=members)
    op.freeze()
    op.publish(*SEVEN[:3])
    assert op.decide(GATHER_S) is None
    op.publish(honest[0])
    assert isinstance(op.decide(), Commit), "one honest holder is in any half of the members"


def test_half_of_the_members_are_enough_so_one_receiver_cannot_keep_a_result_back() -> None:
    op = table(A, members=(Member(A, BOOT, 1), Member(B, BOOT, 0)))
    op.freeze()
    op.publish()
    assert isinstance(op.decide(), Commit)


def test_where_no_contributor_lives_one_receiver_of_three_cannot_commit() -> None:
    op = with_receivers(D, E, STRANGER)
    op.freeze()
    op.publish(D)
    for peer in (A, B, C):
        op.lose(peer)
    assert not any(isinstance(decision, Commit) for decision in op.decide_all(GATHER_S))
    op.publish(E)
    assert isinstance(op.decide(), Commit)


def test_one_that_says_it_holds_a_dead_owners_slice_does_not_keep_it_from_a_new_owner() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A, B, C)
    for chunk in range(2):
        op.op.reports.holders[(3, 0, chunk)] = {A}
    op.lose(D)
    assert op.decide(GATHER_S - 0.01) is None, "it may still come from A"
    moved = op.decide(GATHER_S)
    assert isinstance(moved, Reassign) and moved.slice_index == 3


def test_commit_names_the_attempt_and_the_set_of_a_repaired_slice() -> None:
    op = table()
    op.freeze()
    op.done(0)
    op.done(1)
    op.lose(C)
    op.decide_all()
    op.got(2, A, B)
    op.decide_all()
    op.done(2)
    for index in op.indexes:
        op.have(index, A, B)
    commit = op.decide()
    assert isinstance(commit, Commit)
    assert [(s.attempt, s.contributors) for s in commit.slices] == [
        (0, (A, B, C)),
        (0, (A, B, C)),
        (1, (A, B)),
    ]


def test_the_op_is_skipped_at_d_op_even_with_everything_but_one_slice() -> None:
    op = table()
    op.freeze()
    op.done(0)
    op.done(1)
    assert op.decide(99.99) is not None
    op = table()
    op.got_all(0, 1)
    assert op.decide(100.0) == Skip(1, "deadline")


def test_nothing_is_decided_after_an_outcome() -> None:
    op = table()
    assert isinstance(op.decide(1e9), Skip)
    assert op.decide(2e9) is None


def test_a_restarted_coordinator_goes_on_from_the_log_and_repeated_reports() -> None:
    op = table()
    op.freeze()
    op.publish(A)
    again = Table(op.plan)
    for decision in op.log:
        again.view.apply(decision)
    assert again.decide() is None
    again.got_all()
    assert again.decide() is None
    again.publish(A, B, C)
    assert isinstance(again.decide(), Commit)


def test_what_is_published_is_not_made_void_where_no_new_owner_could_be_done_in_time() -> None:
    """It was, of an op whose extensions were used up, though most had it by the end."""
    op = given_late()
    op.op.timers.extended_s = DEADLINE_S
    assert op.decide(op.op.timers.gather_s) is None
    op.now_s = op.op.timers.end_s - 1.0
    op.have(4, A, B, C)
    assert isinstance(op.decide(), Commit)


def test_who_alone_has_what_it_published_is_relieved_while_another_has_time() -> None:
    """Deaths had used up the extension: it was to be at D_gather, when no other had time any more
    (seed 1840 of 40 peers)."""
    op = given_late()
    op.op.timers.extended_s = DEADLINE_S
    assert op.decide(op.op.timers.silent_s) is None, "it may only just have published"
    moved = op.decide(op.op.timers.spread_s)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (4, "owner alone has it")


def test_whoever_has_published_nothing_is_relieved_to_the_last() -> None:
    op = table()
    op.freeze()
    op.op.timers.extended_s = DEADLINE_S
    for index in (0, 1):
        op.done(index)
        op.have(index, A, B, C)
    assert isinstance(op.decide(op.op.timers.gather_s), Reassign)


def test_wakeups_name_every_moment_at_which_something_falls_due() -> None:
    op = table()
    assert set(op.op.timers.wakeups()) >= {SCATTER_S, GATHER_S, 100.0}
    op.freeze()
    op.lose(C)
    op.decide_all(10.0)
    times = op.op.timers.wakeups()
    assert 10.0 + REPAIR_S in times
    assert op.op.timers.stuck_s(2) in times and op.op.timers.end_s in times


REPORT = st.tuples(
    st.sampled_from(["got", "done", "have", "lose", "back", "wait"]),
    st.integers(0, 3),
    st.sets(st.sampled_from([A, B, C, D])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(REPORT, max_size=60), st.integers(1, 3))
def test_whatever_happens_an_op_ends_once_by_twice_its_deadline(
    story: list[tuple[str, int, set[bytes]]], min_contributors: int
) -> None:
    """The fold refuses contradictions, so that none is raised is half of the property."""
    op = Table(plan_body((A, B, C, D), min_contributors=min_contributors))
    for event, index, peers in story:
        settled = op.view.slice_sets[index] is not None
        if event == "got":
            op.got(index, *peers)
        elif event == "done" and settled:
            op.done(index)
        elif event == "have" and settled:
            op.have(index, *peers)
        elif event == "lose":
            op.alive -= peers
        elif event == "back":
            op.alive |= peers
        elif event == "wait":
            op.now_s += 7.0
        op.decide_all()
    op.decide_all(2 * DEADLINE_S)
    assert op.view.outcome is not None
    outcome = op.view.outcome
    if isinstance(outcome, Commit):
        assert all(len(s.contributors) >= min_contributors for s in outcome.slices)
        assert all(set(s.contributors) <= set(outcome.contributors) for s in outcome.slices)
    assert sum(isinstance(d, Freeze) for d in op.log) <= 1
    assert sum(isinstance(d, Commit | Skip) for d in op.log) == 1


def test_a_result_over_all_planned_stands_before_freeze_and_is_void_if_freeze_names_fewer() -> None:
    op = table()
    plan_id, hashes = op.view.plan_id, op.hashes(0)
    everybody, two = set_id((A, B, C)), set_id((A, B))
    assert op.op.reports.hear(A, done_of(op.view, 0, (A, B), hashes), 0.0) is None
    early = done_of(op.view, 0, (A, B, C), hashes)
    assert op.op.reports.hear(A, early, 0.0) == Hashes(plan_id, 0, 0, everybody, hashes)
    op.op.reports.hear(B, Have(plan_id, 0, 0, everybody, (True,) * len(hashes)), 0.0)
    op.view.apply(Freeze(1, (A, B), {C: "late"}))
    assert op.op.reports.returned(B, op.view.boots[B]) == []
    assert op.op.reports.hear(A, early, 0.0) is None
    other = tuple(bytes([9]) * 32 for _ in hashes)
    late = done_of(op.view, 0, (A, B), other)
    assert op.op.reports.hear(A, late, 0.0) == Hashes(plan_id, 0, 0, two, other)
    assert op.op.reports.holders[0, 0, 0] == {A}


def test_have_before_hashes_counts_if_just_this_is_published() -> None:
    op = table()
    everybody, hashes = set_id((A, B, C)), op.hashes(0)
    held, done = (True,) * len(hashes), done_of(op.view, 0, (A, B, C), hashes)
    for peer, root in ((B, slice_root(hashes)), (C, bytes(32)), (STRANGER, slice_root(hashes))):
        op.op.reports.hear(peer, Have(op.view.plan_id, 0, 0, everybody, held, root), 0.0)
    assert op.op.reports.holders == {}
    op.op.reports.hear(A, done, 0.0)
    assert op.op.reports.holders[0, 0, 0] == {A, B}
    op.op.reports.hear(C, Have(op.view.plan_id, 0, 0, everybody, held, bytes(32)), 0.0)
    assert op.op.reports.holders[0, 0, 0] == {A, B}
    op.op.reports.hear(C, Have(op.view.plan_id, 0, 0, everybody, held, slice_root(hashes)), 0.0)
    assert op.op.reports.holders[0, 0, 0] == {A, B, C}


def test_have_before_hashes_dies_with_who_said_it_and_with_its_set() -> None:
    op = table()
    everybody, hashes = set_id((A, B, C)), op.hashes(0)
    held = (True,) * len(hashes)
    early = Have(op.view.plan_id, 0, 0, everybody, held, slice_root(hashes))
    op.op.reports.hear(B, early, 0.0)
    op.op.reports.lose(B)
    op.op.reports.hear(C, early, 0.0)
    op.view.apply(Freeze(1, (A, B), {C: "late"}))
    op.op.reports.hear(A, done_of(op.view, 0, (A, B), hashes), 0.0)
    assert op.op.reports.holders[0, 0, 0] == {A}


def test_a_result_that_only_its_owner_has_after_the_gather_deadline_is_made_elsewhere() -> None:
    slow = table()
    slow.freeze()
    slow.publish()
    assert slow.decide(GATHER_S) is None, "nothing has come through: nobody is the odd one out"
    alone = table()
    alone.freeze()
    for index in alone.indexes:
        alone.done(index)
    alone.have(0, B, C)
    alone.have(1, A, C)
    assert alone.decide(GATHER_S - 0.1) is None
    decision = alone.decide(GATHER_S)
    assert isinstance(decision, Reassign)
    assert (decision.slice_index, decision.reason) == (2, "owner alone has it")
    assert decision.owner in (A, B)


def test_where_few_own_anything_what_none_of_them_gives_is_made_elsewhere() -> None:
    """It was never, though all others lived and reached each other: an op of a lone owner that
    gives other bytes than it has published was always skipped."""
    for owners, moves in (((A,), True), ((A, B), True), ((A, B, C), False)):
        slices = [SliceSpec(8 * at, 8 * at + 8, one) for at, one in enumerate(owners)]
        op = table(A, B, C, D, E, slices=tuple(slices))
        op.freeze()
        op.publish()
        assert op.decide(GATHER_S - 0.1) is None
        moved = op.decide(GATHER_S)
        assert isinstance(moved, Reassign) is moves
        assert not moves or (moved.owner not in owners and moved.reason == "owner alone has it")


def test_who_dies_after_giving_all_makes_no_early_result_void() -> None:
    op = table()
    op.got_all()
    everybody = set_id((A, B, C))
    for index, owner in enumerate((A, B, C)):
        op.op.reports.hear(owner, done_of(op.view, index, (A, B, C), op.hashes(index)), 0.0)
        held = (True,) * len(op.hashes(index))
        for peer in (A, B):
            op.op.reports.hear(peer, Have(op.view.plan_id, index, 0, everybody, held), 0.0)
    op.lose(C)
    assert op.decide() == Freeze(1, (A, B, C), {})
    assert isinstance(op.decide(), Commit)


# ---- what comes late


def given_late(*holders: PeerId) -> Table:
    """Everything has come through at once but the slice of E, which gives it to these alone."""
    op = table(A, B, C, D, E)
    op.freeze()
    for index in range(4):
        op.done(index)
        op.have(index, A, B, C, D, E)
    op.done(4)
    op.now_s = GATHER_S - 1.0
    op.have(4, *holders)
    return op


def test_who_is_given_a_slice_in_the_last_moment_or_never_is_not_to_blame() -> None:
    commit = given_late(A, B).decide(GATHER_S)
    assert isinstance(commit, Commit)
    assert (commit.behind, commit.late) == ((), (E,)), "the owner has kept everybody waiting"


def test_an_owner_and_one_other_cannot_say_that_its_slice_has_come_through() -> None:
    moved = given_late(D).decide(GATHER_S)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (4, "too few have it")


def test_fewer_than_half_cannot_say_that_a_slice_has_come_through() -> None:
    """Three of seven say that they hold what one of them owns; the others never see it."""
    few = SEVEN[4:]
    op = table(*SEVEN)
    op.freeze()
    for index in op.indexes:
        op.done(index)
        op.have(index, *(few if index == 6 else SEVEN))
    assert op.decide(GATHER_S - 0.1) is None
    moved = op.decide(GATHER_S)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (6, "too few have it")
    assert moved.owner != SEVEN[6]
    over = table(*SEVEN)
    over.freeze()
    for index in over.indexes:
        over.done(index)
        over.have(index, *few[:2])
    assert over.decide(GATHER_S) is None, "nothing has come through: time is short"
    skip = over.decide(100.0)
    assert isinstance(skip, Skip)
    assert skip.blamed == dict.fromkeys(SEVEN, "too few have it")


def test_a_result_that_four_of_seven_hold_is_committed_and_two_of_three_are_enough() -> None:
    for peers, holders in ((SEVEN, SEVEN[:4]), ((A, B, C), (A, B))):
        op = table(*peers)
        op.freeze()
        for index in op.indexes:
            op.done(index)
            op.have(index, *holders)
        assert op.decide(GATHER_S - 0.1) is None
        commit = op.decide(GATHER_S)
        assert isinstance(commit, Commit)
        assert commit.behind == tuple(peer for peer in peers if peer not in holders)


def test_one_owner_that_reports_and_publishes_late_does_not_stretch_the_pace() -> None:
    op = table(A, B, C, D, E)
    op.now_s = 2.0
    op.got_all(0, 1, 2, 3)
    op.now_s = SCATTER_S - 1.0
    op.got_all(4)
    assert isinstance(op.decide(), Freeze)
    op.now_s += 3.0
    for index in range(4):
        op.done(index)
        op.have(index, A, B, C, D, E)
    op.now_s = GATHER_S - 1.0
    op.done(4)
    op.have(4, A, B, C, D, E)
    assert isinstance(op.decide(), Commit)
    pace = Pace()
    op.op.teach(pace, op.now_s)
    assert (pace.scatter_s, pace.gather_s) == (2.0, 3.0)


def test_reports_of_before_records_were_adopted_or_a_pause_set_no_pace() -> None:
    for is_stopped in (True, False):
        op = table(A, B, C)
        op.now_s = 2.0
        op.got_all()
        op.decide()
        for index in op.indexes:
            op.done(index)
            op.have(index, A, B, C)
        if is_stopped:
            op.op.timers.pardon(30.0)
        else:
            op.op = OpDecider(op.view, 32.0, op.op.reports)
        assert isinstance(op.decide(33.0), Commit)
        pace = Pace()
        op.op.teach(pace, op.now_s)
        assert pace == Pace(), "a deadline of it would be the shortest that there is"

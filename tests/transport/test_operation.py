"""The coordinator's decisions of one op, from reports in any order (protocol.md T4 to T9)."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.fold import OpView, num_chunks, result_root, set_id, slice_root
from swarmtrain_transport.ledger import (
    Commit,
    Freeze,
    Member,
    Plan,
    Reassign,
    Skip,
    SliceFreeze,
)
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Got, Hashes, Have, SliceDone, Withdraw
from swarmtrain_transport.operation import Decision, Operation
from tests.transport.rig import BOOT, STRANGER, A, B, C, D, E, plan_body, view_of

DEADLINE_S = 100.0
SCATTER_S = limits.D_SCATTER * DEADLINE_S
GATHER_S = limits.D_GATHER * DEADLINE_S
REPAIR_S = limits.D_REPAIR * DEADLINE_S


@dataclass
class Table:
    """One op with peers that are alive and report; decisions are folded as they fall."""

    plan: Plan
    alive: set[PeerId] = field(default_factory=set)
    now_s: float = 0.0
    log: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view: OpView = view_of(self.plan)
        self.op = Operation(self.view, 0.0)
        self.alive = self.alive or {member.peer for member in self.plan.members}

    @property
    def indexes(self) -> range:
        return range(len(self.plan.slices))

    def decide(self, now_s: float | None = None) -> Decision | None:
        if now_s is not None:
            self.now_s = now_s
        decision = self.op.decide(self.alive, self.now_s)
        if decision is not None:
            if isinstance(decision, Reassign):
                self.op.timers.reassigned(decision.slice_index, self.now_s)
            self.view.apply(decision)
            self.log.append(decision)
        return decision

    def decide_all(self, now_s: float | None = None) -> list[Decision]:
        decisions = []
        while (decision := self.decide(now_s)) is not None:
            decisions.append(decision)
        return decisions

    def got(self, index: int, *peers: PeerId, refused: dict[PeerId, str] | None = None) -> None:
        """The current owner of a slice says whose contribution it has whole."""
        attempt = self.view.attempts[index]
        report = Got(self.view.plan_id, index, attempt, peers, refused or {})
        assert self.op.hear(self.view.owners[index], report) is None

    def got_all(self, *indexes: int) -> None:
        for index in indexes or self.indexes:
            self.got(index, *self.view.weights)

    def hashes(self, index: int) -> tuple[bytes, ...]:
        attempt = self.view.attempts[index]
        return tuple(
            bytes([index, attempt, chunk]) + bytes(29)
            for chunk in range(num_chunks(self.plan, index))
        )

    def done(self, index: int) -> Hashes | None:
        contributors = self.view.slice_sets[index]
        assert contributors is not None
        attempt = self.view.attempts[index]
        name = set_id(contributors)
        message = SliceDone(self.view.plan_id, index, attempt, name, self.hashes(index))
        return self.op.hear(self.view.owners[index], message)

    def have(self, index: int, *peers: PeerId, chunks: tuple[bool, ...] | None = None) -> None:
        contributors = self.view.slice_sets[index]
        assert contributors is not None
        flags = chunks or (True,) * num_chunks(self.plan, index)
        attempt = self.view.attempts[index]
        for peer in peers:
            self.op.hear(peer, Have(self.view.plan_id, index, attempt, set_id(contributors), flags))

    def freeze(self) -> None:
        """Everybody is complete everywhere."""
        self.got_all()
        assert isinstance(self.decide(), Freeze)

    def publish(self, *holders: PeerId) -> None:
        """All owners publish, and these members have everything."""
        for index in self.indexes:
            self.done(index)
            self.have(index, *holders)

    def lose(self, peer: PeerId) -> None:
        self.alive.discard(peer)


def table(*peers: PeerId, **changes: Any) -> Table:
    return Table(plan_body(peers or (A, B, C), **changes))


def with_receivers(*receivers: PeerId) -> Table:
    members = tuple(Member(peer, BOOT, 1) for peer in (A, B, C))
    return table(members=members + tuple(Member(peer, BOOT, 0) for peer in receivers))


# ---- FREEZE


def test_freeze_waits_for_every_live_contributor_at_every_owner() -> None:
    op = table()
    for index in (0, 1):
        op.got(index, A, B, C)
    op.got(2, A, B)
    assert op.decide(SCATTER_S - 0.01) is None
    op.got(2, C)
    assert op.decide() == Freeze(1, (A, B, C), {})


def test_freeze_comes_at_d_scatter_without_who_is_late() -> None:
    op = table()
    op.got(0, A, B)
    op.got(1, A, B)
    op.got(2, A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None
    assert op.decide(SCATTER_S) == Freeze(1, (A, B), {C: "late"})


def test_freeze_does_not_wait_for_the_dead_and_says_lost() -> None:
    op = with_receivers(D)
    op.alive = {A, B, D}
    assert [type(d) for d in op.decide_all()] == [Reassign]
    op.got(0, A, B)
    op.got(1, A, B)
    assert op.decide() == Freeze(1, (A, B), {C: "lost"})


def test_freeze_does_not_wait_for_receivers() -> None:
    op = with_receivers(D, E)
    op.got_all()
    assert op.decide() == Freeze(1, (A, B, C), {})


def test_a_refused_contribution_and_a_withdrawn_one_are_left_out_with_their_reasons() -> None:
    op = table(A, B, C, D)
    op.op.hear(D, Withdraw(op.view.plan_id, "nonfinite"))
    op.got(0, A, B, refused={C: "scale"})
    for index in (1, 2, 3):
        op.got(index, A, B, C, D)
    freeze = op.decide()
    assert freeze == Freeze(1, (A, B), {C: "refused:scale", D: "withdrew:nonfinite"})


def test_reasons_that_peers_choose_are_short() -> None:
    op = table(A, B, C, D)
    op.op.hear(D, Withdraw(op.view.plan_id, "x" * 100_000))
    for index in op.indexes:
        op.got(index, A, B, refused={C: "y" * 100_000})
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert all(len(reason) < 60 for reason in freeze.excluded.values())


def test_one_unreachable_owner_is_relieved_at_d_scatter_and_nobody_is_left_out() -> None:
    op = table(A, B, C, D)
    for index in (0, 1, 2):
        op.got(index, A, B, C, D)
    op.got(3, D)
    assert op.decide(SCATTER_S) == Reassign(1, 3, 1, A, "unreachable for most")
    assert op.decide() == Freeze(1, (A, B, C, D), {})


def test_one_bad_link_never_empties_the_set() -> None:
    for owner in range(4):
        for contributor in (A, B, C, D):
            op = table(A, B, C, D)
            for index in op.indexes:
                op.got(index, *({A, B, C, D} - ({contributor} if index == owner else set())))
            freeze = op.decide(SCATTER_S)
            assert isinstance(freeze, Freeze)
            assert set(freeze.contributors) == {A, B, C, D} - {contributor}


def test_too_few_contributors_at_d_scatter_skip_the_op() -> None:
    op = table(min_contributors=2)
    op.got(0, A)
    op.got(1, A, B)
    op.got(2, A, C)
    decision = op.decide(SCATTER_S)
    assert isinstance(decision, Skip)
    assert op.decide_all() == []


def test_too_few_living_contributors_skip_the_op_at_once() -> None:
    op = table(min_contributors=2)
    op.alive = {A}
    assert isinstance(op.decide(), Skip)


# ---- REASSIGN and SFREEZE


def test_a_dead_owner_is_relieved_before_freeze_without_an_excluded_survivor() -> None:
    op = table()
    op.got_all()
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    assert op.decide() == Freeze(1, (A, B), {C: "lost"})
    op.got(2, A, B)
    assert op.decide() == SliceFreeze(1, 2, 1, (A, B))


def test_a_dead_owner_is_relieved_after_freeze_and_its_contribution_stands_elsewhere() -> None:
    op = table()
    op.freeze()
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    assert op.decide() is None
    op.got(2, A, B)
    assert op.decide() == SliceFreeze(1, 2, 1, (A, B))
    assert op.view.slice_sets == [(A, B, C), (A, B, C), (A, B)]


def test_a_slice_is_not_made_again_while_all_its_chunks_are_held() -> None:
    op = table()
    op.freeze()
    op.done(2)
    op.have(2, A, chunks=(True, False))
    op.have(2, B, chunks=(False, True))
    op.lose(C)
    assert op.decide() is None
    op.lose(B)
    decision = op.decide()
    assert isinstance(decision, Reassign)
    assert (decision.slice_index, decision.attempt, decision.owner) == (1, 1, A)


def test_a_published_slice_of_which_a_chunk_is_held_by_nobody_alive_is_made_again() -> None:
    op = table()
    op.freeze()
    op.done(2)
    op.have(2, A, B, chunks=(True, False))
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")


def test_what_a_restarted_process_held_does_not_count() -> None:
    op = table()
    op.freeze()
    op.done(2)
    assert op.op.returned(C, b"another boot") == []
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")


def test_a_returning_process_hears_what_was_published_and_a_stranger_nothing() -> None:
    op = table()
    op.freeze()
    news = op.done(1)
    assert op.op.returned(A, BOOT) == [news]
    assert op.op.returned(STRANGER, BOOT) == []


def test_a_silent_owner_is_relieved_at_d_gather_only() -> None:
    op = table()
    op.freeze()
    op.done(0)
    op.done(1)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.decide(GATHER_S) == Reassign(1, 2, 1, A, "owner silent")


def test_an_owner_is_not_relieved_for_silence_before_freeze() -> None:
    op = table()
    op.got(0, A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None


def test_the_next_owner_is_new_to_the_slice_and_has_the_fewest_slices() -> None:
    op = table(A, B, C, D)
    op.got_all()
    op.lose(D)
    first = op.decide()
    assert isinstance(first, Reassign) and first.owner == A
    op.lose(C)
    second = op.decide()
    assert isinstance(second, Reassign) and (second.slice_index, second.owner) == (2, B)
    op.lose(A)
    moved = [d for d in op.decide_all() if isinstance(d, Reassign)]
    assert [(d.slice_index, d.attempt, d.owner) for d in moved] == [(0, 1, B), (3, 2, B)]


def test_without_a_new_owner_left_the_op_is_skipped() -> None:
    op = table(A, B)
    op.freeze()
    op.lose(A)
    assert op.decide() == Reassign(1, 0, 1, B, "owner lost")
    op.lose(B)
    op.alive.add(A)
    decision = op.decide_all()[-1]
    assert isinstance(decision, Skip) and "no owner is left" in decision.reason


def test_a_silent_owner_that_cannot_be_replaced_does_not_hide_a_dead_one() -> None:
    op = table()
    for owner in (B, C):
        op.view.apply(Reassign(1, 0, op.view.attempts[0] + 1, owner, "test"))
    op.got_all()
    assert isinstance(op.decide(), Freeze)
    op.got(0, A, B, C)
    assert isinstance(op.decide(), SliceFreeze)
    op.lose(B)
    decisions = op.decide_all(GATHER_S)
    assert any(isinstance(d, Reassign) and d.slice_index == 1 for d in decisions)


def test_sfreeze_waits_for_the_living_then_names_what_the_new_owner_has() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.lose(D)
    op.decide_all(10.0)
    op.got(3, A)
    assert op.decide(10.0 + REPAIR_S - 0.01) is None
    assert op.decide(10.0 + REPAIR_S) == SliceFreeze(1, 3, 1, (A,))


def test_sfreeze_takes_what_a_dead_contributor_had_sent_already() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.lose(D)
    op.decide_all(10.0)
    op.got(3, A, B, C)
    op.lose(C)
    freezes = [d for d in op.decide_all() if isinstance(d, SliceFreeze)]
    assert freezes == [SliceFreeze(1, 3, 1, (A, B, C))]


def test_sfreeze_never_names_whom_freeze_left_out() -> None:
    op = table(A, B, C, D)
    op.lose(D)
    op.decide_all(SCATTER_S - 1)
    for index in (0, 1, 2):
        op.got(index, A, B)
    op.got(3, A, B, C)
    decisions = op.decide_all(SCATTER_S)
    assert Freeze(1, (A, B), {C: "late", D: "lost"}) in decisions
    assert SliceFreeze(1, 3, 1, (A, B)) in decisions


def test_too_few_contributors_of_a_repaired_slice_skip_the_op() -> None:
    op = table(min_contributors=2)
    op.freeze()
    op.lose(C)
    op.decide_all(10.0)
    op.got(2, A)
    assert isinstance(op.decide(10.0 + REPAIR_S), Skip)


def test_each_death_extends_the_deadline_to_twice_its_length_at_most() -> None:
    op = table(A, B, C, D, E)
    op.freeze()
    for number, peer in enumerate((E, D, C), start=1):
        op.lose(peer)
        op.decide_all()
        assert op.op.timers.end_s == pytest.approx(min(200.0, 100.0 + 50.0 * number))


# ---- reports that do not count


def test_reports_of_other_owners_attempts_and_slices_change_nothing() -> None:
    op = table()
    absurd = [(-1, 0), (3, 0), (1 << 62, 0), (0, 1), (0, -1), (0, 1 << 62)]
    for index, attempt in absurd:
        op.op.hear(A, Got(op.view.plan_id, index, attempt, (A, B, C), {B: "scale"}))
        op.op.hear(A, SliceDone(op.view.plan_id, index, attempt, 0, (bytes(32),)))
        op.op.hear(A, Have(op.view.plan_id, index, attempt, 0, (True,)))
    op.op.hear(B, Got(op.view.plan_id, 0, 0, (A, B, C), {C: "scale"}))
    assert not op.op.got and not op.op.refused and not op.op.published and not op.op.holders


def test_only_planned_contributors_count_in_got() -> None:
    op = with_receivers(D)
    op.got(0, A, STRANGER, D, b"", refused={STRANGER: "scale", D: "scale"})
    assert op.op.got == {(0, 0): {A}}
    assert not op.op.refused


def test_slice_done_counts_with_the_frozen_set_and_one_hash_per_chunk() -> None:
    op = table()
    plan_id = op.view.plan_id
    hashes = op.hashes(0)
    name = set_id((A, B, C))
    assert op.op.hear(A, SliceDone(plan_id, 0, 0, name, hashes)) is None
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
        assert op.op.hear(peer, SliceDone(plan_id, 0, 0, claimed, listed)) is None
    assert not op.op.published
    expected = Hashes(plan_id, 0, 0, name, hashes)
    assert op.op.hear(A, SliceDone(plan_id, 0, 0, name, hashes)) == expected


def test_the_first_slice_done_stands_and_is_relayed_once() -> None:
    """Or one owner could make the coordinator send to everybody as often as it likes."""
    op = table()
    op.freeze()
    assert op.done(0) is not None
    assert op.done(0) is None
    other = tuple(bytes([9]) * 32 for _ in op.hashes(0))
    again = SliceDone(op.view.plan_id, 0, 0, set_id((A, B, C)), other)
    assert op.op.hear(A, again) is None
    assert op.op.published[(0, 0)].chunk_hashes == op.hashes(0)


def test_have_counts_for_members_and_for_the_named_set_only() -> None:
    op = table()
    op.freeze()
    op.done(0)
    before = {key: set(value) for key, value in op.op.holders.items()}
    op.have(0, STRANGER)
    op.op.hear(B, Have(op.view.plan_id, 0, 0, 12345, (True, True)))
    assert op.op.holders == before
    op.op.hear(B, Have(op.view.plan_id, 0, 0, set_id((A, B, C)), (True,) * 100_000))
    assert set(op.op.holders) == {(0, 0, 0), (0, 0, 1)}


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
    assert isinstance(op.decide(GATHER_S), Commit)


def test_after_d_gather_each_chunk_still_needs_its_holders() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.publish(A)
    for index in op.indexes:
        op.have(index, B, chunks=(True, False))
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

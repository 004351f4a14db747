"""Marks against a peer, and evictions, are read from ledgers, from `status` and from logs."""

import logging

import msgspec

from swarmtrain.chaos.siege.report import Extent, PhaseReport, losses
from swarmtrain.chaos.siege.standing import (
    evicted,
    first_unawaited,
    marks_in_ledger,
    marks_in_log,
    marks_in_status,
    most_weight,
)
from swarmtrain.peer.network.complaints import Complaints
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus, RoundEvent
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import Freeze, Gone, Member, Reassign, Skip, SliceFreeze
from tests.chaos.test_invariants import A, B, C, committed, plan


def peer(key: bytes, rests: str = "") -> PeerStatus:
    return PeerStatus(
        key.hex(), "otter", "training", 1, 0, 0.0, 0.0, 0, 0, 0, 0, "", 0.0, rests=rests
    )  # fmt: skip


def status(
    events: tuple[RoundEvent, ...] = (), peers: tuple[PeerStatus, ...] = ()
) -> CoordinatorStatus:
    return CoordinatorStatus(
        "run", 1, 1, 1, 5, "training", "", 9, peers, {}, (), events, -1
    )  # fmt: skip


def names_of(found) -> list[str]:
    return [violation.invariant for violation in found]


def test_only_an_honest_peer_that_was_thrown_out_is_a_violation():
    honest = {A: "badger", B: "crane"}
    gone = [Gone(A, False, "asked"), Gone(C, True, "flood"), Gone(B, True, "silent")]
    assert names_of(evicted([*committed(1), *gone], honest)) == ["evicted"]
    assert names_of(evicted(gone[:2], honest)) == []


def test_marks_are_what_was_done_about_the_hostile_member_alone():
    bodies = [
        plan(1), Reassign(1, 0, 1, B, "unpublished"), Reassign(1, 0, 2, A, "lost"),
        Freeze(1, (A,), {B: "late", C: "late"}), Gone(B, True, "flood"),
        Gone(C, True, "silent"),
    ]  # fmt: skip
    assert marks_in_ledger(bodies, {C}) == {"left out: late": 1}
    assert marks_in_ledger(bodies, {B}) == {
        "slice taken away: lost": 1, "left out: late": 1, "evicted: flood": 1,
    }  # fmt: skip
    assert not marks_in_ledger(committed(1), {A, B, C})


def test_whose_word_it_was_and_for_whom_an_op_has_waited_is_a_mark_too():
    (_, freeze, commit) = committed(1)
    bodies = [
        plan(1), msgspec.structs.replace(freeze, excluded={C: "roots"}, accusers={C: (A, B)}),
        Reassign(1, 0, 1, B, "words differ", {C: "roots"}),
        SliceFreeze(1, 0, 1, (A,), {C: "absent"}),
        msgspec.structs.replace(commit, behind=(A,)), Skip(2, "deadline", {A: "owner silent"}),
    ]  # fmt: skip
    assert marks_in_ledger(bodies, {A}) == {
        "named as accuser": 1, "slice taken away: words differ": 1, "behind": 1,
        "skipped for it: owner silent": 1,
    }  # fmt: skip
    assert marks_in_ledger(bodies, {B}) == {"named as accuser": 2}


def test_coming_and_going_is_no_mark():
    events = tuple(
        RoundEvent(1, A.hex(), event, "", 2) for event in ("joined", "left", "lost", "flooding")
    )
    view = status(events=events, peers=(peer(A),))
    assert marks_in_status(view, {A}) == {"status: flooding": 2}
    assert not marks_in_status(view, {B})


def test_who_sits_something_out_is_marked_in_status():
    view = status(peers=(peer(A, rests="owns nothing until round 9"),))
    assert marks_in_status(view, {A}) == {"status: rests": 1}


def test_a_peer_that_is_named_in_a_log_is_found_there(caplog):
    caplog.set_level(logging.INFO)
    complaints = Complaints(lambda: 0.0)
    complaints.mention(A, RemoteFault("backtalk", "over our own connection"))
    complaints.count(B, "run", "a frame of another run")
    complaints.mention(None, RemoteFault("key", f"key {C.hex()[:8]} is not allowed here"))
    lines = [*caplog.messages, "10:12:56  round 3  merged with 4 peers"]
    assert marks_in_log(lines, {A}) == 1 and marks_in_log(lines, {A, B}) == 2
    assert marks_in_log(lines, {C}) == 0


def test_a_boast_is_seen_in_the_weights_of_a_plan():
    members = tuple(
        Member(peer, b"boot" * 2, weight) for peer, weight in ((A, 255), (B, 50), (C, 80))
    )
    boasted = msgspec.structs.replace(plan(1), members=members)
    assert most_weight([plan(1), boasted], {A}) == 255 / 80
    assert most_weight([plan(1), boasted], {C}) == 1.0
    assert most_weight([plan(1), boasted], set()) == 0.0


def test_what_one_member_may_cost_the_others_is_bounded_and_it_must_be_named():
    quiet = Extent(10.0, 1.0, 1.0)
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 4.05, True)) == []
    assert names_of(losses(quiet, Extent(10.0, 0.4, 0.5), 4.05, True)) == ["rate"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.4), 4.05, True)) == ["share"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 85.0, True)) == ["weight"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 4.05, False)) == ["named"]


def test_each_phase_is_judged_by_itself_once_nobody_waits_for_the_offender():
    quiet, offended = Extent(10.0, 1.0, 1.0), Extent(10.0, 0.8, 1.0)
    phases = [
        PhaseReport("undisturbed", 10.0, 10, 10, "", {}, {}),
        PhaseReport("drag", 40.0, 8, 8, "all", {}, {}, found_s=4.0, judged_per_s=0.6),
        PhaseReport("ready-late", 40.0, 8, 8, "all", {}, {}, found_s=4.0, judged_per_s=0.4),
    ]
    (found,) = losses(quiet, offended, 1.0, True, phases)
    assert found.invariant == "rate" and found.story.startswith("ready-late: 0.40 rounds")
    late = msgspec.structs.replace(plan(3), unawaited=(A,))
    assert first_unawaited([plan(1), late], {A}, 0) == 3
    assert first_unawaited([plan(1), late], {A}, 3) == first_unawaited([late], {B}, 0) == -1


def test_the_share_is_that_of_the_peer_which_had_the_least():
    phases = [
        PhaseReport("boast", 4.0, 6, 3, "all", {}, {}),
        PhaseReport("drag", 4.0, 2, 1, "one", {}, {}),
    ]  # fmt: skip
    assert Extent.of(phases) == Extent(8.0, 1.0, 0.5)
    assert Extent.of([]) == Extent(0.0, 0.0, 0.0)

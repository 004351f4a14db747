"""What a ledger and `status` hold against somebody is read from them, and so are evictions."""

import msgspec

from swarmtrain.chaos.siege_report import Extent, PhaseReport, losses
from swarmtrain.chaos.standing import evicted, marks_in_ledger, marks_in_status, most_weight
from swarmtrain_transport.ledger import Freeze, Gone, Member, Reassign
from tests.chaos.test_invariants import A, B, C, committed, plan


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
    ]  # fmt: skip
    assert marks_in_ledger(bodies, {C}) == {"left out: late": 1}
    assert marks_in_ledger(bodies, {B}) == {
        "slice taken away: lost": 1, "left out: late": 1, "evicted: flood": 1,
    }  # fmt: skip
    assert not marks_in_ledger(committed(1), {A, B, C})


def test_coming_and_going_is_no_mark():
    events = [
        {"round": 1, "peer": A.hex(), "event": event, "reason": ""}
        for event in ("joined", "left", "lost", "flooding", "flooding")
    ]
    assert marks_in_status({"events": events}, {A}) == {"status: flooding": 2}
    assert not marks_in_status({"events": events}, {B})


def test_a_boast_is_seen_in_the_weights_of_a_plan():
    members = tuple(
        Member(peer, b"boot" * 2, weight) for peer, weight in ((A, 255), (B, 50), (C, 80))
    )
    boasted = msgspec.structs.replace(plan(1), members=members)
    assert most_weight([plan(1), boasted], {A}) == 255 / 50
    assert most_weight([plan(1), boasted], {C}) == 80 / 50
    assert most_weight([plan(1), boasted], set()) == 0.0


def test_what_one_member_may_cost_the_others_is_bounded_and_it_must_be_named():
    quiet, marks = Extent(10.0, 1.0, 1.0), {"left out: late": 1}
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 4.05, marks)) == []
    assert names_of(losses(quiet, Extent(10.0, 0.4, 0.5), 4.05, marks)) == ["rate"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.4), 4.05, marks)) == ["share"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 85.0, marks)) == ["weight"]
    assert names_of(losses(quiet, Extent(10.0, 0.5, 0.5), 4.05, {})) == ["named"]


def test_the_share_is_that_of_the_peer_which_had_the_least():
    phases = [PhaseReport("boast", 4.0, 6, 3, "all", {}), PhaseReport("drag", 4.0, 2, 1, "one", {})]
    assert Extent.of(phases) == Extent(8.0, 1.0, 0.5)
    assert Extent.of([]) == Extent(0.0, 0.0, 0.0)

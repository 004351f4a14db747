"""A peer's side of one op: invitations, reports, withdrawals, and the same result for all."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendControl, SendFrame
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import set_id
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, pack_credit, unpack_credit
from swarmtrain_transport.wire.messages import Got, Hashes, Have, Roots, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Freeze, Member, Reassign, SliceFreeze
from tests.transport.collective.bench import TAG, Bench, on_paper, part, values
from tests.transport.plain_arithmetic import (
    ILLEGAL_SCALE,
    encode_part,
)
from tests.transport.rig import BOOT, STRANGER, A, B, C, D, plan_body

# ---- T2: scatter


def test_an_owner_takes_its_own_part_and_invites_the_others() -> None:
    bench = Bench().begin()
    kinds = [frame.kind for frame in bench.wires[A, B]]
    assert kinds == [FrameKind.RANGES, FrameKind.PART, FrameKind.PART]  # PLAN is an invitation
    ranges = Ranges.unpack(bench.wires[A, B][0].body)
    assert ranges == Ranges(limits.CREDIT_WINDOW_BYTES, 0, (False, False))
    assert [tuple(got.complete) for got in bench.said(A, Got)] == [(A,)]


def test_invitations_and_parts_leave_before_everything_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OWN_AT_ONCE", 0)
    monkeypatch.setattr(limits, "PUMP_CHUNKS", 1)
    monkeypatch.setattr(limits, "UNINVITED_BYTES", 0)
    bench = Bench().begin()
    assert [frame.kind for frame in bench.wires[A, B]] == [FrameKind.RANGES]
    assert [tuple(got.complete) for got in bench.said(A, Got)] == [()]
    exchange = bench.peers[A]
    assert exchange.next_wakeup_s == 0.0
    bench.deliver(B, A)
    assert [frame.chunk for frame in bench.wires[A, B][1:]] == [0]
    while exchange.next_wakeup_s == 0.0:
        bench.take(A, exchange.tick(0.0))
    assert [frame.chunk for frame in bench.wires[A, B][1:]] == [0, 1]
    assert [tuple(got.complete) for got in bench.said(A, Got)] == [(), (A,)]


def test_got_follows_when_a_contribution_is_whole_and_not_before() -> None:
    bench = Bench().begin()
    bench.told[A].clear()
    frames = [part(0, chunk, encode_part([2008 + 4 * chunk + i for i in range(4)])) for chunk in
              range(2)]  # fmt: skip
    bench.take(A, bench.peers[A].frame(B, frames[0], 0.0))
    assert bench.told[A] == []
    bench.take(A, bench.peers[A].frame(B, frames[1], 0.0))
    assert [tuple(got.complete) for got in bench.told[A]] == [(A, B)]
    bench.take(A, bench.peers[A].frame(B, frames[1], 0.0))
    assert [tuple(got.complete) for got in bench.told[A]] == [(A, B)]


def test_a_silent_contributor_is_invited_again_and_only_for_what_is_missing() -> None:
    bench = Bench().begin()
    bench.take(A, bench.peers[A].frame(B, part(0, 1, encode_part([0] * 4)), 0.0))
    bench.wires.clear()
    bench.tick(limits.NUDGE_S + 0.1)
    assert Ranges.unpack(bench.wires[A, B][0].body).chunks == (False, True)
    assert Ranges.unpack(bench.wires[A, C][0].body).chunks == (False, False)
    bench.wires.clear()
    bench.tick(limits.NUDGE_S + 0.2)
    assert not bench.wires


def test_lost_frames_are_healed_by_the_next_invitation() -> None:
    bench = Bench().begin()
    for wire in bench.wires.values():
        del wire[:]
    bench.tick(2.0)
    bench.deliver_all()
    assert [set(got[-1].complete) for got in (bench.said(p, Got) for p in (A, B, C))] == [
        {A, B, C}
    ] * 3


def test_whoever_is_complete_or_refused_is_not_invited_again() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    bench.tick(50.0)
    assert not any(bench.wires.values())


def test_credit_is_granted_as_bytes_arrive_and_stays_one_window_ahead() -> None:
    """Slices of many large chunks: what may be under way never exceeds the window."""
    plan = plan_body((A, B), num_values=1 << 23, chunk_values=1 << 18, exact=False)
    bench = Bench(plan)
    body = encode_part([0] * (1 << 18))
    exchange = bench.peers[A]
    exchange.decided(0.0)
    granted, received = limits.CREDIT_WINDOW_BYTES, 0
    for chunk in range(16):
        assert received + len(body) <= granted
        received += len(body)
        for action in exchange.frame(B, part(0, chunk, body), 0.0):
            if isinstance(action, SendFrame) and action.frame.kind is FrameKind.CREDIT:
                granted = unpack_credit(action.frame.body)
        assert granted <= received + limits.CREDIT_WINDOW_BYTES


@pytest.mark.parametrize("body", [encode_part([0] * 4, ILLEGAL_SCALE), encode_part([0] * 3), b""])
def test_an_illegal_part_is_reported_in_got_once(body: bytes) -> None:
    bench = Bench().begin()
    exchange = bench.peers[A]
    with pytest.raises(RemoteFault):
        exchange.frame(B, part(0, 0, body), 0.0)
    (report,) = exchange.fault_report(0)
    assert isinstance(report, SendControl) and isinstance(report.message, Got)
    assert set(report.message.refused) == {B}
    assert exchange.fault_report(0) == []
    assert exchange.frame(B, part(0, 0, encode_part([0] * 4)), 0.0) == []
    again = [a.message for a in exchange.resend(0.0) if isinstance(a, SendControl)]
    assert any(isinstance(m, Got) and set(m.refused) == {B} for m in again)


def test_faults_that_refuse_nobody_are_no_news_for_the_coordinator() -> None:
    """Or one hostile member could make us flood the control lane."""
    bench = Bench().begin()
    exchange = bench.peers[A]
    for peer, chunk in ((STRANGER, 0), (B, 2), (B, 1 << 31)):
        with pytest.raises(RemoteFault):
            exchange.frame(peer, part(0, chunk, encode_part([0] * 4)), 0.0)
        assert exchange.fault_report(0) == []
    assert exchange.fault_report(99) == []


def test_parts_of_other_slices_and_attempts_change_nothing() -> None:
    bench = Bench().begin()
    for index, attempt in ((1, 0), (9, 0), (65535, 0), (0, 1), (0, 65535)):
        assert bench.peers[A].frame(B, part(index, 0, b"rubbish", attempt), 0.0) == []


def test_stale_and_repeated_parts_are_counted() -> None:
    bench = Bench().begin()
    for frame in (part(0, 0, encode_part([0] * 4)), part(0, 0, encode_part([1] * 4)),
                  part(0, 0, b"rubbish", 1), part(1, 0, b"rubbish")):  # fmt: skip
        bench.peers[A].frame(B, frame, 0.0)
    assert bench.ignored == {"repeated": 1, "stale": 2}


def test_rubbish_in_credit_is_refused() -> None:
    bench = Bench().begin()
    for body in (b"", b"1234567", b"123456789"):
        with pytest.raises(RemoteFault):
            bench.peers[A].frame(B, Frame(FrameKind.CREDIT, TAG, body=body), 0.0)
    assert bench.peers[A].frame(B, Frame(FrameKind.CREDIT, TAG, body=pack_credit(9)), 0.0) == []


# ---- withdrawal


def test_values_that_are_no_number_are_withdrawn_and_nothing_more_is_sent() -> None:
    bench = Bench(p1=[None, *values(A)[1:]]).begin()
    assert bench.said(A, Withdraw) == [Withdraw(bench.view.plan_id, "nonfinite")]
    bench.deliver_all()
    assert not [f for (s, _), fs in bench.wires.items() if s == A for f in fs]
    assert bench.said(A, Got)[-1].complete.keys() == {B, C}
    assert bench.said(B, Got)[-1].complete.keys() == {B, C}


def test_a_withdrawal_is_said_again_after_hello() -> None:
    """The coordinator may have restarted: it would wait for us until D_scatter."""
    bench = Bench(p1=[None, *values(A)[1:]]).begin()
    again = [a.message for a in bench.peers[A].resend(1.0) if isinstance(a, SendControl)]
    assert Withdraw(bench.view.plan_id, "nonfinite") in again


def test_a_withdrawal_amid_scatter_is_subtracted_everywhere() -> None:
    late: list[int | None] = values(A)
    late[20] = None
    bench = Bench(p1=late).begin()
    bench.deliver_all()
    assert bench.said(A, Withdraw)
    bench.decide(Freeze(1, (B, C), {A: "withdrew:nonfinite"}))
    for index in range(3):
        assert bench.result_of(index) == on_paper(index, (B, C))


# ---- T5 to T7: freeze, publish, repair


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.sets(st.sampled_from([A, B, C]), min_size=1))
def test_any_order_of_frames_gives_the_same_sums_and_hashes(seed: int, kept: set[PeerId]) -> None:
    rng = random.Random(seed)
    bench = Bench().begin()
    while busy := [pair for pair, frames in bench.wires.items() if frames]:
        bench.deliver(*rng.choice(busy))
        if rng.random() < 0.1:
            bench.tick(bench.now_s + rng.choice([0.5, 1.0, 2.5]))
    contributors = tuple(sorted(kept))
    bench.decide(Freeze(1, contributors, dict.fromkeys({A, B, C} - kept, "late")))
    for index in range(3):
        assert bench.result_of(index) == on_paper(index, contributors)
        done = bench.said(bench.view.owners[index], SliceDone)
        # What was foreseen comes first, where it turned out otherwise.
        foreseen = () if kept == {A, B, C} else (set_id((A, B, C)),)
        assert [d.set_id for d in done] == [*foreseen, set_id(contributors)]


def test_a_reassigned_slice_is_made_again_by_its_new_owner_from_the_same_parts() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    bench.decide(Freeze(1, (A, B, C), {}))
    del bench.peers[C]
    bench.decide(Reassign(1, 2, 1, A, "owner lost"))
    bench.deliver_all()
    got = [g for g in bench.said(A, Got) if (g.slice_index, g.attempt) == (2, 1)]
    assert set(got[-1].complete) == {A, B}
    bench.decide(SliceFreeze(1, 2, 1, (A, B)))
    assert bench.result_of(2) == on_paper(2, (A, B))
    assert bench.result_of(0) == on_paper(0, (A, B, C))


def test_a_replaced_owner_that_is_alive_stops_summing() -> None:
    bench = Bench().begin()
    bench.decide(Reassign(1, 2, 1, A, "unreachable for most"))
    bench.deliver_all()
    bench.decide(Freeze(1, (A, B, C), {}))
    bench.decide(SliceFreeze(1, 2, 1, (A, B, C)))
    assert bench.said(C, SliceDone) == []
    assert bench.result_of(2) == on_paper(2, (A, B, C))


def test_a_new_owner_invites_only_whom_freeze_kept() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    bench.decide(Freeze(1, (A, B), {C: "late"}))
    bench.wires.clear()
    bench.decide(Reassign(1, 1, 1, C, "owner silent"))
    assert [target for (source, target), fs in bench.wires.items() if source == C and fs] == [A, B]
    bench.deliver_all()
    got = [g for g in bench.said(C, Got) if g.slice_index == 1]
    assert got[-1].complete.keys() == {A, B}


# ---- HASHES, HAVE


def published() -> Bench:
    """Results are published, but what their owners pushed is lost: they are asked for."""
    bench = Bench()
    bench.lost.add(FrameKind.RESULT)
    bench.begin().deliver_all()
    bench.decide(Freeze(1, (A, B, C), {}))
    return bench


def fetch_all(bench: Bench, peer: PeerId, *skip: bytes) -> None:
    """Hand `peer` the blobs that it asks others for, except those of `skip`."""
    bench.tick(bench.now_s + limits.PUSH_QUIET_S)
    for source, digest in bench.fetchers[peer].requests(bench.now_s):
        blob = bench.blobs[source].get(digest)
        if (
            blob is not None
            and digest not in skip
            and bench.fetchers[peer].arrived(source, digest, bench.now_s)
        ):
            bench.take(peer, bench.peers[peer].blob_arrived(digest, blob, bench.now_s))


def test_have_is_said_when_a_slice_is_whole() -> None:
    bench = published()
    bench.relay()
    assert [h.slice_index for h in bench.said(A, Have)] == [0]
    fetch_all(bench, A)
    assert sorted(h.slice_index for h in bench.said(A, Have)) == [0, 1, 2]
    assert all(h.chunks == (True, True) for h in bench.said(A, Have))


def test_a_part_of_a_slice_is_reported_when_time_passes() -> None:
    bench = published()
    bench.relay()
    lacking = bench.said(B, SliceDone)[0].chunk_hashes[0]
    fetch_all(bench, A, lacking)
    assert not [h for h in bench.said(A, Have) if h.slice_index == 1]
    bench.tick(5.0)
    assert [h.chunks for h in bench.said(A, Have) if h.slice_index == 1] == [(False, True)]
    bench.tick(10.0)
    assert len([h for h in bench.said(A, Have) if h.slice_index == 1]) == 1


def test_have_is_said_again_when_a_restarted_coordinator_relays_the_hashes_again() -> None:
    """Our HAVE may have reached it before the owner's SLICE_DONE, and was dropped."""
    bench = published()
    bench.relay()
    fetch_all(bench, A)
    bench.told[A] = [m for m in bench.told[A] if not isinstance(m, Have)]
    bench.relay(A)
    assert sorted(h.slice_index for h in bench.said(A, Have)) == [0, 1, 2]


def test_have_is_said_for_a_new_attempt_even_if_the_old_one_was_whole() -> None:
    bench = published()
    bench.relay()
    fetch_all(bench, A)
    bench.decide(Reassign(1, 2, 1, B, "owner lost"))
    bench.deliver_all()
    bench.decide(SliceFreeze(1, 2, 1, (A, B)))
    bench.relay()
    fetch_all(bench, A)
    assert (2, 1) in [(h.slice_index, h.attempt) for h in bench.said(A, Have)]


def test_hashes_of_other_attempts_slices_and_lengths_are_ignored() -> None:
    bench = published()
    plan_id, some = bench.view.plan_id, (bytes(32), bytes(32))
    for index, attempt, hashes in (
        (-1, 0, some), (3, 0, some), (1 << 62, 0, some), (1, 1, some), (1, -1, some),
        (1, 0, some[:1]), (1, 0, (*some, bytes(32))), (1, 0, ()),
    ):  # fmt: skip
        message = Hashes(plan_id, index, attempt, 0, hashes)
        assert bench.peers[A].hashes(message, 0.0) == []
    assert not bench.fetchers[A].is_wanted(bytes(32))


def test_a_void_attempt_is_no_longer_asked_for() -> None:
    bench = published()
    bench.relay()
    digests = bench.said(C, SliceDone)[0].chunk_hashes
    bench.tick(limits.PUSH_QUIET_S)
    assert all(bench.fetchers[A].is_wanted(digest) for digest in digests)
    bench.decide(Reassign(1, 2, 1, B, "owner lost"))
    assert not any(bench.fetchers[A].is_wanted(digest) for digest in digests)


def test_close_wants_nothing_more() -> None:
    bench = published()
    bench.relay()
    bench.peers[A].close()
    assert bench.fetchers[A].requests(0.0) == []


def test_after_hello_everything_is_said_again() -> None:
    bench = published()
    bench.relay()
    fetch_all(bench, A)
    again = [a.message for a in bench.peers[A].resend(1.0) if isinstance(a, SendControl)]
    assert {type(message) for message in again} == {Roots, Got, SliceDone, Have}
    assert sorted(m.slice_index for m in again if isinstance(m, Have)) == [0, 1, 2]
    done = [m for m in again if isinstance(m, SliceDone)]
    assert done == bench.said(A, SliceDone)


def test_a_receiver_sends_no_part_but_gathers_and_may_become_an_owner() -> None:
    members = (Member(A, BOOT, 1), Member(B, BOOT, 1), Member(D, BOOT, 0))
    bench = Bench(plan_body((A, B), num_values=16, members=members)).begin()
    bench.deliver_all()
    assert bench.peers[D].sender is None
    bench.decide(Reassign(1, 1, 1, D, "owner lost"))
    bench.deliver_all()
    assert bench.said(D, Got)[-1].complete.keys() == {A, B}
    bench.decide(Freeze(1, (A, B), {}))
    bench.decide(SliceFreeze(1, 1, 1, (A, B)))
    bench.relay()
    fetch_all(bench, D)
    places = [(have.slice_index, have.attempt) for have in bench.said(D, Have)]
    assert sorted(places) == [(0, 0), (1, 0), (1, 1)]  # of the first it had all before REASSIGN


def test_result_bytes_are_named_by_their_hash_and_served() -> None:
    bench = published()
    done = bench.said(A, SliceDone)[0]
    for digest in done.chunk_hashes:
        blob = bench.blobs[A].get(digest)
        assert blob is not None and content_hash(blob) == digest
    root = content_hash(b"".join(done.chunk_hashes))
    assert bench.blobs[A].get(root) == b"".join(done.chunk_hashes)

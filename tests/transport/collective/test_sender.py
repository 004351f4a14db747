"""Sending parts: by invitation, within credit, only what is missing, always the same bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import ContributionRefused
from swarmtrain_transport.collective.sender import Sender, uninvited_bytes
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges
from swarmtrain_transport.wire.records import Freeze, Member, Reassign, SliceFreeze
from tests.transport.plain_arithmetic import PlainContribution, decode_part
from tests.transport.rig import BOOT, STRANGER, A, B, C, plan_body, view_of

PART = 9
"""Bytes of one encoded chunk of four values."""

VALUES = list(range(24))
MUCH = 1 << 20


def sender_of(values: list[int | None] | None = None) -> tuple[Sender, OpView]:
    """Peer A of three, which sends two chunks each to B and C."""
    view = view_of(plan_body((A, B, C)))
    return Sender(A, view, PlainContribution(values or VALUES), 7), view


def ranges(
    view: OpView,
    index: int,
    *here: int,
    credit: int = MUCH,
    received: int = 0,
    attempt: int = 0,
    count: int = 2,
) -> Frame:
    flags = tuple(chunk in here for chunk in range(count))
    body = Ranges(credit, received, flags).pack()
    return Frame(FrameKind.RANGES, 7, view.plan_id, index, attempt, body=body)


def sent(sender: Sender, now_s: float = 0.0) -> list[tuple[PeerId, int, int, int]]:
    return [(p, f.slice_index, f.attempt, f.chunk) for p, f in sender.pump(now_s)]


def test_nothing_is_sent_before_an_invitation() -> None:
    sender, _ = sender_of()
    assert sent(sender) == []
    sender.credited(B, MUCH)
    assert sent(sender) == []


def test_as_much_as_a_peer_keeps_before_its_plan_goes_without_an_invitation() -> None:
    view = view_of(plan_body((A, B, C)))
    sender = Sender(A, view, PlainContribution(VALUES), 7, uninvited=PART)
    assert sent(sender) == [(B, 1, 0, 0), (C, 2, 0, 0)]
    sender.invited(B, ranges(view, 1), 0.1)  # nothing was there yet: it may be on its way
    assert sent(sender, 0.1) == [(B, 1, 0, 1)]
    sender.invited(B, ranges(view, 1), 3.0)
    assert sent(sender, 3.0) == [(B, 1, 0, 0), (B, 1, 0, 1)]


@pytest.mark.parametrize(
    ("count", "most"), [(2, limits.CREDIT_WINDOW_BYTES), (3, 4 << 20), (5, 2 << 20)]
)
def test_all_contributors_together_send_no_more_uninvited_than_is_kept(
    count: int, most: int
) -> None:
    peers = tuple(sorted(bytes([number]) * 32 for number in range(1, count + 1)))
    view = view_of(plan_body(peers))
    assert uninvited_bytes(view) == most
    assert (count - 1) * most <= limits.UNINVITED_BYTES


def test_an_invited_contributor_sends_every_chunk_once() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1), 0.0)
    sender.invited(B, ranges(view, 1), 0.0)
    frames = sender.pump(0.0)
    assert [(p, f.chunk) for p, f in frames] == [(B, 0), (B, 1)]
    assert [decode_part(f.body) for _, f in frames] == [(8, 9, 10, 11), (12, 13, 14, 15)]
    assert all((f.kind, f.plan_id, f.run_tag) == (1, view.plan_id, 7) for _, f in frames)
    assert sent(sender) == []
    assert sender.chunks_total == 4


def test_owners_take_turns_starting_after_our_own_place() -> None:
    sender, view = sender_of()
    sender.invited(C, ranges(view, 2), 0.0)
    sender.invited(B, ranges(view, 1), 0.0)
    assert [peer for peer, *_ in sent(sender)] == [B, C, B, C]


def test_ranges_ask_again_only_for_what_is_missing_and_not_at_once() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1), 0.0)
    assert len(sent(sender)) == 2
    sender.invited(B, ranges(view, 1, 0, received=PART), 1.0)
    assert sent(sender, 1.0) == []
    sender.invited(B, ranges(view, 1, 0, received=PART), 3.0)
    assert sent(sender, 3.0) == [(B, 1, 0, 1)]
    sender.invited(B, ranges(view, 1, 0, 1, received=2 * PART), 9.0)
    assert sent(sender, 9.0) == []


def test_a_chunk_that_arrived_late_is_not_sent_again_from_the_queue() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=PART), 0.0)
    assert sent(sender) == [(B, 1, 0, 0)]
    sender.invited(B, ranges(view, 1, credit=PART), 3.0)
    assert sent(sender, 3.0) == [(B, 1, 0, 1)]
    sender.invited(B, ranges(view, 1, 0, 1, credit=9 * PART, received=2 * PART), 3.1)
    assert sent(sender, 3.1) == []


def test_credit_is_never_exceeded_and_more_credit_sends_more() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=PART), 0.0)
    assert len(sent(sender)) == 1
    sender.credited(B, 2 * PART - 1)
    assert sent(sender) == []
    sender.credited(B, 2 * PART)
    assert sent(sender) == [(B, 1, 0, 1)]


def test_credit_is_cumulative_so_an_older_one_takes_nothing_back() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=PART), 0.0)
    sender.credited(B, 2 * PART)
    sender.credited(B, 0)
    sender.invited(B, ranges(view, 1, credit=PART), 0.0)
    assert len(sent(sender)) == 2


def test_credit_holds_for_all_slices_of_one_owner_together() -> None:
    """B owns its own slice and, after a death, C's: one window, not two."""
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=2 * PART), 0.0)
    assert len(sent(sender)) == 2
    view.apply(Reassign(1, 2, 1, B, "owner lost"))
    sender.invited(B, ranges(view, 2, attempt=1, credit=2 * PART), 0.1)
    assert sent(sender, 0.1) == []
    sender.credited(B, 4 * PART)
    assert len(sent(sender, 0.2)) == 2


def test_credit_used_by_what_was_lost_comes_back() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=2 * PART), 0.0)
    assert len(sent(sender)) == 2
    view.apply(Reassign(1, 2, 1, B, "owner lost"))
    for now_s in (1.0, 2.0, 3.0, 4.0):
        sender.invited(B, ranges(view, 1, credit=2 * PART), now_s)
        sender.invited(B, ranges(view, 2, attempt=1, credit=2 * PART), now_s)
    assert len(sent(sender, 4.0)) == 2


def test_a_resent_part_has_the_same_bytes_although_the_encoder_drifts() -> None:
    view = view_of(plan_body((A, B, C)))
    sender = Sender(A, view, PlainContribution(VALUES, drifting=True), 7)
    sender.invited(B, ranges(view, 1), 0.0)
    first = [bytes(f.body) for _, f in sender.pump(0.0)]
    sender.invited(B, ranges(view, 1), 10.0)
    again = [bytes(f.body) for _, f in sender.pump(10.0)]
    assert first == again
    view.apply(Reassign(1, 1, 1, C, "owner lost"))
    sender.invited(C, ranges(view, 1, attempt=1), 11.0)
    assert [bytes(f.body) for _, f in sender.pump(11.0)] == first


def test_a_stale_or_absurd_invitation_is_ignored() -> None:
    sender, view = sender_of()
    sender.invited(C, ranges(view, 1), 0.0)
    sender.invited(STRANGER, ranges(view, 1), 0.0)
    for index in (3, 99, 65535):
        sender.invited(B, ranges(view, index), 0.0)
    sender.invited(B, ranges(view, 1, attempt=5), 0.0)
    sender.invited(B, ranges(view, 1, attempt=65535), 0.0)
    assert sent(sender) == []


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_an_invitation_with_another_number_of_chunks_sends_nothing(count: int) -> None:
    sender, view = sender_of()
    try:
        sender.invited(B, ranges(view, 1, count=count), 0.0)
    except RemoteFault as fault:
        assert fault.reason == "length"
    assert sent(sender) == []


def test_a_huge_invitation_is_refused_before_it_is_unpacked() -> None:
    """A bitmap of 8 MiB would be 67 million flags."""
    sender, view = sender_of()
    count = 8 * (1 << 22)
    body = Ranges(MUCH, 0, ()).pack()[:16] + count.to_bytes(4, "little") + bytes(count // 8)
    frame = Frame(FrameKind.RANGES, 7, view.plan_id, 1, 0, body=body)
    with pytest.raises(RemoteFault) as caught:
        sender.invited(B, frame, 0.0)
    assert caught.value.reason == "length"


def test_the_same_length_check_holds_for_short_bodies() -> None:
    sender, view = sender_of()
    with pytest.raises(RemoteFault):
        sender.invited(B, Frame(FrameKind.RANGES, 7, view.plan_id, 1, 0, body=b"x"), 0.0)


def test_a_new_attempt_gets_everything_from_its_new_owner_only() -> None:
    sender, view = sender_of()
    sender.invited(B, ranges(view, 1, credit=PART), 0.0)
    assert len(sent(sender)) == 1
    view.apply(Reassign(1, 1, 1, C, "owner lost"))
    sender.credited(B, MUCH)
    assert sent(sender) == []
    sender.invited(C, ranges(view, 1, attempt=1), 0.5)
    assert sent(sender, 0.5) == [(C, 1, 1, 0), (C, 1, 1, 1)]
    assert sender.chunks_total == 4


def test_after_freeze_only_contributors_go_on_and_only_to_slices_that_are_made_again() -> None:
    for contributors, expected in (((A, B), 2), ((B, C), 0)):
        sender, view = sender_of()
        view.apply(Freeze(1, contributors, {}))
        sender.invited(B, ranges(view, 1), 0.0)
        assert sent(sender) == []
        view.apply(Reassign(1, 2, 1, B, "owner lost"))
        sender.invited(B, ranges(view, 2, attempt=1), 0.0)
        assert len(sent(sender)) == expected
        view.apply(SliceFreeze(1, 2, 1, contributors))
        sender.invited(B, ranges(view, 2, attempt=1), 9.0)
        assert sent(sender, 9.0) == []


def test_values_that_cannot_be_sent_are_refused_and_not_sent() -> None:
    sender, view = sender_of([*VALUES[:13], None, *VALUES[14:]])
    sender.invited(B, ranges(view, 1), 0.0)
    with pytest.raises(ContributionRefused):
        sender.pump(0.0)


def test_a_receiver_that_becomes_an_owner_is_served_too() -> None:
    plan = plan_body((A, B), num_values=24, members=(
        Member(A, BOOT, 1), Member(B, BOOT, 1), Member(C, BOOT, 0),
    ))  # fmt: skip
    view = view_of(plan)
    sender = Sender(A, view, PlainContribution(VALUES), 7)
    view.apply(Reassign(1, 1, 1, C, "owner lost"))
    sender.invited(C, ranges(view, 1, attempt=1, count=3), 0.0)
    assert len(sent(sender)) == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), max_size=70), st.integers(0, (1 << 64) - 1))
def test_ranges_survive_their_bytes_and_have_the_length_they_should(
    flags: list[bool], credit: int
) -> None:
    ranges_of = Ranges(credit, credit // 2, tuple(flags))
    body = ranges_of.pack()
    assert len(body) == Ranges.num_bytes(len(flags))
    assert Ranges.unpack(body) == ranges_of


@pytest.mark.parametrize("chunk_s", [0.7, 1.5, 3.0, 6.0])
def test_a_link_slower_than_our_patience_is_not_flooded_with_copies(chunk_s: float) -> None:
    """Sixteen chunks are under way, one arrives every so often, and the owner asks each second."""
    view = view_of(plan_body((A, B), num_values=128))
    sender = Sender(A, view, PlainContribution(list(range(128))), 7)
    under_way: list[int] = []
    here: set[int] = set()
    received = num_sent = 0
    now_s, due_s = 0.0, chunk_s
    while len(here) < 16:
        frame = ranges(view, 1, *here, credit=received + 16 * PART, received=received, count=16)
        sender.invited(B, frame, now_s)
        chunks = [f.chunk for _, f in sender.pump(now_s)]
        under_way += chunks
        num_sent += len(chunks)
        now_s += 1.0
        while under_way and due_s <= now_s:
            here.add(under_way.pop(0))
            received += PART
            due_s += chunk_s
    assert num_sent <= 3 * 16


def test_a_chunk_that_our_own_link_still_holds_is_not_sent_again() -> None:
    waiting = {B}
    _, view = sender_of()
    sender = Sender(A, view, PlainContribution(VALUES), 7, waiting.__contains__)
    sender.invited(B, ranges(view, 1), 0.0)
    assert len(sent(sender)) == 2
    for now_s in (20.0, 40.0, 60.0):
        sender.invited(B, ranges(view, 1), now_s)
        assert sent(sender, now_s) == []
    waiting.clear()
    sender.invited(B, ranges(view, 1), 120.0)
    assert len(sent(sender, 120.0)) == 2

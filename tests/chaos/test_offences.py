"""Tests of what a liar makes of an honest machine's messages, offence by offence."""

import hashlib

import pytest

from swarmtrain.chaos.siege.offences import BOASTED_SAMPLES, UNDERTAKINGS, Liar, Offence, Order
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.messages import (
    Applied,
    Got,
    Have,
    PeerMessage,
    Progress,
    Ready,
    Roots,
    SliceDone,
)

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
ROOT = bytes(32)

READY = Ready(3, 40, 2, ROOT)
ROOTS = Roots(9, (ROOT,), b"signed")
GOT = Got(9, 0, 0, {A: ROOT, B: ROOT, C: ROOT})
DONE = SliceDone(9, 0, 0, 1, (ROOT,), ROOT, b"signed")
HAVE = Have(9, 0, 0, 1, (True,))
EVERYTHING: tuple[PeerMessage, ...] = (
    READY, ROOTS, GOT, DONE, HAVE, Applied(2, ROOT), Progress(5, 1, 1, "training"),
)  # fmt: skip


def liar(*offences: Offence, victim: int = -1, is_mixed: bool = False, seed: int = 0) -> Liar:
    made = Liar()
    made.order = Order(offences, victim, is_mixed, seed)
    return made


def changed(made: Liar) -> dict[PeerMessage, PeerMessage | None]:
    """Map each type of message that is not sent as it is to what is sent in its place."""
    told = {id(message): made.said(message, 3, [B, C]) for message in EVERYTHING}
    return {type(m): told[id(m)] for m in EVERYTHING if told[id(m)] != m}


def frames(made: Liar) -> set[FrameKind]:
    """Return the kinds of frames that are held back."""
    return {kind for kind in FrameKind if not made.passes(kind, 3)}


@pytest.mark.parametrize("offences", [(), *[(undertaking,) for undertaking in UNDERTAKINGS]])
def test_without_an_order_and_by_deeds_of_its_own_it_says_what_the_machine_says(offences):
    made = liar(*offences)
    assert changed(made) == {} and frames(made) == set() and not made.counts


def test_a_boast_changes_ready_alone():
    made = liar(Offence.BOAST)
    assert changed(made) == {Ready: Ready(3, BOASTED_SAMPLES, 2, ROOT)}
    assert frames(made) == set() and made.counts == {"boast": 1}


def test_who_drags_says_ready_and_then_nothing_of_the_op():
    made = liar(Offence.DRAG)
    assert changed(made) == dict.fromkeys((Roots, Got, SliceDone, Have))
    assert frames(made) == set(FrameKind)


def test_a_silent_owner_gives_its_part_and_publishes_nothing():
    made = liar(Offence.SILENT_OWNER)
    assert changed(made) == {SliceDone: None}
    assert frames(made) == {FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE}


def test_who_never_says_have_says_all_else():
    made = liar(Offence.NO_HAVE)
    assert changed(made) == {Have: None} and frames(made) == set()


@pytest.mark.parametrize(
    ("offence", "late"),
    [
        (Offence.READY_LATE, {Ready}),
        (
            Offence.PUBLISH_LATE,
            {SliceDone, FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE},
        ),
    ],
)
def test_who_is_just_in_time_says_all_and_some_of_it_late(offence, late):
    made = liar(offence)
    assert changed(made) == {} and frames(made) == set() and not made.counts
    delayed = {type(one) for one in EVERYTHING if made.delay_s(one, 3)}
    assert delayed | {kind for kind in FrameKind if made.delay_s(kind, 3)} == late
    assert made.counts == {offence: len(late)}


def test_an_owner_lies_about_one_victim_or_about_all_but_itself():
    other = hashlib.sha256(ROOT).digest()
    for victim, struck in ((-1, {B, C}), (0, {B}), (1, {C}), (2, {B})):
        fair = {peer: ROOT for peer in (A, B, C) if peer not in struck}
        (refusing,) = changed(liar(Offence.REFUSE, victim=victim)).values()
        assert refusing == Got(9, 0, 0, fair, dict.fromkeys(struck, "scale"))
        (false,) = changed(liar(Offence.FALSE_ROOT, victim=victim)).values()
        assert false == Got(9, 0, 0, {**fair, **dict.fromkeys(struck, other)})
        (unlisted,) = changed(liar(Offence.UNLISTED, victim=victim)).values()
        assert unlisted == Got(9, 0, 0, fair)


def test_what_is_mixed_is_drawn_for_each_op_and_deeds_of_its_own_go_on():
    made = liar(Offence.DRAG, Offence.FLOOD, is_mixed=True, seed=4)
    drawn = [made.is_on(Offence.DRAG, op) for op in range(100)]
    assert drawn == [made.is_on(Offence.DRAG, op) for op in range(100)]
    assert 25 < sum(drawn) < 75
    assert all(made.is_on(Offence.FLOOD, op) for op in range(100))
    other = liar(Offence.DRAG, is_mixed=True, seed=5)
    assert drawn != [other.is_on(Offence.DRAG, op) for op in range(100)]

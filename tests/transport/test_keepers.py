"""Keepers of stages with few members."""

from swarmtrain_transport.pipeline.keepers import Committed, Hold, Keepers, Release
from swarmtrain_transport.pipeline.route import Process, Span

A, B, C, D, E = (Process(name * 32, b"12345678") for name in (b"a", b"b", b"c", b"d", b"e"))


def keepers():
    made = Keepers(2)
    for process, stage in ((A, 0), (B, 1), (C, 1), (D, 1)):
        made.joined(process, Span(stage, stage), has_room=process is not D)
    return made


def test_others_make_up_the_number_where_a_stage_has_few_members():
    made = keepers()
    assert made.holders(0) == {A, B, C} and made.holders(1) == {B, C, D}


def test_a_commit_waits_for_the_keepers_and_they_are_told_of_each_op():
    made = keepers()
    assert set(made.begun(0, 7)) == {Hold(B, 0, 7), Hold(C, 0, 7)}
    assert made.holds(A, 0, 7) == () and made.holds(B, 0, 7) == ()
    assert made.holds(C, 0, 6) == ()
    assert made.holds(C, 0, 7) == (Committed(0, 7),)
    assert made.newest == {0: 7} and not made.under_way


def test_a_keeper_that_is_gone_is_replaced_by_who_has_room():
    made = keepers()
    made.joined(E, Span(1, 1), has_room=True)
    made.begun(0, 7)
    assert Hold(E, 0, 7) in made.departed(C)
    assert made.holders(0) == {A, B, E}
    assert made.departed(E) == (), "only D is left, and has no room"


def test_keepers_are_released_when_members_are_enough_and_hold_the_state():
    made = keepers()
    made.begun(0, 7)
    for process in (A, B, C):
        made.holds(process, 0, 7)
    assert made.joined(E, Span(0, 0), has_room=True) == (Hold(E, 0, 7),)
    made.holds(E, 0, 7)
    deeds = made.joined(B, Span(0, 0), has_room=True)
    assert Release(C, 0) in deeds and Release(B, 0) not in deeds
    assert made.holders(0) == {A, B, E}


def test_a_skipped_op_is_nobodys():
    made = keepers()
    made.begun(0, 7)
    made.skipped(0)
    made.holds(A, 0, 7)
    assert not made.under_way and not made.newest

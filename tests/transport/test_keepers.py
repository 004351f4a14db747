"""Keepers of stages with few members."""

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.keepers import Committed, Hold, Keepers, Release
from swarmtrain_transport.pipeline.route import Process, Span

A, B, C, D, E = (Process(name * 32, b"12345678") for name in (b"a", b"b", b"c", b"d", b"e"))
NOW_S = 5.0
LATE_S = NOW_S + limits.HOLD_S


def keepers():
    made = Keepers(2)
    for process, stage in ((A, 0), (B, 1), (C, 1), (D, 1)):
        made.joined(process, Span(stage, stage), NOW_S, has_room=process is not D)
    return made


def test_others_make_up_the_number_where_a_stage_has_few_members():
    made = keepers()
    assert made.holders(0) == {A, B, C} and made.holders(1) == {B, C, D}


def test_a_commit_waits_for_the_keepers_and_they_are_told_of_each_op():
    made = keepers()
    assert set(made.begun(0, 7, NOW_S)) == {Hold(B, 0, 7), Hold(C, 0, 7)}
    assert made.holds(A, 0, 7, NOW_S) == () and made.holds(B, 0, 7, NOW_S) == ()
    assert made.holds(C, 0, 6, NOW_S) == ()
    assert made.holds(C, 0, 7, NOW_S) == (Committed(0, 7),)
    assert made.newest == {0: 7} and not made.under_way
    assert made.overdue(LATE_S) == ()


def test_a_keeper_that_is_gone_is_replaced_by_who_has_room():
    made = keepers()
    made.joined(E, Span(1, 1), NOW_S, has_room=True)
    made.begun(0, 7, NOW_S)
    assert Hold(E, 0, 7) in made.departed(C, NOW_S)
    assert made.holders(0) == {A, B, E}
    assert made.departed(E, NOW_S) == (), "only D is left, and has no room"


def test_keepers_are_released_when_members_are_enough_and_hold_the_state():
    made = keepers()
    made.begun(0, 7, NOW_S)
    for process in (A, B, C):
        made.holds(process, 0, 7, NOW_S)
    joined = made.joined(E, Span(0, 0), NOW_S, has_room=True)
    assert joined == (Hold(E, 0, 7),)
    made.holds(E, 0, 7, NOW_S)
    deeds = made.joined(B, Span(0, 0), NOW_S, has_room=True)
    assert Release(C, 0) in deeds and Release(B, 0) not in deeds
    assert made.holders(0) == {A, B, E}


def test_a_skipped_op_is_nobodys():
    made = keepers()
    made.begun(0, 7, NOW_S)
    made.skipped(0)
    made.holds(A, 0, 7, NOW_S)
    assert not made.under_way and not made.newest


def test_a_word_on_an_op_that_there_is_not_is_void():
    made = keepers()
    made.begun(0, 7, NOW_S)
    for process in (A, B, C):
        assert made.holds(process, 0, 10**30, NOW_S) == ()
        assert made.holds(process, 1, 7, NOW_S) == made.holds(process, 99, 7, NOW_S) == ()
        assert made.unable(process, 1, 7, NOW_S) == made.unable(process, 0, 8, NOW_S) == ()
    assert not made._held
    for op in (8, 9):
        made.holds(A, 0, op, NOW_S)
    for process in (A, B, C):
        deeds = made.holds(process, 0, 7, NOW_S)
    assert deeds == (Committed(0, 7),)


def test_a_keeper_that_never_holds_is_replaced_and_a_commit_goes_on():
    made = keepers()
    made.joined(E, Span(1, 1), NOW_S, has_room=True)
    made.begun(0, 7, NOW_S)
    silent = next(iter(made.holders(0) - {A, B}))
    other = next(iter({C, E} - {silent}))
    made.holds(A, 0, 7, NOW_S)
    made.holds(B, 0, 7, NOW_S)
    assert made.due_s == LATE_S and made.overdue(LATE_S - 1) == ()
    deeds = made.overdue(LATE_S)
    assert deeds == (Release(silent, 0), Hold(other, 0, 7))
    assert made.overdue(LATE_S + limits.HOLD_S)[-1] == Committed(0, 7), "nobody else has room"


def test_a_keeper_that_cannot_hold_the_state_is_replaced_at_once():
    made = keepers()
    made.joined(E, Span(1, 1), NOW_S, has_room=True)
    made.begun(0, 7, NOW_S)
    kept = made.holders(0) - {A}
    unable = next(iter(kept))
    deeds = made.unable(unable, 0, 7, NOW_S)
    (other,) = {B, C, E} - kept
    assert deeds == (Release(unable, 0), Hold(other, 0, 7))
    assert made.unable(unable, 0, 7, NOW_S) == ()


def test_a_member_that_never_holds_is_not_waited_for_and_one_more_keeps_the_state():
    made = keepers()
    made.joined(E, Span(0, 0), NOW_S, has_room=True)
    made.begun(0, 7, NOW_S)
    kept = made.holders(0) - {A, E}
    for process in (A, *kept):
        made.holds(process, 0, 7, NOW_S)
    assert made.newest == {0: 7}, "three hold it"
    made.begun(0, 8, LATE_S)
    for process in (A, *kept):
        made.holds(process, 0, 8, LATE_S)
    made.overdue(LATE_S + limits.HOLD_S)
    assert len(made.holders(0)) == 4 and made.newest == {0: 8}


def test_without_any_holder_nothing_is_committed():
    made = keepers()
    made.begun(0, 7, NOW_S)
    assert not any(isinstance(deed, Committed) for deed in made.overdue(LATE_S))
    assert made.under_way == {0: 7}

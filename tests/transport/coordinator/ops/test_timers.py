"""Deadlines of an op: from what most peers needed, never from what one was waited for."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.timers import Pace, Timers, most_arrived_s
from swarmtrain_transport.wire.records import Reassign
from tests.transport.coordinator.ops.table import GATHER_S, SCATTER_S, table
from tests.transport.rig import A, B, C, D


def test_the_first_deadline_is_the_cap() -> None:
    assert Pace().deadline_s(20.0, 900.0) == 900.0


@pytest.mark.parametrize(
    ("scatter_s", "gather_s", "wanted_s"),
    [
        (0.0, 0.0, 20.0),
        (10.0, 0.0, 10.0 / limits.D_SCATTER * limits.DEADLINE_FACTOR),
        (0.0, 10.0, 10.0 / (limits.D_GATHER - limits.D_SCATTER) * limits.DEADLINE_FACTOR),
        (1e9, 0.0, 900.0),
    ],
)
def test_either_half_may_set_the_deadline_between_floor_and_cap(scatter_s, gather_s, wanted_s):
    pace = Pace()
    pace.measured(scatter_s, gather_s)
    assert pace.deadline_s(20.0, 900.0) == pytest.approx(wanted_s)


def test_an_op_that_ran_out_of_time_gives_the_next_one_more() -> None:
    pace = Pace()
    pace.measured(10.0, 0.0)
    before_s = pace.deadline_s(1.0, 900.0)
    pace.was_too_short(before_s)
    assert pace.deadline_s(1.0, 900.0) == pytest.approx(limits.PACE_RELIEF * before_s)
    assert pace.deadline_s(1.0, before_s) == before_s


def test_three_quarters_set_the_pace() -> None:
    assert most_arrived_s([4.0, 1.0, 2.0, 90.0], 4) == 4.0
    assert most_arrived_s([1.0, 2.0, 4.0], 4) == 4.0
    assert most_arrived_s([1.0, 2.0], 4) is None


def test_of_three_the_slowest_alone_sets_no_pace_and_of_two_both_do() -> None:
    assert most_arrived_s([1.0, 90.0, 2.0], 3) == 2.0
    assert most_arrived_s([1.0, 90.0], 2) == 90.0
    assert most_arrived_s([1.0], 2) is None


def test_waiting_for_one_slow_peer_does_not_stretch_the_pace() -> None:
    op = table(A, B, C, D)
    op.now_s = 3.0
    for index in op.indexes:
        op.got(index, A, B, C)
    op.decide(SCATTER_S)
    op.now_s = SCATTER_S + 2.0
    op.publish(A, B, C)
    op.decide()
    pace = Pace()
    op.op.teach(pace, op.now_s)
    assert (pace.scatter_s, pace.gather_s) == (3.0, 2.0)


def test_what_a_silent_owner_made_others_wait_does_not_stretch_the_pace() -> None:
    op = table(A, B, C, D)
    op.now_s = 3.0
    op.freeze()
    op.now_s = 5.0
    for index in (0, 1, 2):
        op.done(index)
        op.have(index, A, B, C)
    assert isinstance(op.decide(GATHER_S), Reassign)
    op.now_s = GATHER_S + 1.0
    op.got(3, A, B, C, D)
    op.decide_all()
    op.now_s = GATHER_S + 2.0
    op.publish(A, B, C)
    op.decide_all()
    pace = Pace()
    op.op.teach(pace, op.now_s)
    assert (pace.scatter_s, pace.gather_s) == (3.0, 2.0)


def test_an_exclusion_bears_its_evidence() -> None:
    op = table(A, B, C, D)
    op.now_s = 3.0
    op.got(0, A, B, C, D)
    for index in (1, 2, 3):
        op.got(index, A, B, C)
    op.decide(SCATTER_S)
    times = op.times[D]
    assert (times.complete, times.owners, times.last_s) == (1, 4, 3.0)
    assert times.frozen_s == times.deadline_s == SCATTER_S


def test_an_owner_is_relieved_while_there_is_time_for_another_however_many_have_died() -> None:
    timers = Timers(0.0, 20.0)
    moments = []
    for index in range(3):
        moments.append((timers.silent_s, timers.spread_s, timers.gather_s))
        timers.reassigned(index, 1.0)
    assert moments == [(18.0, 18.0, 18.0), (28.0, 28.0, 28.0), (28.0, 30.0, 38.0)]
    assert timers.spread_s < timers.last_s

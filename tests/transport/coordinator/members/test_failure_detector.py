"""Two steps from late to gone: suspected first, evicted only after long silence."""

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine


def test_a_silent_peer_is_suspected_then_evicted_each_at_its_second() -> None:
    life = LifeLine(100.0)
    assert life.is_alive(100.0 + limits.SUSPECT_S - 0.001)
    assert not life.is_alive(100.0 + limits.SUSPECT_S)
    assert not life.is_gone(100.0 + limits.EVICT_S - 0.001)
    assert life.is_gone(100.0 + limits.EVICT_S)


def test_a_closed_connection_is_suspected_sooner_but_evicted_no_sooner() -> None:
    life = LifeLine(100.0)
    life.closed(101.0)
    assert life.is_alive(101.0 + limits.SUSPECT_CLOSED_S - 0.001)
    assert not life.is_alive(101.0 + limits.SUSPECT_CLOSED_S)
    assert life.evict_at_s == 100.0 + limits.EVICT_S


def test_a_second_close_does_not_prolong_the_life() -> None:
    life = LifeLine(100.0)
    life.closed(101.0)
    life.closed(105.0)
    assert life.suspect_at_s == 101.0 + limits.SUSPECT_CLOSED_S


def test_a_connection_that_closes_late_does_not_undo_the_silence() -> None:
    life = LifeLine(100.0)
    life.closed(105.9)
    assert life.suspect_at_s == 100.0 + limits.SUSPECT_S


def test_who_is_called_by_an_op_has_the_time_of_those_who_speak_often_from_then_on() -> None:
    life = LifeLine(100.0, patience_s=30.0)
    assert life.is_alive(129.0)
    life.called(120.0)
    assert life.suspect_at_s == 120.0 + limits.SUSPECT_S
    often = LifeLine(100.0)
    often.called(103.0)
    assert often.suspect_at_s == 100.0 + limits.SUSPECT_S


def test_whoever_is_heard_again_is_alive_again() -> None:
    life = LifeLine(100.0)
    life.closed(101.0)
    life.heard(110.0)
    assert life.is_alive(110.0 + limits.SUSPECT_S - 0.001)
    assert life.suspect_at_s == 110.0 + limits.SUSPECT_S

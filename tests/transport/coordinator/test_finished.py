"""A run whose rounds are all done: who is told what, and that it ends."""

from typing import Any

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.departures import Ban
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Gone
from tests.transport.hall import Hall, hello_of, opened, root_of
from tests.transport.rig import A, B, C

SHORT = root_of(1).hex()[:16]


def of_kind(hall: Hall, peer: bytes, kind: type[Any]) -> list[Any]:
    return [message for message in hall.sent[peer] if isinstance(message, kind)]


def finished(loss: float | None = 2.5) -> Hall:
    hall = opened(A, B, rounds=1)
    if loss is not None:
        hall.say(A, m.Evaluated(0, 5.5))
    hall.run_op(1, A, B)
    return hall


def test_peers_are_told_the_last_loss_which_comes_a_moment_later() -> None:
    hall = finished()
    assert not of_kind(hall, B, m.Finished)
    evaluator = hall.plan().evaluate_by
    hall.say(evaluator, m.Evaluated(1, 2.5))
    assert of_kind(hall, A, m.Finished) == of_kind(hall, B, m.Finished) == [m.Finished(1, 2.5)]


def test_a_loss_that_never_comes_keeps_nobody_for_long() -> None:
    hall = finished()
    hall.alive(hall.now_s + limits.LAST_LOSS_S + 0.1, A, B, step_s=0.2)
    assert of_kind(hall, A, m.Finished) == [m.Finished(1)]
    unmeasured = finished(loss=None)
    assert of_kind(unmeasured, A, m.Finished) == [m.Finished(1)]


def test_who_comes_late_is_told_what_came_of_the_run_and_who_has_the_model() -> None:
    hall = finished()
    hall.say(hall.plan().evaluate_by, m.Evaluated(1, 2.5))
    hall.say(A, m.Leave())
    hall.join(C)
    (refused,) = of_kind(hall, C, m.Refused)
    words = f"1 round, loss 2.500, root {SHORT}, the model is with otter and otter"
    assert (refused.code, refused.text) == ("SWT-E705", f"The run is finished: {words}.")
    status = hall.machine.status(hall.now_s)
    assert (status.phase, status.result) == ("finished", words)


def test_a_restarted_coordinator_says_who_made_the_last_round() -> None:
    again = Hall(tuple(finished().records), term=2, rounds=1)
    result = again.machine.status(0.0).result
    assert result == f"1 round, root {SHORT}, the last one made by otter and otter"


def test_who_never_leaves_keeps_no_finished_run_open() -> None:
    hall = finished(loss=None)
    hall.say(A, m.Leave())
    hall.alive(hall.now_s + limits.FINISH_S + limits.EVICT_S + 1.0, B)
    assert [body.peer for body in hall.bodies(Gone)] == [A, B]
    assert not hall.machine.view.roster
    assert B in hall.closed


def test_who_still_needs_the_last_round_is_kept_with_those_who_have_it_but_not_for_ever() -> None:
    """Found by a simulated world in which frames take 15 s."""
    hall = opened(A, B, rounds=1)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.say(A, m.Applied(1, root_of(1)))
    over_s = hall.now_s
    hall.alive(over_s + limits.LINGER_S + limits.FINISH_S - 1.0, A, B)
    assert not hall.bodies(Gone)
    hall.alive(over_s + limits.LINGER_S + limits.FINISH_S + 1.0, A, B)
    assert [body.peer for body in hall.bodies(Gone)] == [A, B]


def test_who_gets_nothing_as_nobody_can_reach_it_keeps_no_finished_run_open() -> None:
    """Found by hand: all stayed for ten minutes and did not say why."""
    hall = opened(A, B, C, rounds=1, start_peers=2)
    hall.machine.linger_s = 1800.0
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.say(A, m.Applied(1, root_of(1)))
    hall.say(B, m.Applied(1, root_of(1)))
    hall.tick(limits.LAST_LOSS_S + 1.0)
    assert hall.machine.status(hall.now_s).waiting_for == "otter to take the run's last state"
    assert not of_kind(hall, A, m.Finished)
    for peer in (A, B):
        hall.ack(peer, unreached=(C,))
    assert hall.machine.status(hall.now_s).waiting_for, "they may mean an earlier life of it"
    for _ in range(3):
        hall.now_s += limits.UNREACHED_S / 2
        hall.ack(C)
        for peer in (A, B):
            hall.ack(peer, unreached=(C,))
    hall.tick(hall.now_s + 1.0)
    assert not hall.machine.status(hall.now_s).waiting_for
    assert of_kind(hall, A, m.Finished) and of_kind(hall, C, m.Finished)


def test_a_run_that_goes_on_has_no_result_yet() -> None:
    hall = opened(A, B, rounds=2)
    hall.run_op(1, A, B)
    assert hall.machine.status(0.0).result == ""
    hall.take(hall.machine.connected(C, hello_of(C), hall.now_s))


def with_one_away(linger_s: float = 1800.0) -> Hall:
    """A run of three whose third gave to the last round but one, and then fell asleep."""
    hall = opened(A, B, C, rounds=2)
    hall.machine.linger_s = linger_s
    hall.run_op(1, A, B, C)
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.alive(hall.now_s + limits.EVICT_S + 1.0, A, B)
    assert [body.peer for body in hall.bodies(Gone)] == [C]
    hall.run_op(2, A, B)
    return hall


def test_holders_stay_for_who_helped_lately_and_slept_when_the_run_ended() -> None:
    hall = with_one_away()
    hall.alive(hall.now_s + limits.FINISH_S + limits.EVICT_S + 60.0, A, B)
    assert not of_kind(hall, A, m.Finished) and not of_kind(hall, B, m.Finished)
    status = hall.machine.status(hall.now_s)
    assert status.waiting_for.startswith("otter to come back and take the run's last state")
    hall.join(C, boot=b"another")
    assert not of_kind(hall, C, m.Refused) and of_kind(hall, C, m.Welcome)
    hall.alive(hall.now_s + 90.0, A, B, C)  # as long as it fetches the state
    assert not of_kind(hall, A, m.Finished)
    hall.say(C, m.Applied(2, root_of(2)))
    for peer in (A, B, C):
        assert of_kind(hall, peer, m.Finished)
        hall.say(peer, m.Leave())
    assert not hall.machine.view.roster and not hall.machine.status(hall.now_s).waiting_for


def test_who_comes_and_goes_after_the_end_makes_it_no_longer() -> None:
    hall = with_one_away()
    over_s = hall.now_s
    while not of_kind(hall, A, m.Finished) and hall.now_s < over_s + 9999.0:
        hall.alive(hall.now_s + 300.0, A, B)
        hall.join(C, boot=bytes(hall.now_s.hex(), "ascii")[:8])
        hall.take(hall.machine.disconnected(C, hall.now_s))
    assert of_kind(hall, A, m.Finished) and hall.now_s <= over_s + 1800.0 + 600.0


def test_who_is_away_for_too_long_keeps_nobody() -> None:
    hall = with_one_away()
    hall.alive(hall.now_s + 1800.0 - limits.EVICT_S - 60.0, A, B)
    assert not of_kind(hall, A, m.Finished)
    hall.alive(hall.now_s + limits.EVICT_S + 61.0, A, B)
    assert of_kind(hall, A, m.Finished) and of_kind(hall, B, m.Finished)
    hall.join(C, boot=b"another")
    assert of_kind(hall, C, m.Refused)


def test_who_is_cut_off_at_the_very_end_is_waited_for_too() -> None:
    hall = opened(A, B, C, rounds=1)
    hall.machine.linger_s = 1800.0
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.say(A, m.Applied(1, root_of(1)))
    hall.say(B, m.Applied(1, root_of(1)))
    hall.alive(hall.now_s + 300.0, A, B)
    assert not of_kind(hall, A, m.Finished)


def test_who_said_goodbye_who_has_the_state_and_who_is_banned_keep_nobody() -> None:
    for go in ("goodbye", "has it", "banned"):
        hall = opened(A, B, C, rounds=1)
        hall.machine.linger_s = 1800.0
        hall.ready(1, A, B, C)
        hall.exchange(A, B, C)
        if go == "goodbye":
            hall.say(C, m.Leave())
        elif go == "has it":
            hall.say(C, m.Applied(1, root_of(1)))
            hall.take(hall.machine.disconnected(C, hall.now_s))
        else:
            hall.take(hall.machine.ordered(Ban(C, "noise"), hall.now_s))
        hall.say(A, m.Applied(1, root_of(1)))
        hall.say(B, m.Applied(1, root_of(1)))
        hall.alive(hall.now_s + limits.FINISH_S + 1.0, A, B)
        assert of_kind(hall, A, m.Finished), go


def test_without_a_time_to_linger_nobody_is_missed() -> None:
    hall = with_one_away(linger_s=0.0)
    hall.alive(hall.now_s + limits.LAST_LOSS_S + 1.0, A, B)
    assert of_kind(hall, A, m.Finished)

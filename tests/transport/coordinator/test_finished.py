"""A run whose rounds are all done: who is told what, and that it ends."""

from typing import Any

from swarmtrain_transport import limits
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


def test_a_run_that_goes_on_has_no_result_yet() -> None:
    hall = opened(A, B, rounds=2)
    hall.run_op(1, A, B)
    assert hall.machine.status(0.0).result == ""
    hall.take(hall.machine.connected(C, hello_of(C), hall.now_s))

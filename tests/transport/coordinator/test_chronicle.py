"""Tests of the chronicle: it is bounded, and no peer's noise pushes out others' history."""

from swarmtrain_transport.coordinator.chronicle import Chronicle
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Rewind
from tests.transport.hall import ROOT, opened
from tests.transport.rig import A, B, C

KEPT = 1000


def told(chronicle: Chronicle, peer: bytes) -> list[tuple[str, str, int]]:
    return [(e.event, e.reason, e.times) for e in chronicle.events if e.peer == peer.hex()]


def test_the_same_again_is_counted_and_keeps_its_first_round() -> None:
    chronicle = Chronicle()
    for op in range(5000):
        chronicle.event(op, A, "differs", "state root")
    chronicle.event(7, B, "differs", "state root")
    chronicle.event(8, A, "lost")
    chronicle.event(9, A, "differs", "state root")
    assert told(chronicle, A) == [
        ("differs", "state root", 5000), ("lost", "", 1), ("differs", "state root", 1),
    ]  # fmt: skip
    assert [event.round for event in chronicle.events] == [0, 7, 8, 9]


def test_who_causes_most_loses_its_own_oldest() -> None:
    chronicle = Chronicle()
    for op in range(100):
        chronicle.event(op, B, "joined" if op % 2 else "left", str(op))
    for op in range(5000):
        chronicle.event(op, A, "differs", f"reason {op}")
    assert len(chronicle.events) == KEPT
    assert len(told(chronicle, B)) == 100
    assert told(chronicle, A)[-1] == ("differs", "reason 4999", 1)
    for op in range(100):
        chronicle.event(op, C, "joined" if op % 2 else "left", str(op))
    assert len(told(chronicle, C)) == 100 and len(told(chronicle, A)) == KEPT - 200


def test_exclusions_are_shared_in_the_same_way() -> None:
    chronicle = Chronicle()
    chronicle.excluded(1, B, "late")
    for op in range(5000):
        chronicle.excluded(op, A, "idle")
    assert len(chronicle.exclusions) == KEPT
    assert next(iter(chronicle.exclusions)).peer == B.hex()


def test_false_reports_of_a_state_do_not_push_history_out() -> None:
    hall = opened(A, B, C)
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    for peer in (A, B):
        hall.say(peer, m.Applied(1, ROOT))
    for number in range(3 * KEPT):
        hall.say(C, m.Applied(1, number.to_bytes(32, "big")))
    events = hall.machine.status(hall.now_s).events
    assert {e.peer for e in events if e.event == "joined"} == {p.hex() for p in (A, B, C)}
    (false,) = [e for e in events if e.event == "differs"]
    assert false.peer == C.hex() and false.times == 3 * KEPT


def test_rounds_that_come_again_lose_what_they_lose_then() -> None:
    hall = opened(A, B, C)
    for op in (1, 2):
        hall.run_op(op, A, B, C)
        hall.say(hall.plan().evaluate_by, m.Evaluated(op, 9.0))
    chronicle = hall.machine.first.chronicle
    assert chronicle.losses == {1: 9.0, 2: 9.0}
    hall.machine.first._agreement.go_back(Rewind(1, "a leap"))
    assert chronicle.losses == {1: 9.0}

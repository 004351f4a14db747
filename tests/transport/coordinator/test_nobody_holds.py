"""Nobody who is here has the run's newest state: what people are told."""

from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from tests.transport.hall import Hall, held, hello_of, opened, root_of
from tests.transport.rig import LAYOUT, A, B, C, D


def named(hall: Hall, **names: bytes) -> None:
    for name, peer in names.items():
        hall.take(hall.machine.connected(peer, hello_of(peer, name=name), hall.now_s))


def after_a_round() -> Hall:
    hall = Hall(start_peers=2)
    named(hall, ann=A, bob=B)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    for peer in (A, B):
        hall.say(peer, m.Applied(0, root_of(0)))
        hall.ack(peer)
    hall.run_op(1, A, B)
    return hall


def test_the_words_name_the_round_and_with_whom_its_state_was_seen_last() -> None:
    hall = after_a_round()
    assert hall.machine.status(hall.now_s).waiting_for == ""
    hall.say(A, m.Leave())
    hall.alive(hall.now_s + 10.0, B)
    hall.take(hall.machine.disconnected(B, hall.now_s))
    hall.tick(hall.now_s + limits.EVICT_S + 60.0)
    named(hall, dan=D)
    status = hall.machine.status(hall.now_s)
    assert status.waiting_for.startswith(f"a peer that holds state root {root_of(1).hex()[:16]}")
    assert "(round 1), which nobody here does; last seen with " in status.waiting_for
    assert set(status.waiting_for.partition("last seen with ")[2].split(" and ")) == {"ann", "bob"}
    assert status.waiting_seen_s == limits.EVICT_S + 60.0


def test_who_comes_back_without_it_was_seen_with_it_all_the_same() -> None:
    hall = after_a_round()
    hall.say(A, m.Leave())
    hall.take(hall.machine.connected(B, hello_of(B, name="bob", boot=b"anew"), hall.now_s))
    status = hall.machine.status(hall.now_s)
    assert status.waiting_for.endswith("last seen with ann and bob")
    # And whoever brings it ends the waiting.
    hall.take(hall.machine.connected(A, hello_of(A, **held(1), boot=b"anew"), hall.now_s))
    status = hall.machine.status(hall.now_s)
    assert status.waiting_for == "" and status.waiting_seen_s is None


def test_a_restarted_coordinator_knows_only_who_was_in_the_round() -> None:
    first = after_a_round()
    again = Hall(tuple(first.records), term=2, start_peers=2)
    again.tick(limits.EVICT_S + 1.0)
    again.join(C)
    status = again.machine.status(again.now_s)
    assert status.waiting_for.endswith("which nobody here does; in that round: ann and bob")
    assert status.waiting_seen_s is None


def test_of_many_some_are_named() -> None:
    peers = tuple(bytes([number]) * 32 for number in range(1, 9))
    hall = opened(*peers)
    hall.run_op(1, *peers)
    for peer in peers:
        hall.say(peer, m.Leave())
    assert hall.machine.status(hall.now_s).waiting_for.endswith(", otter and 3 more")

"""First states that nobody else gets: who gave one is passed over (protocol.md T18)."""

from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.first_state import WHY
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Plan, Rewind
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import LAYOUT, A, B, C, D, E

OTHER = b"\x77" * 32
STALLED_S = limits.FIRST_STATE_S + 3.0


def offer(root: bytes = root_of(0)) -> m.Offer:
    return m.Offer(root, 24, LAYOUT)


def hall_of(*peers: bytes, start_peers: int = 2, **terms: Any) -> Hall:
    """All are in, and the first has given its state; the others ask for it."""
    hall = Hall(start_peers=start_peers, wait_ready_s=5.0, **terms)
    hall.join(*peers)
    for peer in peers:
        hall.ack(peer)
    hall.say(peers[0], offer())
    hall.say(peers[0], m.Applied(0, root_of(0)))
    for peer in peers[1:]:
        hall.ack(peer, phase="syncing")
    return hall


def wait(hall: Hall, until_s: float, *peers: bytes, asking: tuple[bytes, ...] = ()) -> None:
    while hall.now_s < until_s:
        hall.tick(min(until_s, hall.now_s + 1.0))
        for peer in peers:
            hall.ack(peer)
        for peer in asking:
            hall.ack(peer, phase="syncing")


def passed(hall: Hall) -> list[tuple[bytes, ...]]:
    return [body.passed_over for body in hall.bodies(Rewind)]


def test_a_giver_that_serves_nobody_is_passed_over_and_named_and_another_gives() -> None:
    hall = hall_of(A, B, C)
    hall.ready(1, A)
    wait(hall, 10.0, A, asking=(B, C))
    told = hall.machine.status(hall.now_s)
    assert told.waiting_for == "otter and otter to get the first state, which otter alone has"
    wait(hall, STALLED_S, A, asking=(B, C))
    assert passed(hall) == [(A,)]
    events = hall.machine.status(hall.now_s).events
    assert [(one.peer, one.event, one.reason) for one in events if one.event == "passed over"] == [
        (A.hex(), "passed over", WHY)
    ]
    hall.say(A, offer())  # it is the first again
    assert len(hall.bodies(Attest)) == 1
    hall.say(B, offer(OTHER))
    assert [one.state_root for one in hall.bodies(Attest)] == [root_of(0), OTHER]
    for peer in (B, C):
        hall.say(peer, m.Applied(0, OTHER), m.Ready(1, 8, 0, OTHER))
    wait(hall, hall.now_s + 12.0, A, B, C)
    assert {one.peer for one in hall.plan().members if one.weight} == {B, C}


def test_a_giver_whose_state_comes_through_slowly_is_not_passed_over() -> None:
    hall = hall_of(A, B, C)
    for step in range(12):
        wait(hall, hall.now_s + limits.FIRST_STATE_S / 2 - 3.0, A)
        for peer in (B, C):
            hall.ack(peer, phase="syncing", state_bytes=step + 1)
    assert not passed(hall)[1:], "a link of 1 Mbit/s would have it by now"


def test_one_of_many_who_gets_nothing_passes_nobody_over() -> None:
    hall = hall_of(A, B, C)
    hall.say(B, m.Applied(0, root_of(0)))
    wait(hall, 5 * STALLED_S, A, B, asking=(C,))
    assert not passed(hall)
    hall.ready(1, A, B)
    wait(hall, hall.now_s + 6.0, A, B, asking=(C,))
    assert len(hall.bodies(Plan)) == 1


def test_a_giver_and_an_accomplice_do_not_begin_a_run_that_most_are_kept_out_of() -> None:
    hall = hall_of(A, B, C, D, E)
    hall.say(B, m.Applied(0, root_of(0)))
    hall.ready(1, A, B)
    wait(hall, STALLED_S, A, B, asking=(C, D, E))
    assert not hall.bodies(Plan)
    assert passed(hall) == [tuple(sorted((A, B)))]


def test_a_state_that_spreads_is_not_passed_over_and_one_that_has_ceased_to_is() -> None:
    peers = [bytes([number]) * 32 for number in range(1, 17)]
    hall = hall_of(*peers)
    for num_held in (2, 3, 5):
        for peer in peers[1:num_held]:
            hall.say(peer, m.Applied(0, root_of(0)))
        wait(hall, hall.now_s + 50.0, *peers[:num_held], asking=tuple(peers[num_held:]))
    hall.say(peers[5], m.Applied(0, root_of(0)))  # one more is too few
    wait(hall, hall.now_s + 8.0, *peers[:6], asking=tuple(peers[6:]))
    assert not passed(hall)
    wait(hall, hall.now_s + 5.0, *peers[:6], asking=tuple(peers[6:]))
    assert passed(hall) == [tuple(sorted(peers[:6]))]


def test_a_run_that_may_begin_with_one_does_so_at_once_while_nobody_else_is_here() -> None:
    hall = hall_of(A, start_peers=1)
    hall.ready(1, A)
    assert len(hall.bodies(Plan)) == 1


def test_a_run_that_may_begin_with_one_waits_for_a_second_holder_where_another_is_here() -> None:
    hall = hall_of(A, B, start_peers=1)
    hall.ready(1, A)
    wait(hall, 10.0, A, asking=(B,))
    assert not hall.bodies(Plan)
    hall.say(B, m.Applied(0, root_of(0)))
    wait(hall, 17.0, A, B)
    assert len(hall.bodies(Plan)) == 1


def test_who_is_here_and_never_asks_for_the_state_keeps_a_run_back_for_a_minute_only() -> None:
    hall = hall_of(A, B, start_peers=1)
    hall.ack(B)
    hall.ready(1, A)
    wait(hall, STALLED_S, A, B)
    assert len(hall.bodies(Plan)) == 1 and not passed(hall)


def test_when_all_were_passed_over_the_run_begins_with_who_has_a_state() -> None:
    hall = hall_of(A, B, start_peers=1)
    wait(hall, STALLED_S, A, asking=(B,))
    assert passed(hall) == [(A,)]
    hall.say(B, offer(OTHER), m.Applied(0, OTHER))
    wait(hall, hall.now_s + 2 * STALLED_S, B, asking=(A,))
    assert passed(hall) == [(A,), (B,)]
    hall.say(A, offer())
    wait(hall, hall.now_s + limits.OFFER_WAIT_S + 1.0, A, asking=(B,))
    hall.say(A, m.Applied(0, root_of(0)))
    hall.ready(1, A)
    assert len(hall.bodies(Plan)) == 1


def test_who_was_passed_over_gives_again_if_nobody_else_offers() -> None:
    hall = hall_of(A, B, C)
    wait(hall, STALLED_S, A, asking=(B, C))
    hall.say(A, offer())
    assert len(hall.bodies(Attest)) == 1
    wait(hall, hall.now_s + limits.OFFER_WAIT_S + 1.0, A, B, C)
    assert len(hall.bodies(Attest)) == 2


def test_a_restarted_coordinator_knows_who_was_passed_over() -> None:
    hall = hall_of(A, B, C)
    wait(hall, STALLED_S, A, asking=(B, C))
    again = Hall(tuple(hall.records), 2, start_peers=2)
    again.join(A, B, C)
    again.say(A, offer())
    assert again.machine.view.first.passed_over == {A: 1}
    assert len(again.bodies(Attest)) == 1
    again.say(B, offer(OTHER))
    assert again.bodies(Attest)[-1].state_root == OTHER


def test_a_restart_in_the_middle_waits_anew_and_passes_over() -> None:
    hall = hall_of(A, B, C)
    wait(hall, STALLED_S / 2, A, asking=(B, C))
    again = Hall(tuple(hall.records), 2, start_peers=2)
    again.join(A, B, C)
    again.say(A, m.Applied(0, root_of(0)))
    wait(again, STALLED_S / 2, A, asking=(B, C))
    assert not passed(again)
    wait(again, 1.5 * STALLED_S, A, asking=(B, C))
    assert passed(again) == [(A,)]


def test_a_giver_that_comes_back_under_its_key_stays_passed_over() -> None:
    hall = hall_of(A, B, C)
    wait(hall, STALLED_S, A, asking=(B, C))
    hall.take(hall.machine.disconnected(A, hall.now_s))
    hall.join(A, boot=b"another!")
    hall.say(A, offer())
    assert len(hall.bodies(Attest)) == 1


def test_nothing_that_was_trained_is_passed_over() -> None:
    hall = hall_of(A, start_peers=1)
    hall.ready(1, A)
    hall.exchange(A)
    hall.join(B, C)
    wait(hall, 3 * STALLED_S, A, asking=(B, C))
    assert not passed(hall)


def test_a_rewind_that_passes_over_a_state_that_is_in_use_is_refused() -> None:
    hall = opened(A, B)
    hall.run_op(1, A, B)
    with pytest.raises(RemoteFault, match="passes over"):
        hall.machine.writer.append(Rewind(-1, WHY, 0, (A,)))

"""Peers that the others cannot reach: named, told, and never the only holder of anything."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Freeze, Rewind
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import LAYOUT, A, B, C, D, E


def complain(hall: Hall, words: dict[bytes, tuple[bytes, ...]]) -> None:
    """Peers say whom they cannot reach; the others say that they reach everybody."""
    for peer in hall.machine.lines:
        hall.ack(peer, unreached=words.get(peer, ()))


def state(hall: Hall, peer: bytes) -> str:
    told = {bytes.fromhex(one.peer): one.state for one in hall.machine.status(hall.now_s).peers}
    return told[peer]


def told(hall: Hall, peer: bytes) -> list[m.Unreached]:
    return [one for one in hall.sent[peer] if isinstance(one, m.Unreached)]


def test_a_peer_that_most_cannot_reach_hears_so_and_status_names_it() -> None:
    hall = opened(A, B, C, D)
    complain(hall, {A: (D,), B: (D,)})
    assert told(hall, D) == [m.Unreached("127.0.0.1", 4242, 2)]
    assert state(hall, D) == "unreachable"
    event = next(e for e in hall.machine.status(0.0).events if e.event == "unreachable")
    assert event.peer == D.hex()
    assert event.reason == "no connection to 127.0.0.1 port 4242 for 2 peers"
    complain(hall, {})
    assert told(hall, D)[-1] == m.Unreached("127.0.0.1", 4242, 0)
    assert state(hall, D) != "unreachable"


def test_fewer_than_half_of_the_others_blacken_nobody() -> None:
    hall = opened(A, B, C, D, E)
    complain(hall, {A: (E,), B: (E,)})
    assert not told(hall, E)
    assert state(hall, E) != "unreachable"


def test_one_word_is_believed_only_if_the_coordinator_cannot_reach_it_either() -> None:
    hall = opened(A, B)
    complain(hall, {A: (B,)})
    assert not told(hall, B)
    hall.take(hall.machine.dialled(B, is_open=True, now_s=hall.now_s))
    assert not told(hall, B)
    hall.take(hall.machine.dialled(B, is_open=False, now_s=hall.now_s))
    assert told(hall, B) == [m.Unreached("127.0.0.1", 4242, 1, by_coordinator=True)]


def test_what_the_coordinator_alone_has_seen_is_told_to_the_peer_and_decides_nothing() -> None:
    hall = opened(A, B)
    hall.take(hall.machine.dialled(B, is_open=False, now_s=hall.now_s))
    assert told(hall, B) == [m.Unreached("127.0.0.1", 4242, 0, by_coordinator=True)]
    assert state(hall, B) != "unreachable"
    hall.ready(1, A, B)
    assert {one.peer for one in hall.plan().members} == {A, B}


def test_those_who_reach_nobody_are_no_witnesses_against_the_others() -> None:
    hall = opened(A, B, C, D)
    complain(hall, {C: (A, B, D), D: (A, B, C)})
    assert not any(told(hall, peer) for peer in (A, B, C, D))


def test_an_unreachable_peer_is_in_no_plan_and_is_not_waited_for() -> None:
    hall = opened(A, B, C, D, start_peers=2)
    complain(hall, {A: (D,), B: (D,)})
    hall.ready(1, A, B, C)
    assert {one.peer for one in hall.plan().members} == {A, B, C}


def test_its_have_alone_does_not_commit() -> None:
    hall = opened(A, B, C, D)
    hall.ready(1, A, B, C, D)
    complain(hall, {A: (D,), B: (D,)})
    operation = hall.machine.first.operation
    assert operation is not None
    hall.alive(60.0, A, B, C, D)
    freeze = hall.bodies(Freeze)
    assert not freeze or freeze[0].excluded.get(D) == "unreachable"


def test_a_first_giver_that_nobody_reaches_is_passed_over_at_once() -> None:
    hall = Hall(start_peers=2, wait_ready_s=5.0)
    hall.join(A, B, C)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT), m.Applied(0, root_of(0)))
    hall.ack(A)
    for peer in (B, C):
        hall.ack(peer, phase="syncing", unreached=(A,))
    assert [one.passed_over for one in hall.bodies(Rewind)] == [(A,)]
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    hall.tick(limits.OFFER_WAIT_S * 2)
    assert hall.machine.view.first.genesis is None, "nobody could get it"


def test_a_peer_that_connects_again_is_told_again_and_stays_unreachable() -> None:
    hall = opened(A, B, C)
    complain(hall, {A: (C,), B: (C,)})
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.join(C, states=(m.Applied(0, root_of(0)),))
    assert told(hall, C) == [m.Unreached("127.0.0.1", 4242, 2)]
    assert state(hall, C) == "unreachable"


def test_the_words_of_who_has_left_count_no_more() -> None:
    hall = opened(A, B, C, D)
    complain(hall, {A: (D,), B: (D,)})
    hall.say(A, m.Leave())
    hall.say(B, m.Leave())
    complain(hall, {})
    assert state(hall, D) != "unreachable"


def test_a_state_that_only_an_unreachable_peer_has_is_what_the_run_waits_for() -> None:
    hall = opened(A)
    hall.run_op(1, A)
    hall.join(B, C)
    complain(hall, {B: (A,), C: (A,)})
    waits = hall.machine.status(hall.now_s).waiting_for
    assert waits == "the others to reach otter: nobody else has the state after round 1"
    complain(hall, {})
    assert not hall.machine.status(hall.now_s).waiting_for


def test_an_unreachable_peer_is_away_from_the_rounds_of_a_pipeline_too() -> None:
    life = LifeLine(0.0)
    assert life.is_alive(1.0) and life.away_at_s > 1.0
    life.unreached_s = 1.0
    assert not life.is_alive(1.0) and life.away_at_s == 1.0
    assert life.fault(1.0) == "unreachable"
    assert not life.is_gone(1.0)


def test_of_more_than_exchange_directly_those_of_its_newest_op_can_know() -> None:
    peers = tuple(bytes([1 + number]) * 32 for number in range(limits.CELL_PEERS_MAX + 6))
    hall = Hall(start_peers=limits.CELL_PEERS_MAX, places=limits.RUN_PEERS_MAX)
    hall.open_run(*peers)
    hall.ready(1, *peers)
    victim, cells = peers[0], Cells.in_plan(hall.plan())
    inside = sorted(cells.near(victim, peers), key=victim.__ne__)
    assert len(inside) == len(peers) // 2, "two cells"
    outside = [peer for peer in peers if peer not in inside]
    half = (len(inside) + 1) // 2
    complain(hall, dict.fromkeys([*inside[1:half], *outside], (victim,)))
    assert state(hall, victim) != "unreachable", "the others have never sent anything to it"
    complain(hall, dict.fromkeys(inside[1 : half + 1], (victim,)))
    assert state(hall, victim) == "unreachable"
    alone = {outside[0]: tuple(inside)}  # a line that is broken at the witness
    complain(hall, {**alone, **dict.fromkeys(inside[1:half], (victim,))})
    assert state(hall, victim) != "unreachable"


def test_a_judgement_copies_the_roster_for_nobody_who_is_named() -> None:
    peers = tuple(bytes([1 + number]) * 32 for number in range(limits.CELL_PEERS_MAX + 6))
    hall = Hall(start_peers=limits.CELL_PEERS_MAX, places=limits.RUN_PEERS_MAX)
    hall.open_run(*peers)
    complain(hall, {peers[0]: peers[1:31], peers[1]: peers[31:61]})
    known = hall.machine.reach._known
    assert len(known) > 60
    assert not any(isinstance(witnesses, set) for witnesses in known.values())


def test_more_names_than_peers_can_be_are_refused() -> None:
    hall = opened(A, B)
    with pytest.raises(RemoteFault, match="cannot reach"):
        hall.ack(A, unreached=(B,) * (limits.LINK_WAYS_MAX + 1))

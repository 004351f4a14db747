"""Deaf peers: who speaks but does not hear, or does not do what it owes, is left out like the
silent."""

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.ledger.fold import num_chunks
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Commit, Freeze, Gone, Reassign
from tests.transport.hall import Hall, hello_of, opened
from tests.transport.rig import A, B, C, D, done_of, received, roots_of


def speaks(hall: Hall, peer: PeerId, index: int = 0, **told: int) -> None:
    hall.ack(peer, index=index, **told)


def test_records_that_nobody_acknowledges_make_a_suspect_however_much_it_speaks() -> None:
    line = PeerLine(hello_of(A), LifeLine(100.0))
    line.sent(3, 100.0, 1)
    line.life.heard(105.0)
    assert line.life.is_alive(100.0 + limits.SUSPECT_S - 0.001)
    assert not line.life.is_alive(100.0 + limits.SUSPECT_S)
    assert line.life.fault(106.0) == "deaf"
    assert line.life.evict_at_s == 105.0 + limits.EVICT_S


def test_an_acknowledgement_ends_the_suspicion_and_what_was_sent_since_is_still_awaited() -> None:
    line = PeerLine(hello_of(A), LifeLine(100.0))
    line.sent(3, 100.0, 1)
    line.sent(5, 104.0, 1)
    line.acknowledged(2, 105.0)
    assert line.life.awaited_s == 100.0
    line.acknowledged(3, 105.0)
    assert line.life.awaited_s == 105.0
    line.acknowledged(5, 106.0)
    assert line.life.awaited_s is None
    line.sent(5, 107.0, 1)
    assert line.life.awaited_s is None


def test_what_was_not_acknowledged_while_the_coordinator_was_stopped_is_nobodys_fault() -> None:
    line = PeerLine(hello_of(A), LifeLine(100.0))
    line.sent(3, 100.0, 1)
    line.life.pardon(150.0)
    assert line.life.is_alive(150.0 + limits.SUSPECT_S - 0.001)


def test_commit_does_not_wait_for_a_deaf_peer_and_does_not_evict_it() -> None:
    hall = opened(A, B, C, D, deadline_floor_s=100.0, deadline_cap_s=100.0)
    hall.ready(1, A, B, C, D)
    operation = hall.machine.first.operation
    assert operation is not None
    plan_id = operation.view.plan_id
    for peer in (A, B, C, D):
        hall.say(peer, roots_of(operation.view, peer))
    for index, owner in enumerate(operation.view.owners):
        hall.say(owner, m.Got(plan_id, index, 0, received(index, (A, B, C, D))))
    for index, owner in enumerate(operation.view.owners):
        name = operation.view.result_set_id(index)
        assert name is not None
        hashes = tuple(
            bytes([index, chunk]) * 16 for chunk in range(num_chunks(operation.view.plan, index))
        )
        hall.say(owner, done_of(operation.view, index, (A, B, C, D), hashes))
        for peer in (A, B, C):
            hall.say(peer, m.Have(plan_id, index, 0, name, (True,) * len(hashes)))
    assert not hall.bodies(Commit)
    while hall.now_s < limits.SUSPECT_S + 1.5:
        hall.tick(hall.now_s + 1.0)
        for peer in (A, B, C):
            hall.ack(peer)
        speaks(hall, D)
    assert hall.bodies(Commit)
    assert not hall.bodies(Reassign) and not hall.bodies(Gone)


def owing(hall: Hall) -> None:
    """All have everything but D's part, of which only D's own slice is made."""
    operation = hall.machine.first.operation
    assert operation is not None
    for peer in (A, B, C, D):
        hall.say(peer, roots_of(operation.view, peer))
    for index, owner in enumerate(operation.view.owners):
        whole = (A, B, C, D) if owner == D else (A, B, C)
        hall.say(owner, m.Got(operation.view.plan_id, index, 0, received(index, whole)))


def test_a_peer_that_owes_parts_and_moves_no_byte_is_left_out_before_the_deadline() -> None:
    hall = opened(A, B, C, D, deadline_floor_s=100.0, deadline_cap_s=100.0)
    hall.ready(1, A, B, C, D)
    owing(hall)
    while not hall.bodies(Freeze):
        hall.tick(hall.now_s + 1.0)
        for peer in (A, B, C):
            hall.ack(peer, bytes_out=int(hall.now_s))
        hall.ack(D, bytes_in=7, bytes_out=7)
        assert hall.now_s < limits.IDLE_S + 3 * limits.PROGRESS_S
    assert hall.bodies(Reassign)[0].reason == "owner idle"
    assert hall.bodies(Freeze)[0].excluded == {D: "idle"}
    assert not hall.bodies(Gone)


def test_a_slow_link_has_the_time_of_three_chunks() -> None:
    life = LifeLine(0.0)
    rate = limits.CHUNK_VALUES / 10.0
    life.moved(0.0, rate, is_idle=True)
    life.heard(29.0)
    assert life.is_alive(29.9) and not life.is_alive(30.0)


def test_who_moves_bytes_owes_nothing_or_waits_for_a_silent_owner_is_not_idle() -> None:
    for silent, moved in ((False, True), (True, False)):
        hall = opened(A, B, C, D, deadline_floor_s=100.0, deadline_cap_s=100.0)
        hall.ready(1, A, B, C, D)
        operation = hall.machine.first.operation
        assert operation is not None
        for peer in (A, B, C, D):
            hall.say(peer, roots_of(operation.view, peer))
        for index, owner in enumerate(operation.view.owners):
            whole = (A, B, C) if owner == A else (A, B, C, D)
            hall.say(owner, m.Got(operation.view.plan_id, index, 0, received(index, whole)))
        while hall.now_s < limits.IDLE_S + 3 * limits.PROGRESS_S:
            hall.tick(hall.now_s + 1.0)
            for peer in (B, C) if silent else (A, B, C):
                hall.ack(peer)
            hall.ack(D, bytes_out=int(hall.now_s) if moved else 0)
            assert hall.machine.lines[D].life.is_alive(hall.now_s)


def test_one_owners_silence_about_a_peer_does_not_make_it_idle() -> None:
    """Else whoever never lists somebody, who has sent everything, has it left out."""
    hall = opened(A, B, C, D, deadline_floor_s=100.0, deadline_cap_s=100.0)
    hall.ready(1, A, B, C, D)
    operation = hall.machine.first.operation
    assert operation is not None
    for peer in (A, B, C, D):
        hall.say(peer, roots_of(operation.view, peer))
    for index, owner in enumerate(operation.view.owners):
        whole = (A, B, C) if owner == A else (A, B, C, D)
        hall.say(owner, m.Got(operation.view.plan_id, index, 0, received(index, whole)))
    while hall.now_s < limits.IDLE_S + 3 * limits.PROGRESS_S:
        hall.tick(hall.now_s + 1.0)
        for peer in (A, B, C, D):
            hall.ack(peer)
        assert hall.machine.lines[D].life.is_alive(hall.now_s)

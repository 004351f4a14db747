"""A crowd: what a peer of thousands is told, and when, and that nothing is missed for that."""

from collections.abc import Set
from itertools import pairwise
from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import Append
from swarmtrain_transport.ledger.fold import OpDecision
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Commit, Join, Plan
from tests.transport.hall import Hall, held, opened, root_of
from tests.transport.rig import A, B, C, D, E, received, roots_of

F = b"F" * 32
ALL = (A, B, C, D, E)


@pytest.fixture(autouse=True)
def few_are_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CROWD_PEERS", 3)
    monkeypatch.setattr(limits, "MEET_ALL_MAX", 3)
    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 2)


def newest_of(hall: Hall, peer: bytes) -> int:
    return max(record.index for record in hall.heard(peer))


def crowd() -> Hall:
    hall = opened(*ALL, start_peers=2, wait_ready_s=5.0)
    hall.alive(hall.now_s + limits.CROWD_RECORDS_S + 1.0, *ALL)
    return hall


def test_a_newcomer_is_told_of_to_the_others_when_they_speak_and_not_before() -> None:
    hall = crowd()
    for peer in ALL:
        hall.sent[peer] = []
    hall.join(F)
    assert all(not hall.sent[peer] for peer in ALL)
    assert newest_of(hall, F) == len(hall.records) - 1
    (places,) = [one for one in hall.sent[F] if isinstance(one, m.Listens)]
    assert places.at.keys() == {*ALL}
    hall.tick(hall.now_s + limits.CROWD_RECORDS_S)
    for peer in ALL:
        hall.ack(peer)
        kinds = [type(one) for one in hall.sent[peer]]
        assert kinds == [m.Listens, m.Records], "where it listens comes before its JOIN"


def test_newcomers_of_a_crowd_come_in_together() -> None:
    hall, more = crowd(), [bytes([200 + number]) * 32 for number in range(4)]
    hall.join(F)
    began_s, head = hall.now_s, len(hall.records)
    for peer in more:
        hall.now_s += limits.CROWD_JOIN_S / 8
        hall.join(peer, curve_key=peer[::-1])
        assert not hall.sent[peer]
    gone = more.pop()
    hall.take(hall.machine.disconnected(gone, hall.now_s))
    hall.join(copy := b"G" * 32, curve_key=more[0])
    hall.now_s = began_s + limits.CROWD_JOIN_S
    actions = hall.machine.tick(hall.now_s)
    hall.take(actions)
    assert sum(isinstance(one, Append) for one in actions) == len(more), "one fsync for all"
    assert [one.peer for one in hall.bodies(Join)[-len(more) :]] == more
    assert len(hall.records) == head + len(more)
    for index, peer in enumerate(more, head):
        assert isinstance(hall.sent[peer][0], m.Welcome)
        assert newest_of(hall, peer) == index, "it knows that it is in"
    assert [type(one) for one in hall.sent[copy]] == [m.Refused] and copy in hall.closed
    assert not hall.sent[gone]


def test_an_order_need_not_wait_until_newcomers_are_in() -> None:
    hall = crowd()
    hall.join(F)
    hall.now_s += limits.CROWD_JOIN_S / 2
    hall.join(late := b"G" * 32)
    assert late not in hall.machine.view.roster
    hall.take(hall.machine.admit(hall.now_s))
    assert late in hall.machine.view.roster


def test_of_many_records_a_peer_hears_once_in_a_while() -> None:
    hall = crowd()
    for peer in ALL:
        hall.sent[peer] = []
    late = [bytes([200 + number]) * 32 for number in range(6)]
    for peer in late:
        hall.join(peer)
        for other in ALL:
            hall.ack(other)
        hall.tick(hall.now_s + 0.5)
    for peer in ALL:
        told = [one for one in hall.sent[peer] if isinstance(one, m.Records)]
        assert len(told) <= 2
    hall.tick(hall.now_s + limits.CROWD_RECORDS_S)
    for peer in ALL:
        hall.ack(peer)
        assert newest_of(hall, peer) == len(hall.records) - 1


def test_who_is_in_an_op_hears_its_records_at_once() -> None:
    hall = crowd()
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + limits.CROWD_LOOK_S)
    plan = hall.plan()
    members = [member.peer for member in plan.members]
    assert len(members) == limits.CELL_PEERS_MAX
    for peer in ALL:
        is_told = newest_of(hall, peer) == len(hall.records) - 1
        assert is_told == (peer in members)
    hall.exchange(*members)
    assert hall.bodies(Commit)
    for peer in members:
        assert newest_of(hall, peer) == len(hall.records) - 1


def test_the_larger_a_crowd_the_more_rarely_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CROWD_LOOK_PEERS", 1)
    hall = crowd()
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + len(ALL) * limits.CROWD_LOOK_S)
    hall.exchange(*[member.peer for member in hall.plan().members])
    for peer in ALL:
        hall.say(peer, m.Applied(1, root_of(1)))
    hall.ready(2, A, B)  # the others are waited for
    looked_s = []
    for _ in range(3):
        looked_s.append(hall.machine.first.look_s)
        assert looked_s[-1] < hall.now_s + 5.0
        hall.tick(looked_s[-1])
    passed_s = [after_s - before_s for before_s, after_s in pairwise(looked_s)]
    assert passed_s == pytest.approx([len(ALL) * limits.CROWD_LOOK_S] * 2)


def test_a_suspect_that_speaks_has_nobody_look_at_all_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hall, looks = crowd(), 0
    roster = hall.machine.live_roster
    lives = roster.lives

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return lives()

    monkeypatch.setattr(roster, "lives", counted)
    roster.lines[A].life.unreached_s = hall.now_s - 1.0
    for _ in range(20):
        hall.now_s += limits.CROWD_LOOK_S / 40
        roster.stirs(roster.lines[A].life)
        times = roster.wakeups(hall.now_s)
    assert looks <= 1 and min(time for time in times if time > hall.now_s) <= (
        hall.now_s + limits.CROWD_LOOK_S
    )


def test_rounds_go_on_by_turns_and_their_states_are_attested() -> None:
    hall, seen = crowd(), set[bytes]()
    for op in range(1, 4):
        hall.ready(op, *ALL)
        hall.tick(hall.now_s + limits.CROWD_LOOK_S)
        members = [member.peer for member in hall.bodies(Plan)[-1].members]
        seen |= {*members}
        hall.exchange(*members)
        for peer in ALL:
            hall.say(peer, m.Applied(op, root_of(op)))
        hall.alive(hall.now_s + limits.CROWD_RECORDS_S + 1.0, *ALL)
        assert hall.bodies(Attest)[-1].op == op
    assert seen == {*ALL}


def test_a_crowd_waits_for_the_last_of_those_who_are_expected_no_longer_than_it_may() -> None:
    hall = crowd()
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + limits.CROWD_LOOK_S)
    hall.exchange(*[member.peer for member in hall.plan().members])
    for peer in ALL:
        hall.say(peer, m.Applied(1, root_of(1)))
    hall.ready(2, *ALL[:-1])
    hall.alive(hall.now_s + 4.0, *ALL)
    assert hall.plan().op == 1
    hall.alive(hall.now_s + 2.0, *ALL)
    assert hall.plan().op == 2


def test_the_end_of_a_run_is_told_to_all_at_once() -> None:
    hall = opened(*ALL, start_peers=2, rounds=1)
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + limits.CROWD_LOOK_S)
    hall.exchange(*[member.peer for member in hall.plan().members])
    for peer in ALL:
        hall.say(peer, m.Applied(1, root_of(1)))
        assert newest_of(hall, peer) == len(hall.records) - 1
    hall.alive(hall.now_s + limits.LAST_LOSS_S + 1.0, *ALL)
    for peer in ALL:
        assert [one for one in hall.sent[peer] if isinstance(one, m.Finished)]


def test_who_leaves_is_released_though_many_others_stay() -> None:
    hall = crowd()
    hall.say(A, m.Leaving())
    assert [one for one in hall.sent[A] if isinstance(one, m.Released)]
    hall.say(A, m.Leaving())
    assert len([one for one in hall.sent[A] if isinstance(one, m.Released)]) == 1


def test_the_dead_of_a_crowd_are_buried_in_time() -> None:
    hall = crowd()
    hall.alive(hall.now_s + limits.EVICT_S + 1.0, *ALL[:-1])
    assert E not in hall.machine.view.roster
    assert {*ALL[:-1]} == hall.machine.view.roster.keys()


def test_many_who_lack_the_same_are_sent_the_same_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1500)
    hall = crowd()
    for number in range(20):
        hall.join(bytes([100 + number]) * 32)
    first, second = b"X" * 32, b"Y" * 32
    hall.join(first, second)
    told = [
        [one for one in hall.sent[peer] if isinstance(one, m.Records)] for peer in (first, second)
    ]
    assert len(told[0]) > 3
    assert all(one is other for one, other in zip(told[0][:-1], told[1], strict=False))
    for peer in (first, second):
        assert [record.index for record in hall.heard(peer)] == sorted(
            {record.index for record in hall.heard(peer)}
        )
        assert hall.heard(peer)[0].index == 0
    again = Hall(tuple(hall.records), term=2, places=100)
    again.join(first, **held(0))
    assert [record.hash for record in again.heard(first)] == [one.hash for one in hall.records]


# ---- a crowd that speaks more rarely


def test_of_very_many_each_speaks_more_rarely_and_is_waited_for_as_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PROGRESS_PEERS", 2)
    hall = crowd()
    assert hall.machine.view.progress_s == 3 * limits.PROGRESS_S
    for peer in ALL:
        hall.ack(peer)
    hall.tick(hall.now_s + 2.9 * limits.SUSPECT_S)
    assert hall.machine.live_roster.alive(hall.now_s) == {*ALL}
    assert hall.machine.is_elsewhere(A, b"a copy", hall.now_s - 2.0 * limits.SUSPECT_S)
    hall.alive(hall.now_s + 2.0, *ALL[:-1])
    assert hall.machine.live_roster.alive(hall.now_s) == {*ALL[:-1]}


def test_who_is_named_by_a_plan_has_to_speak_as_often_as_in_a_small_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PROGRESS_PEERS", 2)
    hall = crowd()
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + limits.CROWD_LOOK_S)
    members = {member.peer for member in hall.plan().members}
    hall.tick(hall.now_s + limits.SUSPECT_S + 1.0)
    assert hall.machine.live_roster.alive(hall.now_s) == {*ALL} - members
    for peer in members:
        hall.ack(peer)
    assert hall.machine.live_roster.alive(hall.now_s) == {*ALL}


def test_the_pause_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROGRESS_PEERS", 1)
    hall = opened(A, start_peers=1)
    hall.join(*(bytes([50 + number]) * 32 for number in range(9)))
    assert hall.machine.view.progress_s == limits.PROGRESS_MAX_S
    assert limits.SUSPECT_PROGRESS * limits.PROGRESS_MAX_S <= limits.EVICT_S


def test_what_follows_from_reports_is_looked_at_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hall, looks = crowd(), list[float]()
    hall.ready(1, *ALL)
    hall.tick(hall.now_s + limits.CROWD_LOOK_S)
    operation, view = hall.machine.first.operation, hall.plan()
    assert operation is not None
    real = operation.decide

    def decide(alive: Set[bytes], now_s: float, *more: Any) -> OpDecision | None:
        looks.append(now_s)
        return real(alive, now_s, *more)

    monkeypatch.setattr(operation, "decide", decide)
    hall.tick(hall.now_s + limits.CROWD_DECIDE_S)
    begun_s, peers = hall.now_s, [member.peer for member in view.members]
    for peer in peers:
        hall.say(peer, roots_of(operation.view, peer))
    for _ in range(50):
        hall.tick(hall.now_s + limits.CROWD_DECIDE_S / 10)
        for index, owner in enumerate(operation.view.owners):
            some = received(index, peers[:1])
            hall.say(owner, m.Got(operation.view.plan_id, index, 0, some))
    seen = sum(look_s >= begun_s for look_s in looks)
    assert 4 <= seen <= 7, "five intervals have passed"
    hall.exchange(*peers)
    assert hall.bodies(Commit)

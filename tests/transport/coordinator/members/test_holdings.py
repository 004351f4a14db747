"""Peers show that they hold the whole ledger, and only then may another do without it."""

from typing import Any

import msgspec
import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from tests.transport.hall import Hall, opened
from tests.transport.ledger.test_snapshots import Disk, Newcomer
from tests.transport.rig import A, B, C, D, E

F = b"F" * 32


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 3000)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1500)
    monkeypatch.setattr(limits, "LEDGER_DISK_BYTES", 2000)


def told(hall: Hall, peer: bytes, kind: type[Any]) -> list[Any]:
    return [message for message in hall.sent[peer] if isinstance(message, kind)]


def show(hall: Hall, *peers: bytes) -> None:
    """Have them answer honestly whatever they are asked."""
    for peer in peers:
        asked = [one for one in told(hall, peer, m.Tell) if one.alone]
        hall.sent[peer] = [one for one in hall.sent[peer] if one not in asked]
        for one in asked:
            index = one.first_index
            hall.say(peer, m.History(index, (hall.records[index].to_bytes(),)))


def run_on(hall: Hall, ops: range, *peers: bytes) -> None:
    for op in ops:
        hall.run_op(op, *peers)
        for peer in peers:
            hall.ack(peer)


def long_run(*peers: bytes, ops: int = 12, **terms: Any) -> Hall:
    hall = opened(*peers, **terms)
    run_on(hall, range(1, ops + 1), *peers)
    return hall


def test_a_newcomer_need_not_fetch_what_three_others_hold() -> None:
    hall = long_run(A, B, C)
    newcomer = Newcomer(hall)
    newcomer.read_all()
    assert newcomer.machine.ledger.first > 0
    hall.take(hall.machine.disconnected(C, hall.now_s))
    newcomer.progress()
    newcomer.read_all()
    assert newcomer.machine.ledger.first == 0 and newcomer.disk.records == hall.records


def test_of_several_newcomers_as_many_fetch_as_are_needed() -> None:
    hall = long_run(A, B)
    newcomers = [Newcomer(hall, peer=peer) for peer in (C, D, E, F)]
    for newcomer in newcomers:
        newcomer.read_all()
    whole = [one for one in newcomers if one.machine.ledger.first == 0]
    assert len(whole) == 1 and whole[0].disk.records == hall.records


def test_who_shows_nothing_does_not_count() -> None:
    hall = long_run(A, B, C)
    newcomer = Newcomer(hall)
    newcomer.read_all()
    for peer in (A, B, C):
        hall.ack(peer)
    show(hall, A, B)
    hall.say(C, m.History(0, ()))
    newcomer.progress()
    assert newcomer.machine.ledger.first == 0, "C holds nothing, whatever it says"


def test_claims_alone_spare_a_newcomer_nothing_for_longer_than_an_answer_takes() -> None:
    hall = long_run(A, B, C)
    hall.join(D)
    hall.ack(D, holds_from=40)
    assert not told(hall, D, m.Keep)
    hall.alive(hall.now_s + 21.0, A, B, C)  # asked, they say nothing
    hall.ack(D, holds_from=40)
    assert told(hall, D, m.Keep) == [m.Keep(all=True)]


def test_claims_alone_let_nobody_free_the_newer_part_that_it_has() -> None:
    hall = long_run(A, B, C)
    hall.join(D)
    hall.ack(D, holds_from=10)
    for peer in (A, B, C):
        hall.ack(peer)
    hall.ack(D, holds_from=10)
    assert not told(hall, D, m.Keep)
    show(hall, A, B, C)
    hall.ack(D, holds_from=10)
    assert told(hall, D, m.Keep) == [m.Keep(all=False, frees=True)]


def test_those_who_were_told_to_fetch_and_do_not_are_relied_on_for_a_while_only() -> None:
    hall = long_run(A)
    newcomers = (B, C, D, E)
    hall.join(*newcomers, boot=b"later")

    def are_told(until_s: float) -> list[bool]:
        while hall.now_s < until_s:
            hall.tick(hall.now_s + 5.0)
            for peer in newcomers:
                hall.ack(peer, holds_from=40)
        return [m.Keep(all=True) in hall.sent[peer] for peer in newcomers]

    begun_s = hall.now_s
    assert are_told(begun_s + 30.0) == [True, True, True, False]
    assert are_told(begun_s + 590.0) == [True, True, True, False]
    assert are_told(begun_s + 640.0) == [True, True, True, True]


def test_nothing_is_freed_for_those_who_are_yet_to_fetch() -> None:
    hall = long_run(A, B, C, ops=40)
    for peer in (A, B, C):
        hall.ack(peer, holds_from=5)
    newcomer = Newcomer(hall)
    newcomer.read_all()
    first = newcomer.machine.ledger.first
    for op in range(41, 81):
        hall.run_op(op, A, B, C)
        for peer in (A, B, C):
            hall.ack(peer, holds_from=5)
    newcomer.read_all()
    newcomer.progress()
    assert newcomer.machine.ledger.first <= first


def test_who_shows_another_record_does_not_count_and_never_again_on_this_line() -> None:
    hall = long_run(A, B, C)
    newcomer = Newcomer(hall)
    newcomer.read_all()
    hall.ack(C)
    (asked,) = told(hall, C, m.Tell)
    other = hall.records[(asked.first_index + 1) % len(hall.records)]
    hall.say(C, m.History(asked.first_index, (other.to_bytes(),)))
    hall.alive(hall.now_s + 3 * limits.HISTORY_ASK_S, A, B, C, D)
    assert len(told(hall, C, m.Tell)) == 1
    newcomer.progress()
    assert newcomer.machine.ledger.first == 0


def test_a_disk_is_freed_by_one_after_the_other_and_never_below_four_that_have_shown() -> None:
    peers = (A, B, C, D, E, F)
    hall = long_run(*peers)
    for _ in range(3):
        for peer in peers:
            hall.ack(peer)
        show(hall, *peers)
    freed = [peer for peer in peers if m.Keep(all=False, frees=True) in hall.sent[peer]]
    assert len(freed) == 2
    for peer in peers:
        hall.ack(peer, holds_from=40 if peer in freed else 0)
    assert sum(m.Keep(all=False, frees=True) in hall.sent[peer] for peer in peers) == 2


def test_claims_alone_free_nobodys_disk() -> None:
    peers = (A, B, C, D, E, F)
    hall = long_run(*peers)
    hall.alive(hall.now_s + 3 * limits.HISTORY_ASK_S, *peers)
    assert not any(message.frees for peer in peers for message in told(hall, peer, m.Keep))


def test_a_short_ledger_is_kept_by_all_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEDGER_DISK_BYTES", 1 << 20)
    peers = (A, B, C, D, E, F)
    hall = long_run(*peers)
    hall.alive(hall.now_s + 3 * limits.HISTORY_ASK_S, *peers)
    assert not any(told(hall, peer, m.Keep) + told(hall, peer, m.Tell) for peer in peers)


def test_a_peer_that_frees_its_disk_goes_on_from_its_snapshot_and_fetches_all_again() -> None:
    hall = long_run(A, B, C)
    newcomer = Newcomer(hall)
    for message in (m.Keep(all=True), m.Keep(all=False, frees=True)):
        newcomer.read_all()
        newcomer.act(newcomer.machine.control(message, 0.0))
    newcomer.read_all()
    ledger = newcomer.machine.ledger
    assert newcomer.disk.records == [hall.records[0], *hall.records[ledger.first :]]
    hall.run_op(13, A, B, C)
    again = Newcomer(hall, newcomer.disk, boot=b"again")
    again.read_all()
    assert again.machine.view == hall.machine.view
    again.act(again.machine.control(m.Keep(all=True), 0.0))
    again.read_all()
    assert again.disk.records == hall.records
    again.look_back()
    assert not again.halts


def test_a_copy_with_a_gap_takes_no_second_image() -> None:
    hall = long_run(A, B, C, ops=98, rounds=1000)
    late = Newcomer(hall, Disk(hall.records[:20]))
    while late.machine.ledger.head_index < hall.machine.writer.head:
        late.read()
    assert late.machine.ledger.first > 20
    hall.take(hall.machine.disconnected(D, hall.now_s))
    hall.sent[D] = []
    run_on(hall, range(99, 198), A, B, C)
    again = Newcomer(hall, late.disk, boot=b"again")
    again.read_all()
    hall.take(hall.machine.disconnected(C, hall.now_s))
    again.progress()
    again.look_back()
    assert again.machine.ledger.first == 0 and again.disk.records == hall.records


def test_who_was_told_to_stop_while_an_answer_was_under_way_fetches_on_when_told_again() -> None:
    hall = long_run(A, B, ops=40)
    newcomer = Newcomer(hall)
    while not newcomer.machine._fills:
        newcomer.read()
    newest = hall.records[-1]
    hall.join(C, head_index=newest.index, head_hash=newest.hash)
    for peer in (A, B, C):
        hall.ack(peer)
    show(hall, A, B, C)
    hall.say(D, newcomer.machine._progress())
    newcomer.read_all()
    assert newcomer.machine.ledger.first > 0
    hall.take(hall.machine.disconnected(C, hall.now_s))
    newcomer.progress()
    assert newcomer.machine.ledger.first == 0


def test_an_answer_that_came_late_is_asked_for_again() -> None:
    hall = long_run(A, B, C)
    Newcomer(hall).read_all()
    hall.ack(A)
    hall.wake(hall.now_s + 25.0)
    hall.ack(A)
    show(hall, A)
    hall.alive(hall.now_s + limits.HISTORY_ASK_S - 24.0, A)
    assert [one.alone for one in told(hall, A, m.Tell)] == [True]
    show(hall, A)
    assert hall.machine.holdings._holders[A].has_shown


def test_who_is_asked_for_a_record_that_it_lacks_says_so() -> None:
    hall = long_run(A, B, C)
    newcomer = Newcomer(hall)
    newcomer.read_all()
    first = newcomer.machine.ledger.first
    (said,) = newcomer.machine.control(m.Tell(3, alone=True), 0.0)
    assert said == do.SendControl(m.History(first, ()))
    (said,) = newcomer.machine.control(m.Tell(first, alone=True), 0.0)
    raw = hall.records[first].to_bytes()
    assert said == do.SendControl(m.History(first, (raw,)))


def test_nobody_is_asked_whose_line_is_another() -> None:
    hall = long_run(A, B, C)
    Newcomer(hall).read_all()
    hall.ack(A)
    newest = hall.records[-1]
    hall.join(A, head_index=newest.index, head_hash=newest.hash)
    hall.say(A, m.History(0, ()))
    hall.ack(A)
    assert told(hall, A, m.Tell)
    assert not any(one.is_false for one in hall.machine.holdings._holders.values())


def test_a_claim_of_nothing_is_no_claim() -> None:
    hall = long_run(A, B, C)
    Newcomer(hall).read_all()
    hall.sent[A].clear()
    hall.say(A, msgspec.structs.replace(m.Progress(-1, 0, 0, "training"), holds_from=-3))
    assert not told(hall, A, m.Tell)

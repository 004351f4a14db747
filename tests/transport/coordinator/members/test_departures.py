"""Bans and removals by the organiser: they stand in the ledger, and everybody holds to it."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.departures import Ban, Order, Pardon, Removal
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    Gone,
    Join,
    Plan,
    Rewind,
    Unban,
    bodies_of,
    make_record,
)
from tests.transport.coordinator.test_ledger_recovery import newer_hello, restored
from tests.transport.hall import Hall, held, opened, root_of
from tests.transport.rig import STRANGER, A, B, C, D, sign
from tests.transport.swarm import Swarm

WHY = "You sent noise."


def order(hall: Hall, said: Order) -> None:
    hall.take(hall.machine.ordered(said, hall.now_s))


def refusals(hall: Hall, peer: bytes) -> list[tuple[str, str]]:
    return [(one.code, one.text) for one in hall.sent[peer] if isinstance(one, m.Refused)]


def test_a_banned_peer_is_told_why_and_its_key_stays_out_until_it_is_pardoned() -> None:
    hall = opened()
    order(hall, Ban(C, WHY))
    assert refusals(hall, C) == [("SWT-E702", WHY)] and C in hall.closed
    assert C not in hall.machine.view.roster and not hall.machine.is_member(C)
    hall.join(C, boot=b"again")
    assert [code for code, _ in refusals(hall, C)] == ["SWT-E702"]
    assert not any(isinstance(one, m.Welcome) for one in hall.sent[C])
    order(hall, Pardon(C))
    hall.join(C, boot=b"again")
    assert C in hall.machine.view.roster and hall.machine.is_member(C)
    assert [event.event for event in hall.machine.first.chronicle.events][-3:] == [
        "banned", "unbanned", "joined",
    ]  # fmt: skip


def test_a_removed_peer_may_come_again() -> None:
    hall = opened()
    order(hall, Removal(C, WHY))
    assert refusals(hall, C) == [("SWT-E702", WHY)] and C not in hall.machine.view.roster
    hall.join(C, boot=b"again")
    assert C in hall.machine.view.roster


def test_the_ledger_holds_no_word_of_the_organisers() -> None:
    hall = opened()
    order(hall, Removal(B, WHY))
    order(hall, Ban(C, WHY))
    assert [(gone.peer, gone.evicted, gone.reason) for gone in hall.bodies(Gone)] == [
        (B, True, "removed"), (C, True, "banned"),
    ]  # fmt: skip
    assert not any(WHY.encode() in record.body for record in hall.records)


def test_an_order_that_changes_nothing_writes_nothing() -> None:
    hall = opened()
    before = len(hall.records)
    order(hall, Removal(STRANGER, ""))
    order(hall, Pardon(A))
    assert len(hall.records) == before
    order(hall, Ban(STRANGER, ""))  # a key that never came, or has left, can be banned all the same
    order(hall, Ban(STRANGER, ""))
    assert len(hall.records) == before + 1


def test_who_leaves_with_the_word_banned_is_not() -> None:
    hall = opened()
    hall.say(C, m.Leave("banned"))
    hall.join(C, boot=b"again")
    assert C in hall.machine.view.roster


def test_a_ban_holds_for_who_has_left_and_after_a_restart() -> None:
    hall = opened()
    hall.say(C, m.Leave("bye"))
    order(hall, Ban(C, WHY))
    again = Hall(tuple(hall.records), term=2)
    again.alive(limits.SUSPECT_S + 0.1)
    again.join(C, boot=b"again")
    assert [code for code, _ in refusals(again, C)] == ["SWT-E702"]


def test_a_ban_that_a_restored_disk_has_lost_comes_back_from_any_peer() -> None:
    first = opened()
    before = len(first.records)
    order(first, Ban(C, WHY))
    again = restored(first, len(first.records) - before)
    kept = again.records[-1]
    again.join(C, boot=b"again", head_index=kept.index, head_hash=kept.hash)
    again.join(A, **newer_hello(first))
    assert again.machine.recovery.is_open
    again.say(A, m.History(before, tuple(r.to_bytes() for r in first.records[before:])))
    again.alive(2 * limits.SUSPECT_S + 1.0, A)
    assert [code for code, _ in refusals(again, C)] == ["SWT-E702"]
    assert C not in again.machine.view.roster


def test_nothing_is_ordered_while_peers_may_bring_lost_records() -> None:
    again = restored(opened(), 1)
    before = len(again.records)
    order(again, Ban(C, WHY))
    assert len(again.records) == before and again.machine.recovery.is_open


def test_a_ledger_that_lets_a_banned_key_in_is_none() -> None:
    """So a peer refuses it too, whoever holds the run's key."""
    hall = opened()
    order(hall, Ban(C, WHY))
    join = next(body for body in hall.bodies(Join) if body.peer == C)
    view, chain = LedgerView(), hall.machine.writer.ledger
    for record, body in zip(hall.records, bodies_of(hall.records), strict=True):
        view.apply(record, body)
    record = make_record(len(chain), chain.head_hash, 1, join, sign)
    with pytest.raises(RemoteFault, match="banned"):
        view.apply(record, join)
    view.apply(make_record(len(chain), chain.head_hash, 1, Unban(C), sign), Unban(C))
    view.apply(record, join)


def test_every_peer_takes_a_banned_key_off_its_allow_list_and_the_run_goes_on() -> None:
    swarm = Swarm(3, rounds=40, start_peers=3)
    for peer in (A, B, C, D):
        swarm.add(peer)
    while not swarm.members[A].machine.view.first.committed:
        swarm.step()
    swarm._heed(swarm.hall.ordered(Ban(D, WHY), swarm.now_s))
    assert swarm.run(200_000)
    for peer in (A, B, C):
        assert D in swarm.members[peer].machine.view.banned
        assert D in swarm.members[peer].revoked
    assert {halt.code for halt in swarm.members[D].halted} == {"SWT-E702"}


def released(hall: Hall, peer: bytes) -> bool:
    return any(isinstance(one, m.Released) for one in hall.sent[peer])


def test_who_alone_has_the_newest_state_may_go_once_somebody_who_stays_has_it() -> None:
    hall = opened(A, B, start_peers=1)
    hall.run_op(1, A)
    hall.say(A, m.Leaving())
    assert not released(hall, A)
    hall.join(C)
    assert not released(hall, A)
    hall.say(C, m.Leaving())  # it holds nothing, and does not stay
    assert released(hall, C)
    hall.say(B, m.Applied(1, root_of(1)))
    assert released(hall, A)
    assert sum(isinstance(one, m.Released) for one in hall.sent[A]) == 1


def test_who_has_what_others_have_or_is_alone_may_go_at_once() -> None:
    hall = opened(A, B)
    hall.run_op(1, A, B)
    hall.say(A, m.Leaving())
    assert released(hall, A)
    hall.say(A, m.Leave())
    hall.say(B, m.Leaving())  # nobody stays
    assert released(hall, B)


def test_a_state_that_is_not_the_runs_lets_nobody_go() -> None:
    hall = opened(A, B, C, start_peers=2)
    hall.run_op(1, A, B)
    hall.say(B, m.Leave())
    hall.say(C, m.Applied(1, root_of(7)))
    hall.say(A, m.Leaving())
    assert not released(hall, A)
    hall.say(C, m.Applied(1, root_of(1)))
    assert released(hall, A)


def test_a_state_of_a_past_that_was_cancelled_lets_nobody_go() -> None:
    """Neither a later one (world 8955 behind routers) nor one of an op that was made anew."""
    hall = opened(A, B, C, D)
    hall.ready(1, A, B, C, D)
    hall.exchange(A, B, C, D)
    for peer in (A, B):
        hall.say(peer, m.Applied(1, root_of(1)))
        hall.say(peer, m.Leave())
    for peer in (C, D):
        hall.say(peer, m.Stranded(1))
    assert [body.op for body in hall.bodies(Rewind)] == [0]
    hall.join(A, boot=b"again.", **held(1))
    hall.ready(1, C, D)
    hall.say(A, m.Applied(1, root_of(1)))  # the op of this number is under way anew
    hall.exchange(C, D)
    hall.say(C, m.Applied(1, root_of(7)))
    hall.join(B, boot=b"again.", **held(2, root_of(2)))
    hall.say(C, m.Leaving())
    assert not released(hall, C)
    hall.say(B, m.Applied(2, root_of(2)))  # before it has heard of the REWIND
    assert not released(hall, C)
    hall.say(B, m.Applied(1, root_of(7)))
    assert released(hall, C)


def test_nobody_waits_for_who_is_leaving() -> None:
    hall = opened(A, B)
    hall.run_op(1, A, B)
    hall.say(A, m.Leaving())
    ops = len(hall.bodies(Plan))
    hall.ready(2, B)
    assert len(hall.bodies(Plan)) == ops + 1

"""The coordinator's disk was restored, or a result is with nobody: there is one history still."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import Adopt
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Commit, Gone, Plan, Rewind, Skip
from tests.transport.hall import Hall, held, opened, root_of
from tests.transport.rig import A, B, C, D, begun_chain


def told(hall: Hall, peer: bytes) -> list[m.Tell]:
    return [message for message in hall.sent[peer] if isinstance(message, m.Tell)]


def restored(hall: Hall, lost: int) -> Hall:
    """A second life on a disk that lacks the newest records."""
    return Hall(tuple(hall.records[:-lost]), term=1)


def newer_hello(hall: Hall) -> dict[str, object]:
    newest = hall.records[-1]
    return {"head_index": newest.index, "head_hash": newest.hash}


def test_a_restored_coordinator_adopts_what_it_had_decided_before() -> None:
    first = opened()
    first.run_op(1, A, B, C)
    again = restored(first, 3)
    again.join(A, **newer_hello(first))
    (tell,) = told(again, A)
    assert tell.first_index == len(first.records) - 3
    raw = tuple(record.to_bytes() for record in first.records[tell.first_index :])
    again.say(A, m.History(tell.first_index, raw))
    assert [record.hash for record in again.records] == [record.hash for record in first.records]
    assert again.machine.writer.term > first.records[-1].term
    assert any(isinstance(message, m.Welcome) for message in again.sent[A])


def test_nothing_is_decided_while_somebody_may_still_bring_newer_records() -> None:
    first = opened()
    again = restored(first, 1)
    before = len(again.records)
    again.join(A, boot=b"another life")
    again.alive(limits.SUSPECT_S - 0.1)
    assert len(again.records) == before and not again.sent[A]
    again.alive(limits.SUSPECT_S + 0.1)
    assert any(isinstance(message, m.Welcome) for message in again.sent[A])


def test_who_waited_to_come_in_and_went_is_still_waited_for_and_leaves_by_silence() -> None:
    """Found by a simulated seed: it was in the roster for ever, and REWIND did not wait for it."""
    again = Hall(tuple(opened().records), term=1)
    again.join(A, boot=b"another life")
    again.take(again.machine.disconnected(A, again.now_s))
    again.join(B, C)
    again.alive(limits.SUSPECT_S + 1.0, B, C)
    assert not again.machine.recovery.is_open
    assert not again.machine.first.group_peers.all_heard
    again.alive(limits.SUSPECT_S + limits.EVICT_S + 2.0, B, C)
    assert [body.peer for body in again.bodies(Gone)] == [A]
    assert A not in again.machine.view.roster


def test_who_waits_to_come_in_and_speaks_is_sent_away_and_does_not_come_in_without_it() -> None:
    """Found by a simulated seed: its connection was closed, and it was held for connected."""
    again = Hall(tuple(opened().records), term=1)
    again.join(D)
    again.say(D, m.Leave("asked to"))
    assert again.closed == [D]
    again.join(A, B, C)
    assert not again.machine.recovery.is_open
    assert D not in again.machine.view.roster


def test_nobody_waits_any_longer_once_the_last_of_the_roster_is_back_as_a_new_process() -> None:
    again = Hall(tuple(opened().records), term=1)
    again.join(A, B, C, boot=b"another life")
    assert not again.machine.recovery.is_open
    assert again.machine.first.group_peers.all_heard
    assert all(isinstance(again.sent[peer][0], m.Welcome) for peer in (A, B, C))


def test_nothing_is_decided_where_a_guest_is_found_to_hold_newer_records() -> None:
    first = opened(A, B, C, start_peers=2)
    stop = len(first.records)
    for op in range(1, 12):
        first.run_op(op, A, B, C)
    old = Hall(tuple(first.records[:stop]), term=2, start_peers=2)
    old.join(D, **newer_hello(first))
    old.say(D, m.History(150, ()))  # it began with a SNAPSHOT and has nothing of what we lack
    head = first.records[stop - 1]
    for peer in (A, B):
        old.join(peer, head_index=head.index, head_hash=head.hash)
        old.ready(1, peer)
    old.join(C, head_index=head.index, head_hash=head.hash)
    assert old.machine.recovery.is_open and len(old.records) == stop


def test_a_witness_that_went_before_it_told_leaves_by_silence() -> None:
    first = opened()
    again = restored(first, 1)
    again.join(A, **newer_hello(first))
    again.take(again.machine.disconnected(A, again.now_s))
    again.join(B, C)
    again.alive(limits.SUSPECT_S + limits.EVICT_S + 2.0, B, C)
    assert A in {body.peer for body in again.bodies(Gone)}


def test_a_restored_coordinator_that_was_stopped_still_asks_who_holds_newer_records() -> None:
    first = opened()
    again = restored(first, 1)
    # Nobody could say HELLO in time, because it was this process that did not listen.
    again.now_s += limits.SUSPECT_S + limits.ABSENT_S + 30.0
    again.join(A, **newer_hello(first))
    assert told(again, A)
    assert not any(isinstance(message, m.Refused) for message in again.sent[A])


def tell(hall: Hall, first: Hall, peer: bytes) -> None:
    """The peer answers TELL with all that the first life's ledger holds."""
    lost = first.records[len(hall.records) :]
    hall.say(peer, m.History(lost[0].index, tuple(record.to_bytes() for record in lost)))


def test_who_comes_after_the_waiting_still_brings_what_nothing_was_decided_instead_of() -> None:
    """Found by a simulated seed: the only holder was restarting while the others were awaited."""
    first = opened()
    first.run_op(1, A, B, C)
    again = restored(first, 1)
    again.tick(limits.SUSPECT_S + 0.1)
    assert not again.machine.writer.has_decided
    again.join(A, **newer_hello(first))
    tell(again, first, A)
    assert [record.hash for record in again.records] == [record.hash for record in first.records]


def test_two_who_tell_much_in_turn_are_heard_to_the_end() -> None:
    """Found by simulated seeds with small messages: the second had told nothing new, and was taken
    for a fork; each message of who came late counted as another who came late."""
    first = opened()
    first.run_op(1, A, B, C)
    again = restored(first, 6)
    again.tick(limits.SUSPECT_S + 0.1)
    again.join(A, **newer_hello(first))
    again.join(B, **newer_hello(first))
    while len(again.records) < len(first.records):
        for peer in (A, B):
            index = told(again, peer)[-1].first_index
            again.say(peer, m.History(index, (first.records[index].to_bytes(),)))
    for peer in (A, B):
        assert not any(isinstance(message, m.Refused) for message in again.sent[peer])
        assert any(isinstance(message, m.Welcome) for message in again.sent[peer])


def test_who_lacked_the_older_records_is_asked_again_once_another_has_told_them() -> None:
    """Found by a simulated seed: what only a newcomer held was decided a second time."""
    first = opened()
    first.run_op(1, A, B, C)
    total = len(first.records)
    again = restored(first, 5)
    known = first.records[total - 3]
    again.join(A, head_index=known.index, head_hash=known.hash)
    again.join(B, **newer_hello(first))
    again.say(B, m.History(total - 2, ()))  # it began with a SNAPSHOT, and older ones are not here
    lost = first.records[total - 5 : total - 2]
    again.say(A, m.History(total - 5, tuple(record.to_bytes() for record in lost)))
    assert told(again, B)[-1].first_index == total - 2
    tell(again, first, B)
    assert [record.hash for record in again.records] == [record.hash for record in first.records]


def test_who_comes_after_a_decision_is_refused_and_claims_hold_nobody_up_for_ever() -> None:
    first = opened()
    first.run_op(1, A, B, C)
    for has_decided in (False, True):
        again = restored(first, 1)
        again.tick(limits.SUSPECT_S + 0.1)
        if has_decided:
            again.join(B, boot=b"another life")
        for _ in range(3):
            again.join(A, head_index=1 << 20, head_hash=b"x" * 32)
            assert bool(told(again, A)) != has_decided
            again.take(again.machine.disconnected(A, again.now_s))
            again.tick(again.now_s + limits.ABSENT_S + 0.1)
        again.join(A, **newer_hello(first))
        assert [s.code for s in again.sent[A] if isinstance(s, m.Refused)] == ["SWT-E562"]


def test_who_tells_nothing_new_voids_nothing_of_what_was_reported() -> None:
    """An op is in progress; a stranger claims records and has none."""
    first = opened()
    first.ready(1, A, B, C)
    again = Hall(tuple(first.records), term=2, start_peers=3)
    again.join(A, B, C, **newer_hello(first))
    before = again.machine.first.operation
    assert before is not None
    for _ in range(5):
        again.join(D, head_index=1 << 20, head_hash=b"x" * 32)
        if told(again, D):
            again.say(D, m.History(0, ()))
        again.tick(again.now_s + limits.ABSENT_S + 0.1)
    assert again.machine.first.operation is before
    assert not told(again, D)  # the fifth time nobody is held up for it


def test_nothing_that_peers_say_becomes_a_record_while_somebody_may_bring_older_ones() -> None:
    first = opened()
    first.run_op(1, A, B, C)
    again = restored(first, 2)
    before = len(again.records)
    again.join(B, **newer_hello(first))
    kept = again.records[-1]
    hello = {"head_index": kept.index, "head_hash": kept.hash}
    again.join(A, **held(1), **hello)
    again.join(C, **held(1), **hello)
    again.say(A, m.Offer(root_of(9), 24, b"L" * 32), m.CheckpointWritten(1, bytes(32)))
    again.say(C, m.Leave())
    assert len(again.records) == before
    raw = tuple(record.to_bytes() for record in first.records[before:])
    again.say(B, m.History(before, raw))
    assert again.records[: len(first.records)] == first.records
    assert [body.peer for body in again.bodies(Gone)] == [C]


def test_who_left_after_the_backup_is_not_waited_for() -> None:
    first = opened()
    first.run_op(1, A, B, C)
    before = len(first.records)
    first.say(C, m.Leave())
    again = restored(first, len(first.records) - before)
    again.join(A, **newer_hello(first))
    again.say(A, m.History(before, tuple(r.to_bytes() for r in first.records[before:])))
    assert set(again.machine.live_roster.unseen) == {B}


def test_who_is_back_and_was_out_in_what_the_backup_lacks_joins_anew() -> None:
    """Else it would be connected and in nobody's roster: nobody would ever reach it."""
    first = opened()
    before = len(first.records)
    first.alive(limits.EVICT_S + 1.0, A, B)
    assert [body.peer for body in first.bodies(Gone)] == [C]
    again = restored(first, len(first.records) - before)
    kept = again.records[-1]
    again.join(C, head_index=kept.index, head_hash=kept.hash)
    assert any(isinstance(message, m.Welcome) for message in again.sent[C])
    again.join(A, **newer_hello(first))
    again.say(A, m.History(before, tuple(r.to_bytes() for r in first.records[before:])))
    again.ack(C)
    assert C in again.closed
    again.join(B, **newer_hello(first))
    again.join(C, head_index=kept.index, head_hash=kept.hash)
    assert set(again.machine.view.roster) == {A, B, C}
    assert any(isinstance(message, m.Welcome) for message in again.sent[C])


def test_a_backup_from_before_anybody_came_is_healed_too() -> None:
    first = opened()
    again = restored(first, len(first.records) - 1)
    assert len(again.records) == 1
    again.join(A, **newer_hello(first))
    raw = tuple(record.to_bytes() for record in first.records[1:])
    again.say(A, m.History(1, raw))
    assert [record.hash for record in again.records] == [record.hash for record in first.records]


def test_a_coordinator_that_was_stopped_suspects_nobody_for_its_own_absence() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.wake(500.0)
    for peer in (A, B, C):
        hall.ack(peer)
    hall.exchange(A, B, C)
    assert hall.bodies(Commit)[-1].contributors == tuple(sorted((A, B, C)))
    assert not hall.bodies(Gone)


def test_a_stop_while_nothing_was_due_is_noticed_too() -> None:
    """Found by a simulated seed: what it missed hid no deadline, but everybody's heartbeats."""
    hall = opened()
    hall.ready(1, A, B, C)
    hall.wake(limits.SUSPECT_S - 0.1)  # before anybody was to be suspected
    hall.tick(limits.SUSPECT_S + 0.1)
    assert hall.machine.live_roster.alive(hall.now_s) == {A, B, C}


def test_a_replayed_op_is_attested_when_none_of_its_members_is_left() -> None:
    hall = opened(A, B)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.join(C)
    for peer in (A, B):
        hall.say(peer, m.Leave())
    hall.say(C, m.Applied(1, root_of(1)))
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))


def test_a_peer_that_claims_newer_records_and_tells_none_is_refused() -> None:
    first = opened()
    again = restored(first, 2)
    again.join(A, head_index=len(first.records) + 5, head_hash=b"x" * 32)
    again.say(A, m.History(0, ()))
    assert [s.code for s in again.sent[A] if isinstance(s, m.Refused)] == ["SWT-E562"]


def test_records_of_another_run_are_not_adopted() -> None:
    first = opened()
    again = restored(first, 2)
    before = len(again.records)
    again.join(A, **newer_hello(first))
    forged = begun_chain().records[-1].to_bytes()
    again.say(A, m.History(before, (forged, b"no record")))
    assert len(again.records) == before
    assert [s.code for s in again.sent[A] if isinstance(s, m.Refused)] == ["SWT-E562"]


def test_a_result_that_nobody_holds_is_cancelled_and_the_op_is_planned_again() -> None:
    hall = opened()
    hall.run_op(1, A, B, C)
    hall.ready(2, A, B, C)
    hall.exchange(A, B, C)
    for peer in (A, B):
        hall.say(peer, m.Leave())
    hall.say(C, m.Stranded(2))
    (rewind,) = hall.bodies(Rewind)
    assert rewind.op == 1
    view = hall.machine.view.first
    assert view.last_op == 1 and view.committed == 1
    hall.ready(2, C)
    assert [plan.op for plan in hall.bodies(Plan)] == [1, 2, 2]


def test_a_state_that_the_run_goes_back_to_is_attested_before_anything_is_planned_with_it() -> None:
    hall = opened(A, B, wait_ready_s=5.0)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.say(A, m.Applied(1, root_of(1)))
    hall.ready(2, A)
    hall.alive(hall.now_s + 10.0, A, B)
    assert hall.plan().op == 2 and [one.peer for one in hall.plan().members] == [A]
    hall.exchange(A)
    hall.say(A, m.Applied(2, root_of(2)))
    hall.say(B, m.Applied(1, root_of(1)), m.Ready(2, 1, 1, root_of(1)), m.Stranded(2))
    assert [body.op for body in hall.bodies(Attest)] == [0, 2]
    hall.say(A, m.Leave())
    assert [body.op for body in hall.bodies(Rewind)] == [1]
    assert [body.op for body in hall.bodies(Attest)] == [0, 2, 1]


def test_nothing_is_cancelled_while_somebody_holds_it_or_may_come_back_with_it() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    hall.say(A, m.Applied(1, root_of(1)))
    hall.say(C, m.Stranded(1))
    hall.say(B, m.Stranded(1))
    assert not hall.bodies(Rewind)
    hall.take(hall.machine.disconnected(A, hall.now_s))
    assert not hall.bodies(Rewind)
    hall.alive(hall.now_s + limits.EVICT_S + 1, B, C)
    assert [body.op for body in hall.bodies(Rewind)] == [0]


def test_a_run_whose_first_state_is_gone_begins_with_another() -> None:
    hall = Hall()
    hall.join(A, B)
    hall.say(A, m.Offer(root_of(0), 24, b"L" * 32))
    hall.say(A, m.Leave())
    assert not hall.bodies(Rewind)
    hall.say(B, m.Stranded(0))
    assert [body.op for body in hall.bodies(Rewind)] == [-1]
    hall.say(B, m.Offer(root_of(9), 24, b"L" * 32))
    assert hall.machine.view.first.root_after(0) == root_of(9)


def test_rewind_cancels_outcomes_attestations_and_the_checkpoint_of_later_ops() -> None:
    chain = begun_chain()
    for _ in range(2):
        chain.add(chain.plan())
        chain.commit(A, B)
    chain.add(chain.plan())
    chain.add(Skip(3, "deadline"))
    with pytest.raises(RemoteFault):
        chain.add(Rewind(3, "not back"))
    chain.add(Rewind(1, "lost"))
    view = chain.view.first
    assert (view.last_op, view.committed, sorted(view.commits), view.skips) == (1, 1, [1], {})
    assert not view.is_trusted(2, b"x" * 32) and not view.is_trusted(1, b"x" * 32)
    chain.add(chain.plan())
    chain.commit(A, B)
    assert view.last_op == 2


def test_adopt_comes_before_anything_that_follows_from_it() -> None:
    first = opened()
    machine = restored(first, 2).machine
    hello = first.machine.lines[A].hello
    newest = first.records[-1]
    newer = m.Hello(
        hello.boot, hello.name, hello.curve_key, hello.host, hello.port, newest.index,
        newest.hash, 1 << 30,
    )  # fmt: skip
    machine.connected(A, newer, 0.0)
    raw = tuple(record.to_bytes() for record in first.records[-2:])
    actions = machine.received(A, m.History(newest.index - 1, raw), 0.0)
    assert isinstance(actions[0], Adopt)
    assert [record.hash for record in actions[0].records] == [r.hash for r in first.records[-2:]]


def test_messages_of_groups_that_there_cannot_be_are_not_held() -> None:
    again = restored(opened(), 1)
    again.join(A, **newer_hello(opened()))
    assert again.machine.recovery.is_open
    for group in (-1, 1, 2, 3, 1 << 40):
        again.say(A, m.CheckpointWritten(1, bytes(32), group=group))
    again.join(B)
    for group in (-1, 1, 2, 3, 1 << 40):
        again.say(B, m.CheckpointWritten(1, bytes(32), group=group))
    assert not again.machine.recovery.take_held()


def test_a_history_that_goes_back_and_forth_is_refused() -> None:
    first = opened()
    again = restored(first, 2)
    again.join(A, **newer_hello(first))
    raw = [record.to_bytes() for record in first.records]
    again.say(A, m.History(0, (raw[0], raw[1], raw[0], *raw[-2:])))
    assert len(again.records) == len(first.records) - 2

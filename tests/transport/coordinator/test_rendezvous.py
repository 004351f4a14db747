"""The coordinator as one machine: what it logs, to whom it speaks, and whom it does not believe."""

from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    Attest,
    Commit,
    Freeze,
    Gone,
    Join,
    Plan,
    Rewind,
    Run,
    Skip,
)
from tests.transport.hall import ROOT, Hall, held, opened, root_of
from tests.transport.rig import (
    BOOT,
    LAYOUT,
    RUN_KEY,
    STRANGER,
    A,
    B,
    C,
    D,
    E,
    terms_of,
    verify,
)

F = bytes([6]) * 32

# ---- the door and the log


def test_a_new_run_begins_with_its_run_record_and_a_restart_adds_none() -> None:
    hall = Hall()
    assert hall.bodies() == [Run("run", RUN_KEY, terms_of().config_hash, 1)]
    again = Hall(tuple(hall.records), term=2)
    assert len(again.records) == 1


def test_whoever_comes_in_is_logged_once_and_hears_the_ledger_from_its_own_head() -> None:
    hall = Hall()
    hall.join(A)
    assert isinstance(hall.sent[A][0], m.Welcome)
    assert hall.heard(A) == hall.records
    head = hall.records[-1]
    hall.join(A, head_index=1, head_hash=head.hash)
    assert hall.heard(A) == []
    assert len(hall.bodies(Join)) == 1
    hall.join(A, boot=b"restarted")
    assert [join.boot for join in hall.bodies(Join)] == [BOOT, b"restarted"]


def test_records_go_to_everybody_in_order_and_once() -> None:
    hall = opened()
    hall.run_op(1, A, B, C)
    for peer in (A, B, C):
        assert hall.heard(peer) == hall.records
    copy = LedgerCopy(verify, ())
    for record in hall.heard(B):
        copy.take(record.to_bytes())
    assert copy.view == hall.machine.view


def test_nobody_takes_anothers_curve_key_also_not_while_it_is_away() -> None:
    """The data lane knows peers by it, so the first holder would be shut out."""
    hall = opened(A, B)
    hall.say(A, m.Leave())
    before = len(hall.records)
    with pytest.raises(RemoteFault) as caught:
        hall.join(C, curve_key=A)
    assert caught.value.reason == "hello" and len(hall.records) == before
    hall.join(A, boot=b"again")
    assert A in hall.machine.view.roster


def test_a_ledger_that_is_not_this_runs_is_refused() -> None:
    hall = Hall()
    for index, digest in ((0, b"x" * 32), (7, hall.records[0].hash), (1 << 62, b"")):
        hall.join(A, head_index=index, head_hash=digest)
        assert [s.code for s in hall.sent[A] if isinstance(s, m.Refused)] == ["SWT-E562"]
    assert hall.closed == [A] * 3
    assert not hall.bodies(Join)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "x" * 4_000_000},
        {"host": ""},
        {"curve_key": b"short"},
        {"curve_key": b"k" * 3_000_000},
        {"boot": b""},
        {"boot": b"b" * 3_000_000},
        {"port": 0},
        {"port": -1},
        {"port": 65536},
        {"port": (1 << 64) - 1},
        held(3, b"x" * 1_000_000),
        {"states": (m.Applied(1, ROOT), m.Applied(2, ROOT))},
    ],
)
def test_a_card_that_cannot_be_one_never_reaches_the_ledger(change: dict[str, Any]) -> None:
    """The ledger goes to everybody, for ever: a record of 4 MB could never be sent."""
    hall = Hall()
    with pytest.raises(RemoteFault) as caught:
        hall.join(A, **change)
    assert caught.value.reason == "hello"
    hall.join(B)
    assert [join.peer for join in hall.bodies(Join)] == [B]


@pytest.mark.parametrize("head", [-1, -2, -1000, -(1 << 63)])
def test_a_peer_without_a_ledger_hears_all_of_it_whatever_it_calls_that(head: int) -> None:
    hall = opened()
    hall.join(D, head_index=head)
    assert hall.heard(D) == hall.records


def test_names_that_peers_choose_are_short_and_printable() -> None:
    hall = Hall()
    hall.join(A, name="\x1b[2Jotter\n" + "x" * 500)
    (join,) = hall.bodies(Join)
    assert len(join.name) <= limits.NAME_CHARS_MAX
    assert join.name.isprintable() and "otter" in join.name
    assert hall.machine.status(0.0).peers[0].name.isprintable()


def test_messages_of_whoever_is_not_in_close_the_connection() -> None:
    hall = opened(A, B)
    hall.say(STRANGER, m.Leave(), m.Offer(ROOT, 24, LAYOUT))
    assert hall.closed == [STRANGER, STRANGER]
    for message in (m.Knock(1, A, b"", b"", b""), m.LeaseRequest(1)):
        with pytest.raises(RemoteFault):
            hall.say(A, message)


# ---- op 0


def test_the_first_offer_is_op_0_and_later_ones_change_nothing() -> None:
    hall = Hall()
    hall.join(A, B)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    hall.say(B, m.Offer(ROOT, 26, LAYOUT))
    assert hall.bodies(Attest) == [Attest(0, root_of(0), 24, LAYOUT)]


@pytest.mark.parametrize(
    "offer",
    [
        m.Offer(ROOT, 0, LAYOUT),
        m.Offer(ROOT, -5, LAYOUT),
        m.Offer(ROOT, 1 << 60, LAYOUT),
        m.Offer(b"short", 24, LAYOUT),
        m.Offer(ROOT, 24, b"short"),
        m.Offer(ROOT, 24, b"L" * 4_000_000),
    ],
)
def test_an_offer_without_a_sensible_shape_is_refused(offer: m.Offer) -> None:
    hall = Hall()
    hall.join(A)
    with pytest.raises(RemoteFault):
        hall.say(A, offer)
    assert not hall.bodies(Attest)


# ---- who takes part


def test_an_op_goes_from_ready_to_plan_to_commit_to_attest() -> None:
    hall = opened()
    hall.run_op(1, A, B, C)
    assert [type(body) for body in hall.bodies()][-4:] == [Plan, Freeze, Commit, Attest]
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))


def test_a_newcomer_waits_until_all_have_its_key_and_nobody_waits_for_it() -> None:
    hall = opened(A, B)
    hall.join(C, **held(0))
    hall.ack(C)
    hall.ack(A)
    hall.ready(1, A, B)
    assert {member.peer for member in hall.plan().members} == {A, B}
    hall.exchange(A, B)
    hall.ack(B)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(1, root_of(1)))
    hall.ready(2, A, B)
    assert {x.peer: bool(x.weight) for x in hall.plan().members} == {A: True, B: True, C: False}
    hall.exchange(A, B)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(2, root_of(2)))
    hall.ready(3, A, B)
    assert hall.plan().op == 3, "C has not been ready yet, so it is not waited for"
    hall.exchange(A, B)
    hall.say(C, m.Applied(3, root_of(3)))
    hall.ready(4, C, A, B)
    assert {x.peer: bool(x.weight) for x in hall.plan().members}[C]


def test_a_peer_that_reconnects_does_not_make_the_op_begin_at_once() -> None:
    """READY stands, with the time at which it came: the others still have theirs to come."""
    hall = opened(wait_ready_s=60.0)
    hall.run_op(1, A, B, C)
    hall.alive(100.0, A, B, C)
    hall.ready(2, A)
    hall.take(hall.machine.disconnected(A, hall.now_s))
    head = hall.records[-1]
    hall.join(A, head_index=head.index, head_hash=head.hash, **held(1))
    hall.ack(A)
    assert hall.plan().op == 1
    hall.alive(159.0, A, B, C)
    assert hall.plan().op == 1
    hall.alive(161.0, A, B, C)
    assert hall.plan().op == 2


def test_who_is_never_ready_again_is_waited_for_seldom() -> None:
    hall = opened(wait_ready_s=10.0)
    hall.run_op(1, A, B, C)
    waits = []
    for op in range(2, 20):
        began_s = hall.now_s
        hall.ready(op, A, B)
        while hall.plan().op < op:
            hall.alive(hall.now_s + 1.0, A, B, C)
        waits.append(hall.now_s - began_s >= 10.0)
        hall.exchange(A, B)
        hall.say(C, m.Applied(op, root_of(op)))
    assert [op for op, waited in enumerate(waits, 2) if waited] == [2, 3, 4, 6, 9, 14]
    hall.ready(20, C, A, B)
    assert {x.peer: bool(x.weight) for x in hall.plan().members}[C], "it comes back by itself"


@pytest.mark.parametrize("leaves", [False, True])
def test_another_process_of_the_same_key_is_waited_for_no_oftener(leaves: bool) -> None:
    hall = opened(wait_ready_s=10.0)
    hall.run_op(1, A, B, C)
    for op in (2, 3, 4):
        hall.ready(op, A, B)
        hall.alive(hall.now_s + 11.0, A, B, C)
        hall.exchange(A, B)
        hall.say(C, m.Applied(op, root_of(op)))
    if leaves:
        hall.say(C, m.Leave())
    hall.join(C, boot=b"another")
    assert hall.machine.first.group_peers.here[C].waits.until == 5


def test_the_first_deadline_is_the_cap_later_ones_adapt() -> None:
    hall = opened(deadline_floor_s=10.0, deadline_cap_s=100.0)
    hall.ready(1, A, B, C)
    assert hall.plan().deadline_s == 100.0
    hall.alive(8.0, A, B, C)
    hall.exchange(A, B, C)
    hall.ready(2, A, B, C)
    assert hall.plan().deadline_s == 8.0 / limits.D_SCATTER * limits.DEADLINE_FACTOR
    hall.exchange(A, B, C)
    hall.ready(3, A, B, C)
    assert hall.plan().deadline_s == pytest.approx(
        0.7 * 8.0 / limits.D_SCATTER * limits.DEADLINE_FACTOR
    )


def test_an_op_that_ran_out_of_time_gives_the_next_one_more() -> None:
    """Or a network that has become slower would skip every op from then on."""
    hall = opened(deadline_floor_s=10.0, deadline_cap_s=500.0)
    hall.run_op(1, A, B, C)
    hall.ready(2, A, B, C)
    assert hall.plan().deadline_s == 10.0
    hall.alive(hall.now_s + 21.0, A, B, C)
    assert isinstance(hall.bodies()[-1], Skip)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(2, root_of(1)), m.Ready(3, 8, 2, root_of(1)))
    assert hall.plan().op == 3
    assert hall.plan().deadline_s > 10.0


# ---- evicted, left, lost


def test_evicted_left_and_late_are_told_apart() -> None:
    hall = opened(A, B, C, D)
    hall.ready(1, A, B, C, D)
    hall.say(B, m.Leave("asked\x1b[2J" + "x" * 1000))
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.alive(limits.SUSPECT_CLOSED_S, A, D)
    hall.alive(51.0, A, D)
    freeze = next(iter(hall.bodies(Freeze)), None)
    gone = {body.peer: body for body in hall.bodies(Gone)}
    assert (gone[B].evicted, gone[C].evicted) == (False, True)
    assert gone[C].reason == "silent"
    assert len(gone[B].reason) <= 200 and gone[B].reason.isprintable()
    events = {
        e.peer: e.event for e in hall.machine.status(hall.now_s).events if e.event != "joined"
    }
    assert events == {B.hex(): "left", C.hex(): "lost"}
    assert freeze is None or {freeze.excluded[B], freeze.excluded[C]} == {"lost"}


def test_a_short_disconnect_costs_nothing() -> None:
    hall = opened()
    hall.take(hall.machine.disconnected(C, 0.0))
    hall.tick(limits.SUSPECT_CLOSED_S - 0.1)
    head = hall.records[-1]
    hall.join(C, head_index=head.index, head_hash=head.hash, **held(0))
    hall.ack(C)
    hall.ready(1, A, B, C)
    assert {member.peer for member in hall.plan().members if member.weight} == {A, B, C}


def test_an_evicted_peer_that_never_hung_up_is_hung_up_on() -> None:
    hall = opened()
    hall.alive(limits.EVICT_S + 1, A, B)
    assert [body.peer for body in hall.bodies(Gone)] == [C]
    assert hall.closed == [C]
    assert hall.machine.is_member(C)


def test_a_first_state_of_another_model_than_the_run_files_is_refused() -> None:
    hall = Hall(layout=b"T" * 32)
    hall.join(A)
    with pytest.raises(RemoteFault, match="another model"):
        hall.machine.received(A, m.Offer(root_of(0), 24, LAYOUT), 0.0)
    assert hall.machine.view.first.genesis is None
    hall.say(A, m.Offer(root_of(0), 24, b"T" * 32))
    assert hall.machine.view.first.genesis is not None


def test_where_the_members_left_are_tied_all_who_made_the_state_are_asked() -> None:
    """Two of the op's four are left, of whom one differs; two newcomers have the other's state."""
    hall = Hall(start_peers=4, min_contributors=4, wait_ready_s=5.0)
    hall.join(A, B, C, D)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    for peer in (A, B, C, D):
        hall.say(peer, m.Applied(0, root_of(0)))
        hall.ack(peer)
    hall.ready(1, A, B, C, D)
    hall.exchange(A, B, C, D)
    for peer in (A, B):
        hall.say(peer, m.Leave())
    hall.say(C, m.Applied(1, root_of(1)))
    hall.say(D, m.Applied(1, b"x" * 32))
    hall.join(E, F)
    for peer in (C, D, E, F):
        hall.ack(peer)
    assert 1 not in [body.op for body in hall.bodies(Attest)]
    for peer in (E, F):
        hall.say(peer, m.Applied(1, root_of(1)))
    attests = hall.bodies(Attest)
    assert (attests[-1].op, attests[-1].state_root) == (1, root_of(1))


def test_a_run_in_which_nobody_has_trained_waits_for_start_peers_after_a_rewind() -> None:
    hall = Hall(start_peers=3, min_contributors=1, wait_ready_s=5.0)
    hall.join(A)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    hall.say(A, m.Applied(0, root_of(0)))
    hall.ack(A)
    hall.say(A, m.Leave())  # nobody else has the first state
    hall.join(B)
    hall.ack(B)
    hall.say(B, m.Stranded(0))
    assert [body.op for body in hall.bodies(Rewind)] == [-1]
    hall.say(B, m.Offer(root_of(0), 24, LAYOUT))
    hall.say(B, m.Applied(0, root_of(0)))
    hall.ack(B)
    hall.say(B, m.Ready(1, 8, 0, root_of(0)))
    hall.alive(hall.now_s + 30.0, B)
    assert not hall.bodies(Plan)


def test_a_first_state_that_is_gone_after_skipped_rounds_alone_is_given_anew() -> None:
    hall = opened(A, B, deadline_floor_s=10.0, deadline_cap_s=10.0)
    hall.ready(1, A, B)
    hall.alive(hall.now_s + 21.0, A, B)
    assert hall.bodies(Skip)
    for peer in (A, B):
        hall.say(peer, m.Leave())
    hall.join(C)
    hall.ack(C)
    hall.say(C, m.Stranded(0))
    assert [body.op for body in hall.bodies(Rewind)] == [-1]


def test_who_is_stranded_before_there_is_a_first_state_takes_nothing_back() -> None:
    """The word may cross the REWIND that it asked for, or be said by who means ill."""
    hall = Hall()
    hall.join(A)
    hall.ack(A)
    hall.say(A, m.Stranded(0))
    hall.alive(hall.now_s + 5.0, A)
    assert not hall.bodies(Rewind)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT))
    hall.say(A, m.Applied(0, root_of(0)))
    assert hall.machine.view.groups[0].last_op == 0


def test_another_process_of_a_peer_is_one_too_many_while_the_first_is_heard() -> None:
    hall = opened(A, B)
    machine = hall.machine
    assert machine.is_elsewhere(A, b"a copy", hall.now_s)
    assert not machine.is_elsewhere(A, BOOT, hall.now_s)  # its connection is made anew
    assert not machine.is_elsewhere(C, b"new", hall.now_s)
    assert not machine.is_elsewhere(A, b"a copy", hall.now_s + limits.TWIN_S)
    hall.take(machine.disconnected(A, hall.now_s))
    assert not machine.is_elsewhere(A, b"a copy", hall.now_s)


def test_who_says_that_it_is_paused_is_waited_for_by_nobody_until_it_is_ready_again() -> None:
    hall = opened(A, B, C)
    hall.run_op(1, A, B, C)
    hall.ready(2, A, B)
    assert hall.plan().op == 1, "C is waited for"
    hall.ack(C, phase=m.PAUSED)
    assert hall.plan().op == 2
    hall.exchange(A, B)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(2, root_of(2)))
    hall.ready(3, A, B)
    assert hall.plan().op == 3
    hall.exchange(A, B)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(3, root_of(3)))
    hall.ack(C, phase="training")
    hall.ready(4, A, B)
    assert hall.plan().op == 3, "C is waited for again"
    hall.ready(4, C)
    assert {member.peer for member in hall.plan().members if member.weight} == {A, B, C}

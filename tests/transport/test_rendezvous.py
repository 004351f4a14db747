"""The coordinator as one machine: what it logs, to whom it speaks, and whom it does not believe."""

import hashlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport import messages as m
from swarmtrain_transport.actions import Append, ClosePeer, SendToPeer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.fold import num_chunks, set_id
from swarmtrain_transport.ledger import (
    Attest,
    Body,
    Commit,
    Freeze,
    Gone,
    Join,
    Plan,
    Record,
    Run,
    Skip,
    body_of,
    record_from_bytes,
)
from swarmtrain_transport.ledger_copy import LedgerCopy
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.rendezvous import Rendezvous
from tests.transport.rig import (
    BOOT,
    LAYOUT,
    RUN_KEY,
    STRANGER,
    A,
    B,
    C,
    D,
    sign,
    terms_of,
    verify,
)

ROOT = b"R" * 32


def hello_of(peer: PeerId, **changes: Any) -> m.Hello:
    hello = m.Hello(BOOT, "otter", peer, "127.0.0.1", 4242, -1, b"", -1, b"", 1 << 30)
    return msgspec.structs.replace(hello, **changes)


def root_of(op: int) -> bytes:
    return hashlib.sha256(f"state {op}".encode()).digest()


class Hall:
    """One life of the coordinator and what it has said. Every action is checked as it comes."""

    def __init__(self, records: tuple[Record, ...] = (), term: int = 1, **terms: Any) -> None:
        self.now_s = 0.0
        self.records = list(records)
        self.sent: dict[PeerId, list[Any]] = {}
        self.closed: list[PeerId] = []
        self.machine = Rendezvous(
            terms_of(**terms), RUN_KEY, records, sign, verify, term, self.now_s
        )
        self.take(self.machine.start(0.0))

    def take(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Append):
                assert action.record.index == len(self.records)
                self.records.append(action.record)
            elif isinstance(action, ClosePeer):
                self.closed.append(action.peer)
            else:
                assert isinstance(action, SendToPeer)
                m.decode_from_coordinator(m.encode(action.message))
                if isinstance(action.message, m.Records):
                    newest = action.message.first_index + len(action.message.records)
                    assert newest <= len(self.records), "sent before it was durable"
                self.sent.setdefault(action.peer, []).append(action.message)
        assert self.machine.next_wakeup_s > self.now_s

    def join(self, *peers: PeerId, **hello: Any) -> None:
        for peer in peers:
            self.sent[peer] = []
            self.take(self.machine.connected(peer, hello_of(peer, **hello), self.now_s))

    def say(self, peer: PeerId, *messages: Any) -> None:
        for message in messages:
            self.take(self.machine.received(peer, message, self.now_s))

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        self.take(self.machine.tick(now_s))

    def alive(self, now_s: float, *peers: PeerId, step_s: float = 1.0) -> None:
        """Let the time pass in steps in which these peers prove that they run."""
        while self.now_s < now_s:
            self.tick(min(now_s, self.now_s + step_s))
            for peer in peers:
                self.ack(peer)

    def ack(self, peer: PeerId, **changes: Any) -> None:
        progress = m.Progress(len(self.records) - 1, 0, 0, "training")
        self.say(peer, msgspec.structs.replace(progress, **changes))

    def bodies(self, kind: type[Any] = Body) -> list[Any]:
        return [body for record in self.records if isinstance(body := body_of(record), kind)]

    def heard(self, peer: PeerId) -> list[Any]:
        """Ledger records that a peer was sent, in order."""
        return [
            record_from_bytes(raw)
            for message in self.sent[peer]
            if isinstance(message, m.Records)
            for raw in message.records
        ]

    # ---- a whole op

    def open_run(self, *peers: PeerId) -> None:
        self.join(*peers)
        self.say(peers[0], m.Offer(root_of(0), 24, LAYOUT))
        for peer in peers:
            self.say(peer, m.Applied(0, root_of(0)))
            self.ack(peer)

    def ready(self, op: int, *peers: PeerId) -> None:
        for peer in peers:
            before = m.Applied(op - 1, root_of(op - 1))
            self.say(peer, before, m.Ready(op, 8, op - 1, root_of(op - 1)))

    def plan(self) -> Plan:
        plan = self.bodies(Plan)[-1]
        assert isinstance(plan, Plan)
        return plan

    def exchange(self, *peers: PeerId) -> None:
        """All of them do their part of the op in progress."""
        operation = self.machine.operation
        assert operation is not None
        view, plan_id = operation.view, operation.view.plan_id
        for index, owner in enumerate(view.owners):
            self.say(owner, m.Got(plan_id, index, view.attempts[index], peers))
        for index, owner in enumerate(view.owners):
            name = set_id(peers)
            hashes = tuple(
                bytes([index, chunk]) * 16 for chunk in range(num_chunks(view.plan, index))
            )
            self.say(owner, m.SliceDone(plan_id, index, view.attempts[index], name, hashes))
            for peer in peers:
                flags = (True,) * len(hashes)
                self.say(peer, m.Have(plan_id, index, view.attempts[index], name, flags))

    def run_op(self, op: int, *peers: PeerId) -> None:
        self.ready(op, *peers)
        self.exchange(*peers)
        for peer in peers:
            self.say(peer, m.Applied(op, root_of(op)))


def opened(*peers: PeerId, **terms: Any) -> Hall:
    peers = peers or (A, B, C)
    hall = Hall(**{"start_peers": len(peers), **terms})
    hall.open_run(*peers)
    return hall


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
        {"applied_op": 3, "state_root": b"x" * 1_000_000},
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
    hall.join(C, applied_op=0, state_root=root_of(0))
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
    """Its READY stands, with the time at which it came: the others still have theirs to come."""
    hall = opened(wait_ready_s=60.0)
    hall.run_op(1, A, B, C)
    hall.alive(100.0, A, B, C)
    hall.ready(2, A)
    hall.take(hall.machine.disconnected(A, hall.now_s))
    head = hall.records[-1]
    hall.join(A, head_index=head.index, head_hash=head.hash, applied_op=1, state_root=root_of(1))
    hall.ack(A)
    assert hall.plan().op == 1
    hall.alive(159.0, A, B, C)
    assert hall.plan().op == 1
    hall.alive(161.0, A, B, C)
    assert hall.plan().op == 2


def test_the_first_deadline_is_the_cap_later_ones_adapt() -> None:
    hall = opened(deadline_floor_s=10.0, deadline_cap_s=100.0)
    hall.ready(1, A, B, C)
    assert hall.plan().deadline_s == 100.0
    hall.alive(8.0, A, B, C)
    hall.exchange(A, B, C)
    hall.ready(2, A, B, C)
    assert hall.plan().deadline_s == 8.0 * limits.DEADLINE_FACTOR
    hall.exchange(A, B, C)
    hall.ready(3, A, B, C)
    assert hall.plan().deadline_s == pytest.approx(0.7 * 8.0 * limits.DEADLINE_FACTOR)


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
    hall.join(C, head_index=head.index, head_hash=head.hash, applied_op=0, state_root=root_of(0))
    hall.ack(C)
    hall.ready(1, A, B, C)
    assert {member.peer for member in hall.plan().members if member.weight} == {A, B, C}


def test_an_evicted_peer_that_never_hung_up_is_hung_up_on() -> None:
    hall = opened()
    hall.alive(limits.EVICT_S + 1, A, B)
    assert [body.peer for body in hall.bodies(Gone)] == [C]
    assert hall.closed == [C]
    assert hall.machine.is_member(C)


# ---- roots


def test_a_root_is_attested_by_more_than_half_and_the_odd_one_out_is_told() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    hall.say(C, m.Applied(1, ROOT))
    hall.say(A, m.Applied(1, root_of(1)))
    assert len(hall.bodies(Attest)) == 1
    hall.say(B, m.Applied(1, root_of(1)))
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))
    assert [s.code for s in hall.sent[C] if isinstance(s, m.Refused)] == ["SWT-E561"]
    assert hall.closed == [C]


def test_whoever_comes_first_after_a_restart_does_not_attest_alone() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    again = Hall(tuple(hall.records), term=2)
    again.join(C, applied_op=1, state_root=ROOT)
    assert len(again.bodies(Attest)) == 1
    again.join(A, applied_op=1, state_root=root_of(1))
    again.join(B, applied_op=1, state_root=root_of(1))
    assert again.bodies(Attest)[-1] == Attest(1, root_of(1))


def test_a_root_is_attested_when_those_who_did_not_report_it_are_gone() -> None:
    hall = opened(A, B)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.say(A, m.Applied(1, root_of(1)))
    assert len(hall.bodies(Attest)) == 1
    hall.take(hall.machine.disconnected(B, hall.now_s))
    hall.alive(10.0, A)
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))


@pytest.mark.parametrize("root", [b"", b"short", b"x" * 4_000_000])
def test_a_root_that_is_no_hash_is_refused(root: bytes) -> None:
    hall = opened(A)
    hall.ready(1, A)
    hall.exchange(A)
    for message in (m.Applied(1, root), m.Ready(2, 8, 1, root)):
        with pytest.raises(RemoteFault):
            hall.say(A, message)
    assert len(hall.bodies(Attest)) == 1


# ---- what peers report for people


def test_only_the_named_peer_reports_the_loss_of_a_round_and_it_is_a_number() -> None:
    hall = opened()
    hall.run_op(1, A, B, C)
    named = hall.plan().evaluate_by
    other = next(peer for peer in (A, B, C) if peer != named)
    for loss in (math.nan, math.inf, -math.inf, 1e300):
        hall.say(named, m.Evaluated(1, loss))
    hall.say(other, m.Evaluated(1, 0.001))
    for op in (2, 99, -1, 1 << 62):
        hall.say(named, m.Evaluated(op, 0.001))
    assert hall.machine.status(0.0).losses == {}
    hall.say(named, m.Evaluated(1, 2.5))
    hall.say(named, m.Evaluated(1, 0.5))
    hall.say(A, m.Evaluated(0, 5.5))
    assert hall.machine.status(0.0).losses == {"1": 2.5, "0": 5.5}


def test_the_status_can_be_shown_whatever_peers_say() -> None:
    hall = opened()
    big = (1 << 64) - 1
    hall.ack(
        A, loss=math.nan, tokens_per_s=math.inf, phase="\x1b[31m" + "x" * 100_000,
        bytes_in=big, bytes_out=big, control_bytes_in=big, control_bytes_out=big, tokens=big,
    )  # fmt: skip
    status = hall.machine.status(0.0)
    shown = msgspec.json.decode(msgspec.json.encode(status), type=type(status))
    peer = next(peer for peer in shown.peers if peer.peer == A.hex())
    assert math.isfinite(peer.loss) and math.isfinite(peer.tokens_per_s)
    assert peer.state.isprintable() and len(peer.state) < 100


def test_the_named_peer_alone_reports_a_checkpoint_and_by_its_hash() -> None:
    hall = opened(checkpoint_rounds=1)
    hall.run_op(1, A, B, C)
    named = hall.plan().checkpoint_by
    other = next(peer for peer in (A, B, C) if peer != named)
    hall.say(other, m.CheckpointWritten(1, ROOT))
    hall.say(named, m.CheckpointWritten(9, ROOT))
    assert hall.machine.view.checkpoint is None
    with pytest.raises(RemoteFault):
        hall.say(named, m.CheckpointWritten(1, b"x" * 4_000_000))
    hall.say(named, m.CheckpointWritten(1, ROOT))
    hall.say(named, m.CheckpointWritten(1, bytes(32)))
    assert hall.machine.view.checkpoint is not None
    assert hall.machine.view.checkpoint.manifest_hash == ROOT


# ---- restart


@pytest.mark.parametrize("cut", range(0, 12))
def test_a_restart_at_any_record_repeats_no_decision_and_ends_the_op(cut: int) -> None:
    """The old life's log up to some record; peers come back with all that they know."""
    hall = opened()
    hall.run_op(1, A, B, C)
    kept = tuple(hall.records[: max(1, len(hall.records) - cut)])
    again = Hall(kept, term=2, start_peers=3)
    has_op = any(isinstance(body_of(record), Plan) for record in kept)
    for peer in (A, B, C):
        again.join(peer, head_index=kept[-1].index, head_hash=kept[-1].hash)
    if again.machine.view.genesis is None:
        again.say(A, m.Offer(root_of(0), 24, LAYOUT))
    for peer in (A, B, C):
        again.ack(peer)
    if not has_op:
        again.ready(1, A, B, C)
    if again.machine.operation is not None:
        again.exchange(A, B, C)
    for peer in (A, B, C):
        again.say(peer, m.Applied(1, root_of(1)))
    assert [len(again.bodies(kind)) for kind in (Plan, Freeze, Commit)] == [1, 1, 1]
    assert again.bodies(Attest)[-1] == Attest(1, root_of(1))
    assert [record.term for record in again.records[len(kept) :]] == [2] * (
        len(again.records) - len(kept)
    )


# ---- hostile peers


ABSURD = st.sampled_from([-(1 << 63), -1, 0, 1, 2, 3, 7, 1 << 31, 1 << 62, (1 << 64) - 1])
BYTES = st.sampled_from([b"", A, B, C, STRANGER, ROOT, root_of(0), root_of(1), b"x" * 5000])
TEXT = st.sampled_from(["", "training", "\x1b[2J", "x" * 5000])
FLOAT = st.floats(width=64)
FLAGS = st.lists(st.booleans(), max_size=4).map(tuple)
HASHES = st.lists(BYTES, max_size=3).map(tuple)


def hostile(plan_id: int) -> st.SearchStrategy[Any]:
    plan = st.sampled_from([plan_id, plan_id, plan_id, 0])
    return st.one_of(
        st.builds(m.Offer, BYTES, ABSURD, BYTES),
        st.builds(m.Ready, ABSURD, ABSURD, ABSURD, BYTES),
        st.builds(m.Got, plan, ABSURD, ABSURD, HASHES, st.dictionaries(BYTES, TEXT, max_size=3)),
        st.builds(m.SliceDone, plan, ABSURD, ABSURD, ABSURD, HASHES),
        st.builds(m.Have, plan, ABSURD, ABSURD, ABSURD, FLAGS),
        st.builds(m.Withdraw, plan, TEXT),
        st.builds(m.Applied, ABSURD, BYTES),
        st.builds(m.Progress, ABSURD, ABSURD, ABSURD, TEXT, ABSURD, FLOAT, FLOAT, ABSURD),
        st.builds(m.CheckpointWritten, ABSURD, BYTES),
        st.builds(m.Evaluated, ABSURD, FLOAT),
        st.builds(m.LeaseRequest, ABSURD),
        st.builds(m.Leave, TEXT),
    )


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_nothing_that_a_member_says_breaks_the_coordinator_or_its_ledger(data: Any) -> None:
    """B is hostile. A refusal is fine; any other error would stop the run for everybody."""
    hall = opened(A, B, C)
    hall.ready(1, A, B, C)
    operation = hall.machine.operation
    assert operation is not None
    for message in data.draw(st.lists(hostile(operation.view.plan_id), max_size=25)):
        try:
            hall.say(B, message)
        except RemoteFault:
            hall.take(hall.machine.disconnected(B, hall.now_s))
            hall.take(hall.machine.connected(B, hello_of(B), hall.now_s))
    msgspec.json.encode(hall.machine.status(0.0))
    hall.alive(250.0, A, C, step_s=5.0)
    assert operation.view.outcome is not None
    copy = LedgerCopy(verify, ())
    for record in hall.records:
        copy.take(record.to_bytes())


@settings(max_examples=20, deadline=None)
@given(boot=BYTES, name=TEXT, key=BYTES, host=TEXT, port=ABSURD, op=ABSURD, root=BYTES,
       up=ABSURD, down=ABSURD)  # fmt: skip
def test_nothing_that_a_hello_says_breaks_the_coordinator(
    boot: bytes, name: str, key: bytes, host: str, port: int, op: int, root: bytes,
    up: int, down: int,
) -> None:  # fmt: skip
    hall = opened(A, C)
    try:
        hall.join(
            B, boot=boot, name=name, curve_key=key, host=host, port=port, applied_op=op,
            state_root=root, up_bytes_per_s=up, down_bytes_per_s=down,
        )  # fmt: skip
    except RemoteFault as fault:
        assert fault.reason == "hello"
    else:
        hall.ack(B)
        hall.say(B, m.Ready(1, 8, 0, root_of(0)))
    hall.ready(1, A, C)
    hall.alive(61.0, A, C, step_s=5.0)
    assert hall.plan().op == 1

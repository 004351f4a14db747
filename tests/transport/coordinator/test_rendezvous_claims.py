"""Claims of peers that the coordinator believes, after a restart and from hostile ones too."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    Attest,
    Commit,
    Freeze,
    Join,
    Plan,
    bodies_of,
    record_from_bytes,
)
from tests.transport.hall import ROOT, Hall, held, hello_of, opened, root_of
from tests.transport.rig import (
    LAYOUT,
    STRANGER,
    A,
    B,
    C,
    verify,
)

# ---- roots


def test_a_root_is_attested_by_more_than_half_and_the_odd_one_out_is_not_planned() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    hall.say(C, m.Applied(1, ROOT))
    hall.say(A, m.Applied(1, root_of(1)))
    assert len(hall.bodies(Attest)) == 1
    hall.say(B, m.Applied(1, root_of(1)))
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))
    hall.say(A, m.Ready(2, 8, 1, root_of(1)))
    hall.say(B, m.Ready(2, 8, 1, root_of(1)))
    assert {member.peer for member in hall.plan().members} == {A, B}
    assert not hall.closed


def test_two_peers_that_differ_stop_the_run_until_one_of_them_is_right() -> None:
    hall = opened(A, B, start_peers=2)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    hall.say(A, m.Applied(1, root_of(1)), m.Ready(2, 8, 1, root_of(1)))
    hall.say(B, m.Applied(1, ROOT), m.Ready(2, 8, 1, ROOT))
    hall.alive(100.0, A, B)
    assert hall.plan().op == 1
    status = hall.machine.status(hall.now_s)
    assert status.phase == "disputed" and "2 different states" in status.waiting_for
    hall.say(B, m.Leave())
    assert hall.bodies(Attest)[-1] == Attest(1, root_of(1))
    assert hall.plan().op == 2


def test_whoever_comes_first_after_a_restart_does_not_attest_alone() -> None:
    hall = opened()
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    again = Hall(tuple(hall.records), term=2)
    again.join(C, **held(1, ROOT))
    assert len(again.bodies(Attest)) == 1
    again.join(A, **held(1))
    again.join(B, **held(1))
    for peer in (A, B):  # HELLO tells of states on disk too; who has its own in place says so
        again.say(peer, m.Applied(1, root_of(1)))
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
    assert hall.machine.view.first.checkpoint is None
    with pytest.raises(RemoteFault):
        hall.say(named, m.CheckpointWritten(1, b"x" * 4_000_000))
    hall.say(named, m.CheckpointWritten(1, ROOT))
    hall.say(named, m.CheckpointWritten(1, bytes(32)))
    assert hall.machine.view.first.checkpoint is not None
    assert hall.machine.view.first.checkpoint.manifest_hash == ROOT


# ---- restart


@pytest.mark.parametrize("cut", range(0, 12))
def test_a_restart_at_any_record_repeats_no_decision_and_ends_the_op(cut: int) -> None:
    """The old life's log up to some record; peers come back with all that they know."""
    hall = opened()
    hall.run_op(1, A, B, C)
    kept = tuple(hall.records[: max(1, len(hall.records) - cut)])
    again = Hall(kept, term=2, start_peers=3)
    has_op = any(isinstance(body, Plan) for body in bodies_of(kept))
    for peer in (A, B, C):
        again.join(peer, head_index=kept[-1].index, head_hash=kept[-1].hash)
    if not again.machine.lines:
        again.tick(limits.SUSPECT_S)  # an empty roster: somebody might bring newer records
    if again.machine.view.first.genesis is None:
        again.say(A, m.Offer(root_of(0), 24, LAYOUT))
    for peer in (A, B, C):
        again.ack(peer)
    if not has_op:
        again.ready(1, A, B, C)
    if again.machine.first.operation is not None:
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
ROOTS = st.dictionaries(BYTES, BYTES, max_size=3)


def hostile(plan_id: int) -> st.SearchStrategy[Any]:
    plan = st.sampled_from([plan_id, plan_id, plan_id, 0])
    return st.one_of(
        st.builds(m.Offer, BYTES, ABSURD, BYTES),
        st.builds(m.Ready, ABSURD, ABSURD, ABSURD, BYTES),
        st.builds(m.Got, plan, ABSURD, ABSURD, ROOTS, st.dictionaries(BYTES, TEXT, max_size=3)),
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
    operation = hall.machine.first.operation
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


@pytest.mark.parametrize(
    "host",
    ["slow-dns.example", "localhost", "", "0.0.0.0", "::", "239.1.2.3", "ff02::1", "fe80::1%eth0",
     "::ffff:192.0.2.1", "255.255.255.255", "127.1", "0x7f000001", "192.0.2.1 ", "[::1]"],
)  # fmt: skip
def test_a_hello_without_an_ip_address_is_refused(host: str) -> None:
    """A name has to be looked up by everybody who is told it, and libzmq stops for that."""
    hall = opened(A)
    with pytest.raises(RemoteFault, match="its host cannot be one"):
        hall.join(B, host=host)
    assert B not in hall.machine.view.roster


@pytest.mark.parametrize("host", ["192.0.2.1", "10.0.0.1", "127.0.0.1", "::1", "2001:db8::7"])
def test_an_ip_address_is_told_to_whoever_can_dial_it_and_stands_in_no_record(host: str) -> None:
    hall = opened(A)
    hall.join(B, host=host)
    told = [one for one in hall.sent[A] if isinstance(one, m.Listens) and B in one.at]
    assert all(one.at[B][0] == host for one in told)
    assert bool(told) is (host != "2001:db8::7"), "A is not known to have IPv6"
    assert not any(host.encode() in record.to_bytes() for record in hall.records)
    first = next(i for i, one in enumerate(hall.sent[A]) if one in told or lets_in(one, B))
    assert hall.sent[A][first] in told or not told, "what is dialled at once is told before"


def lets_in(message: Any, peer: PeerId) -> bool:
    """Return True if a message brings a peer's JOIN."""
    bodies = (
        bodies_of(map(record_from_bytes, message.records)) if isinstance(message, m.Records) else ()
    )
    return any(isinstance(body, Join) and body.peer == peer for body in bodies)


@settings(max_examples=20, deadline=None)
@given(boot=BYTES, name=TEXT, key=BYTES, host=TEXT | st.ip_addresses().map(str), port=ABSURD,
       op=ABSURD, root=BYTES, up=ABSURD, down=ABSURD)  # fmt: skip
def test_nothing_that_a_hello_says_breaks_the_coordinator(
    boot: bytes, name: str, key: bytes, host: str, port: int, op: int, root: bytes,
    up: int, down: int,
) -> None:  # fmt: skip
    hall = opened(A, C)
    try:
        hall.join(
            B, boot=boot, name=name, curve_key=key, host=host, port=port,
            states=(m.Applied(op, root),), up_bytes_per_s=up, down_bytes_per_s=down,
        )  # fmt: skip
    except RemoteFault as fault:
        assert fault.reason == "hello"
    else:
        hall.ack(B)
        hall.say(B, m.Ready(1, 8, 0, root_of(0)))
    hall.ready(1, A, C)
    hall.alive(61.0, A, C, step_s=5.0)
    assert hall.plan().op == 1


def test_a_peer_that_comes_with_one_curve_key_after_another_is_refused() -> None:
    hall = opened()
    for number in range(limits.CURVE_KEYS_MAX - 1):
        key = bytes([100 + number]) * 32
        hall.join(A, boot=key, curve_key=key)
    with pytest.raises(RemoteFault, match="other curve_keys"):
        hall.machine.connected(A, hello_of(A, boot=b"one more", curve_key=b"k" * 32), hall.now_s)
    hall.join(A, boot=b"again", curve_key=bytes([100]) * 32)
    assert len(hall.machine.view.curve_holders) == 3 - 1 + limits.CURVE_KEYS_MAX


@pytest.mark.parametrize(
    "wrong",
    [{"name": "x" * 100_000}, {"states": tuple(m.Applied(0, ROOT, group=n) for n in range(65))}],
    ids=["name", "states"],
)
def test_a_hello_of_any_length_is_not_kept(wrong: dict[str, Any]) -> None:
    hall = opened()
    with pytest.raises(RemoteFault, match="hello"):
        hall.machine.connected(STRANGER, hello_of(STRANGER, **wrong), hall.now_s)

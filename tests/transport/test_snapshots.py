"""SNAPSHOT: peers check it against their own fold, and a newcomer begins with it."""

from typing import Any

import msgspec
import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.snapshots import image_of
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    BodyReader,
    Record,
    Snapshot,
    bodies_of,
    make_record,
    outline_of,
    tag_of,
)
from tests.transport.hall import Hall, opened
from tests.transport.rig import RUN_KEY, A, B, C, D, run_body, sign, verify
from tests.transport.swarm import Member
from tests.transport.test_groups import grouped_chain


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 3000)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1500)


def long_run(ops: int = 12) -> Hall:
    hall = opened(A, B, C)
    for op in range(1, ops + 1):
        hall.run_op(op, A, B, C)
        for peer in (A, B, C):
            hall.ack(peer)
    return hall


class Newcomer:
    """D, its machine, and what its disk holds."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.machine = Member(D, b"boot", 0.0).machine
        self.disk: list[Record] = []
        self.halts: list[do.Halt] = []
        self.allowed: set[bytes] = set()
        hall.join(D)

    def read(self, count: int = 1, change: Any = None) -> None:
        """Take in so many messages and say what follows."""
        told, self.hall.sent[D] = self.hall.sent[D][:count], self.hall.sent[D][count:]
        for message in told:
            actions = self.machine.control(change(message) if change else message, 0.0)
            for action in actions:
                match action:
                    case do.RecordAccepted():
                        assert action.record.index == len(self.disk), "its disk has no gap"
                        self.disk.append(action.record)
                    case do.SendControl():
                        self.hall.say(D, action.message)
                    case do.Halt():
                        self.halts.append(action)
                    case do.AllowPeer():
                        self.allowed.add(action.address.peer_id)

    def read_all(self) -> None:
        while self.hall.sent[D]:
            self.read()


def test_snapshots_come_every_so_many_bytes_and_everybody_agrees() -> None:
    hall = long_run()
    assert 3 <= len(hall.bodies(Snapshot)) <= 12
    copy = LedgerCopy(verify, ())
    for record in hall.records:
        copy.take(record.to_bytes())
    assert copy.view == hall.machine.view
    again = Hall(tuple(hall.records), term=2)
    assert again.machine.view == hall.machine.view


def test_a_newcomer_takes_part_before_it_has_the_records_before_the_snapshot() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    total = sum(len(record.to_bytes()) for record in hall.records)
    tail = [message for message in hall.sent[D] if isinstance(message, m.Records)]
    assert sum(len(raw) for message in tail for raw in message.records) < total / 3
    while newcomer.machine.ledger.head_index < hall.machine.writer.head:
        newcomer.read()
    assert newcomer.machine.view == hall.machine.view
    assert newcomer.machine._is_informed() and newcomer.allowed == {A, B, C}
    assert newcomer.disk == []
    newcomer.read_all()
    assert newcomer.disk == hall.records and newcomer.machine.ledger.base == -1
    hall.run_op(13, A, B, C)
    newcomer.read_all()
    assert newcomer.disk == hall.records and newcomer.machine.view == hall.machine.view


def test_records_that_come_meanwhile_follow_the_older_ones_on_the_disk() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    for op in range(13, 18):
        newcomer.read(2)
        hall.run_op(op, A, B, C)
        hall.ack(A), hall.ack(B), hall.ack(C)
    newcomer.read_all()
    assert newcomer.disk == hall.records and newcomer.machine.view == hall.machine.view
    copy = LedgerCopy(verify, newcomer.disk)
    assert copy.view == hall.machine.view


def test_who_reconnects_halfway_goes_on() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    for _ in range(60):
        newcomer.read(3)
        hello = newcomer.machine.hello()
        hall.join(D, boot=hello.boot, head_index=hello.head_index, head_hash=hello.head_hash)
        if newcomer.machine._copy.older is None and len(newcomer.machine.ledger):
            break
    newcomer.read_all()
    assert newcomer.disk == hall.records and newcomer.machine.view == hall.machine.view


def test_who_was_here_is_sent_records_alone() -> None:
    hall = long_run()
    head = hall.records[2]
    hall.join(B, head_index=2, head_hash=head.hash)
    assert not any(isinstance(message, m.Image) for message in hall.sent[B])
    assert hall.heard(B)[0].index == 3


def test_a_peer_refuses_a_snapshot_of_another_fold() -> None:
    hall = long_run(1)
    copy = LedgerCopy(verify, hall.records)
    false = make_record(len(hall.records), hall.records[-1].hash, 1, Snapshot(bytes(32), 9), sign)
    with pytest.raises(RemoteFault) as caught:
        copy.take(false.to_bytes())
    assert caught.value.reason == "snapshot" and len(copy.ledger) == len(hall.records)
    member = Member(A, b"another life", 0.0).machine
    for record in hall.records:
        member.control(m.Records(record.index, (record.to_bytes(),)), 0.0)
    (halt,) = member.control(m.Records(false.index, (false.to_bytes(),)), 0.0)
    assert isinstance(halt, do.Halt) and halt.code == "SWT-E562"


def flipped(message: Any) -> Any:
    if not isinstance(message, m.Image):
        return message
    data = bytearray(message.data)
    data[len(data) // 2] ^= 1
    return msgspec.structs.replace(message, data=bytes(data))


def test_an_altered_image_ends_the_newcomer() -> None:
    newcomer = Newcomer(long_run())
    while newcomer.hall.sent[D] and not newcomer.halts:
        newcomer.read(1, flipped)
    assert [halt.code for halt in newcomer.halts] == ["SWT-E562"]


def test_older_records_that_do_not_lead_to_the_snapshot_end_the_newcomer() -> None:
    """A coordinator that lies about the past to newcomers is found out in the background."""
    hall, other = long_run(), long_run(13)
    newcomer = Newcomer(hall)
    while newcomer.machine.ledger.head_index < hall.machine.writer.head:
        newcomer.read()
    false = [make_record(0, bytes(32), 1, run_body(config_hash=b"x" * 32), sign)]
    for body in bodies_of(other.records)[1 : newcomer.machine.ledger.base]:
        if not isinstance(body, Snapshot):
            false.append(make_record(len(false), false[-1].hash, 1, body, sign))
    with pytest.raises(RemoteFault):
        for record in false:
            newcomer.machine.control(m.Records(record.index, (record.to_bytes(),)), 0.0)


def test_what_is_not_here_yet_is_not_told_to_a_restored_coordinator() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    while newcomer.machine.ledger.head_index < hall.machine.writer.head:
        newcomer.read()
    (said,) = newcomer.machine.control(m.Tell(3), 0.0)
    base = newcomer.machine.ledger.base
    assert isinstance(said, do.SendControl) and said.message == m.History(base + 1, ())
    with pytest.raises(LocalFault):
        next(newcomer.machine.ledger.since(3))
    (said,) = newcomer.machine.control(m.Tell(base + 1), 0.0)
    assert isinstance(said, do.SendControl) and isinstance(said.message, m.History)
    assert said.message.records


def test_a_restored_coordinator_waits_for_who_can_tell_where_another_began_later() -> None:
    hall = long_run()
    newest = hall.records[-1]
    hello = {"head_index": newest.index, "head_hash": newest.hash}
    again = Hall(tuple(hall.records[:8]), term=1)
    again.join(D, **hello)
    again.say(D, m.History(newest.index, ()))
    assert not any(isinstance(message, m.Refused) for message in again.sent[D])
    again.join(A, **hello)
    while len(again.records) < len(hall.records):
        index = [told for told in again.sent[A] if isinstance(told, m.Tell)][-1].first_index
        again.say(A, m.History(index, (hall.records[index].to_bytes(),)))
    again.alive(2 * limits.SUSPECT_S + 1.0, A)
    assert any(isinstance(message, m.Welcome) for message in again.sent[D])


def test_a_ledger_begins_with_run_or_a_signed_snapshot() -> None:
    hall = long_run()
    run, first = hall.records[0], hall.records[1]
    snapshot = next(r for r in hall.records if outline_of(r).kind == tag_of(Snapshot))
    stranger = msgspec.structs.replace(snapshot, signature=b"s" * 32)
    for pair in ((run, first), (first, snapshot), (run, stranger), (snapshot, run)):
        ledger = Ledger(verify)
        with pytest.raises(RemoteFault):
            ledger.begin_at(*pair, lambda *_: BodyReader())
        assert len(ledger) == 0
    ledger = Ledger(verify)
    ledger.begin_at(run, snapshot, lambda *_: BodyReader())
    assert (len(ledger), ledger.head_hash) == (snapshot.index + 1, snapshot.hash)


def test_a_copy_that_refuses_an_image_is_as_empty_as_before() -> None:
    hall = long_run()
    newest, image = hall.machine.writer._snapshots.record, hall.machine.writer._snapshots.image
    assert newest is not None
    raw = hall.records[0].to_bytes(), newest.to_bytes()
    copy = LedgerCopy(verify, ())
    with pytest.raises(RemoteFault, match="SNAPSHOT names"):
        copy.begin_with(raw, image + b"x")
    assert len(copy.ledger) == 0 and copy.older is None and not copy.view.roster
    copy.begin_with(raw, image)
    assert copy.ledger.head_index == newest.index


def test_older_records_are_sent_once_on_a_connection() -> None:
    hall = long_run()
    hall.join(D)
    hall.sent[D].clear()
    hall.say(D, *[m.Older(0)] * 20)
    assert len(hall.sent[D]) == 1
    (sent,) = hall.sent[D]
    hall.say(D, m.Older(len(sent.records)))
    assert [message.first_index for message in hall.sent[D]] == [0, len(sent.records)]


def test_older_records_leave_the_memory_once_they_are_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 2000)
    hall = long_run()
    records = hall.records

    class Disk:
        kept: list[Record]

        def read(self, first: int, stop: int) -> list[Record]:
            return self.kept[first:stop]

    newcomer = Newcomer(hall)
    disk = Disk()
    disk.kept = newcomer.disk
    snapshot = next(
        record
        for record, body in zip(records[::-1], [*bodies_of(records)][::-1], strict=True)
        if isinstance(body, Snapshot)
    )
    copy = LedgerCopy(verify, (), disk)
    copy.begin_with(
        (records[0].to_bytes(), snapshot.to_bytes()), hall.machine.writer._snapshots.image
    )
    for record in records[: snapshot.index]:
        copy.trim()
        assert copy.take_older(record.to_bytes()) is not None
        disk.kept.append(record)
        assert copy.older is not None
        assert copy.older.ledger._recent_bytes <= 2000 + len(record.body)


def test_an_empty_answer_is_not_asked_for_again() -> None:
    newcomer = Newcomer(long_run())
    while newcomer.machine.ledger.base < 0:
        newcomer.read()
    actions = newcomer.machine.control(m.Records(0, ()), 0.0)
    assert not [one for one in actions if isinstance(getattr(one, "message", None), m.Older)]


def test_a_newcomer_is_in_the_groups_into_which_it_was_moved_before_the_snapshot() -> None:
    chain = grouped_chain()
    image = image_of(chain.view, chain.ledger.reader)
    body = Snapshot(content_hash(image), len(image))
    head = chain.ledger.head_index + 1, chain.ledger.head_hash
    snapshot = make_record(*head, 1, body, sign, chain.ledger.reader)
    moved = next(peer for peer in chain.view.roster if chain.view.groups_of(peer) != (0,))
    machine = Member(moved, b"boot", 0.0).machine
    machine.control(m.Welcome(1, "run", RUN_KEY, b"config", snapshot.index), 0.0)
    first = chain.records[0].to_bytes(), snapshot.to_bytes()
    machine.control(m.Image(len(image), 0, image, first), 0.0)
    assert tuple(sorted(machine.groups)) == machine.view.groups_of(moved)

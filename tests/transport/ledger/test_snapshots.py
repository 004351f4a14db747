"""SNAPSHOT: peers check it against their own fold, and a newcomer begins with it."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.snapshots import image_of
from swarmtrain_transport.peer.ledger_copy import Beginning, LedgerCopy, beginning_of, ranges_of
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    BodyReader,
    Gone,
    Record,
    Snapshot,
    make_record,
    outline_of,
    tag_of,
)
from tests.transport.hall import Hall, join_of, opened
from tests.transport.ledger.test_groups import grouped_chain
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import (
    RUN_KEY,
    A,
    B,
    C,
    D,
    sign,
    sign_as,
    verify,
)
from tests.transport.swarm import Member


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 3000)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1500)
    monkeypatch.setattr(limits, "HISTORY_HOLDERS", 9)


def long_run(ops: int = 12) -> Hall:
    hall = opened(A, B, C)
    for op in range(1, ops + 1):
        hall.run_op(op, A, B, C)
        for peer in (A, B, C):
            hall.ack(peer)
    return hall


class Disk:
    """A peer's copy of the ledger as it survives a process, with or without a gap."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = list(records)
        self.begins: tuple[bytes, bytes, bytes] | None = None

    def read(self, first: int, stop: int) -> list[Record]:
        return [record for record in self.records if first <= record.index < stop]

    def keep(self, record: Record) -> None:
        assert record not in self.records
        self.records = sorted([*self.records, record], key=lambda one: one.index)

    def begin(self, action: do.LedgerBegins) -> None:
        self.begins = action.run.to_bytes(), action.snapshot.to_bytes(), action.image
        if action.frees:
            after = [one for one in self.records if one.index >= action.snapshot.index]
            self.records = [action.run, *after]
        else:
            self.records += [action.snapshot] if self.records else [action.run, action.snapshot]

    @property
    def beginning(self) -> Beginning | None:
        ranges = ranges_of(self.records)
        return beginning_of(self.begins, ranges, self.read) if self.begins else None


class Newcomer:
    """A peer, its machine, and what its disk holds."""

    def __init__(
        self, hall: Hall, disk: Disk | None = None, peer: bytes = D, boot: bytes = b"boot"
    ) -> None:
        self.hall, self.peer = hall, peer
        self.disk = disk or Disk()
        begins = self.disk.beginning
        first = 0 if begins is None else begins.snapshot.index + 1
        card = Card(peer, boot, "name", peer, "127.0.0.1", 4000 + peer[0])
        self.machine = Participant(
            card, PlainArithmetic(), sign_as(peer), verify, list, self.disk.read(first, 1 << 30),
            0.0, archive=self.disk, begins=begins,
        )  # fmt: skip
        self.halts: list[do.Halt] = []
        self.allowed: set[bytes] = set()
        self.join()

    def join(self) -> None:
        hello = self.machine.hello()
        changes = {name: getattr(hello, name) for name in ("boot", "head_index", "head_hash")}
        self.hall.join(self.peer, takes_image=hello.takes_image, **changes)

    def read(self, count: int = 1, change: Any = None) -> None:
        """Take in so many messages and say what follows."""
        sent = self.hall.sent
        told, sent[self.peer] = sent[self.peer][:count], sent[self.peer][count:]
        for message in told:
            self.act(self.machine.control(change(message) if change else message, 0.0))

    def act(self, actions: Any) -> None:
        for action in actions:
            match action:
                case do.RecordAccepted():
                    self.disk.keep(action.record)
                case do.LedgerBegins():
                    self.disk.begin(action)
                case do.SendControl():
                    self.hall.say(self.peer, action.message)
                case do.Halt():
                    self.halts.append(action)
                case do.AllowPeer():
                    self.allowed.add(action.address.peer_id)

    def read_all(self) -> None:
        while self.hall.sent[self.peer]:
            self.read()

    def progress(self) -> None:
        """Say once more what is here, and heed the answers."""
        self.hall.say(self.peer, self.machine._progress())
        self.read_all()

    def look_back(self) -> None:
        while self.machine._copy.looks_back and not self.halts:
            self.act(self.machine.tick(0.0))


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
    assert newcomer.machine.is_informed and newcomer.allowed == {A, B, C}
    first = newcomer.machine.ledger.first
    assert newcomer.disk.records == [hall.records[0], *hall.records[first:]]
    newcomer.read_all()
    assert newcomer.disk.records == hall.records and newcomer.machine.ledger.first == 0
    newcomer.look_back()
    assert not newcomer.halts and newcomer.machine._copy._past is None
    hall.run_op(13, A, B, C)
    newcomer.read_all()
    assert newcomer.disk.records == hall.records and newcomer.machine.view == hall.machine.view


def test_records_that_come_meanwhile_are_kept_beside_the_older_ones() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    for op in range(13, 18):
        newcomer.read(2)
        hall.run_op(op, A, B, C)
        hall.ack(A), hall.ack(B), hall.ack(C)
    newcomer.read_all()
    assert newcomer.disk.records == hall.records and newcomer.machine.view == hall.machine.view
    copy = LedgerCopy(verify, newcomer.disk.records)
    assert copy.view == hall.machine.view


def test_who_reconnects_halfway_goes_on() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    for _ in range(60):
        newcomer.read(3)
        newcomer.join()
        newcomer.machine.control_down(0.0)
        if newcomer.machine.ledger.first == 0 and len(newcomer.machine.ledger):
            break
    newcomer.read_all()
    assert newcomer.disk.records == hall.records and newcomer.machine.view == hall.machine.view


@pytest.mark.parametrize("messages", range(4, 24, 3))
def test_who_is_killed_halfway_goes_on_from_its_disk(messages: int) -> None:
    hall = long_run()
    first = Newcomer(hall)
    first.read(messages)
    again = Newcomer(hall, first.disk, boot=b"again")
    again.read_all()
    assert again.disk.records == hall.records and again.machine.view == hall.machine.view
    again.look_back()
    assert not again.halts


@pytest.mark.parametrize("known", [2, 20])
def test_a_process_that_was_away_for_long_takes_the_snapshot_and_fills_the_gap(known: int) -> None:
    hall = long_run(98)
    late = Newcomer(hall, Disk(hall.records[:known]))
    assert any(isinstance(message, m.Image) for message in hall.sent[D])
    while late.machine.ledger.head_index < hall.machine.writer.head:
        late.read()
    first = late.machine.ledger.first
    assert late.disk.records == [*hall.records[:known], *hall.records[first:]]
    assert late.machine.view == hall.machine.view
    late.read_all()
    assert late.disk.records == hall.records
    late.look_back()
    assert not late.halts


def test_a_process_that_was_away_for_a_moment_takes_records() -> None:
    hall = long_run(98)
    Newcomer(hall, Disk(hall.records[:-30]))
    assert not any(isinstance(message, m.Image) for message in hall.sent[D])


def test_a_gap_that_leads_to_another_past_ends_the_peer() -> None:
    hall = long_run(98)
    late = Newcomer(hall, Disk(hall.records[:9]))
    while late.machine.ledger.head_index < hall.machine.writer.head:
        late.read()
    ledger = late.machine.ledger
    ledger._known = ledger._known[0], content_hash(b"another past")
    late.read_all()
    assert [halt.code for halt in late.halts] == ["SWT-E562"]


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


def test_older_records_of_another_run_are_refused() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    while not newcomer.machine.ledger.first:
        newcomer.read()
    newcomer.machine.control(m.Keep(all=True), 0.0)
    first = newcomer.machine.ledger.first
    false = make_record(first - 1, bytes(32), 1, Gone(A, True, "banned"), sign)
    with pytest.raises(RemoteFault):
        newcomer.machine.control(m.Records(first - 1, (false.to_bytes(),)), 0.0)
    assert newcomer.machine.ledger.first == first


def test_a_coordinator_that_lies_about_the_past_to_newcomers_is_found_out() -> None:
    """The false SNAPSHOT is signed, and no fold of the records that lead to it."""
    chain = grouped_chain()
    image = image_of(chain.view, chain.ledger.reader)
    chain.add(Gone(D, True, "banned"))
    false = Snapshot(content_hash(image), len(image))
    head = chain.ledger.head_index + 1, chain.ledger.head_hash
    snapshot = make_record(*head, 1, false, sign, chain.ledger.reader)
    copy = LedgerCopy(verify, ())
    copy.begin_with((chain.records[0].to_bytes(), snapshot.to_bytes()), image)
    copy.prepend([record.to_bytes() for record in chain.records])
    assert copy.looks_back
    with pytest.raises(RemoteFault) as caught:
        while copy.looks_back:
            copy.look_back()
    assert caught.value.reason == "snapshot", caught.value


def test_what_is_not_here_yet_is_not_told_to_a_restored_coordinator() -> None:
    hall = long_run()
    newcomer = Newcomer(hall)
    while newcomer.machine.ledger.head_index < hall.machine.writer.head:
        newcomer.read()
    (said,) = newcomer.machine.control(m.Tell(3), 0.0)
    first = newcomer.machine.ledger.first
    assert isinstance(said, do.SendControl) and said.message == m.History(first, ())
    with pytest.raises(LocalFault):
        next(newcomer.machine.ledger.since(3))
    (said,) = newcomer.machine.control(m.Tell(first), 0.0)
    assert isinstance(said, do.SendControl) and isinstance(said.message, m.History)
    assert said.message.records


def answer(hall: Hall, peer: bytes, newest: Record) -> None:
    """Tell the one record that a peer has, once it is asked for no more than that."""
    asked = hall.sent[peer][-1]
    if isinstance(asked, m.Tell) and asked.first_index == newest.index:
        hall.sent[peer].append(None)  # answered
        hall.say(peer, m.History(newest.index, (newest.to_bytes(),)))


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
        answer(again, D, newest)
    again.alive(2 * limits.SUSPECT_S + 1.0, A)
    assert any(isinstance(message, m.Welcome) for message in again.sent[D])


def test_a_coordinator_that_lost_its_ledger_waits_for_who_holds_all_of_it() -> None:
    hall = long_run()
    newest = hall.records[-1]
    hello = {"head_index": newest.index, "head_hash": newest.hash}
    again = Hall((), term=1, is_lost=True)
    again.join(B, **hello, joined=join_of(hall, B))
    again.say(B, m.History(newest.index, ()))
    assert not any(isinstance(message, m.Refused) for message in again.sent[B])
    again.join(A, **hello, joined=join_of(hall, A))
    while len(again.records) < len(hall.records):
        index = [told for told in again.sent[A] if isinstance(told, m.Tell)][-1].first_index
        again.say(A, m.History(index, (hall.records[index].to_bytes(),)))
        answer(again, B, newest)
    again.alive(2 * limits.LEDGER_WAIT_S, A)
    assert any(isinstance(message, m.Welcome) for message in again.sent[B])


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
    assert len(copy.ledger) == 0 and copy.ledger.first == 0 and not copy.view.roster
    copy.begin_with(raw, image)
    assert copy.ledger.head_index == newest.index


def test_older_records_are_sent_once_on_a_connection() -> None:
    hall = long_run()
    hall.join(D)
    hall.sent[D].clear()
    hall.say(D, *[m.Older(20)] * 20)
    (sent,) = hall.sent[D]
    assert sent.first_index + len(sent.records) == 20
    hall.say(D, m.Older(sent.first_index), m.Older(0), m.Older(-5))
    assert len(hall.sent[D]) == 2
    hall.say(D, m.Older(1 << 62))
    assert len(hall.sent[D]) == 2


def test_a_copy_that_has_a_gap_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 2000)
    hall = long_run()
    newcomer = Newcomer(hall)
    for op in range(13, 33):
        hall.run_op(op, A, B, C)
        newcomer.read(8)
        held = newcomer.machine.ledger._recent_bytes
        assert held <= 2000 + limits.RECORDS_BATCH_BYTES
    newcomer.read_all()
    assert newcomer.disk.records == hall.records


def test_an_empty_answer_is_not_asked_for_again() -> None:
    newcomer = Newcomer(long_run())
    while not newcomer.machine.ledger.first:
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

"""The coordinator's pen: it appends to the ledger and keeps what is to be sent, in order.

Every record is an `Append` action before any message that follows from it, and a peer gets records
strictly in index order, each from its own index on.
"""

from collections.abc import Iterable

from swarmtrain_transport.actions import Adopt, Append, ClosePeer, CoordinatorAction, SendToPeer
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.parcels import Parcels
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.chain import Archive, Ledger
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.snapshots import Snapshots
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import (
    CheckpointWritten,
    CoordinatorMessage,
    Hello,
    Records,
    Refused,
)
from swarmtrain_transport.wire.records import (
    Body,
    Checkpoint,
    Join,
    Record,
    Sign,
    Verify,
    make_record,
    record_from_bytes,
)
from swarmtrain_transport.wire.text_place import TextPlace


class Replayed:
    """A ledger and its fold, as far as records were replayed. More may follow: who stands by for
    another coordinator keeps it up to date, and takes over in no time.

    Args:
        verify: checks a signature.
        archive: store of older records, None to keep all in memory.
    """

    def __init__(self, verify: Verify, archive: Archive | None = None) -> None:
        self.ledger = Ledger(verify, archive)
        self.view = LedgerView()
        self.snapshots = Snapshots(self.ledger, self.view)
        self.parcels = Parcels(self.ledger)

    def add(self, records: Iterable[Record]) -> None:
        """Replay the next ones. Raises RemoteFault: they are no legal chain."""
        for record in records:
            self.ledger.append(record, self.snapshots.apply)
            self.parcels.added(record)
            self.ledger.trim()


class LedgerWriter:
    """Ledger, its fold and the actions of the event at hand.

    Args:
        records: the ledger of an earlier life, verified as it is replayed, or replayed already.
        sign: signs a record hash with the run key.
        verify: checks a signature.
        term: this life's number.
        archive: store of older records, None to keep all in memory.

    Attributes:
        has_decided: True once this life has appended a record of its own.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self,
        records: Iterable[Record] | Replayed,
        sign: Sign,
        verify: Verify,
        term: int,
        archive: Archive | None = None,
    ) -> None:
        if not isinstance(records, Replayed):
            replayed = Replayed(verify, archive)
            replayed.add(records)
            records = replayed
        self.ledger, self.view, self._snapshots = records.ledger, records.view, records.snapshots
        self._parcels = records.parcels
        self.term = term
        self.has_decided = False
        self.text: TextPlace | None = None
        self._sign = sign
        self._out: list[CoordinatorAction] = []

    @property
    def head(self) -> int:
        """Index of the newest record."""
        return self.ledger.head_index

    def _take(self, record: Record) -> None:
        self.ledger.append(record, self._snapshots.apply)
        self._parcels.added(record)

    def append(self, body: Body) -> None:
        """Decide: one record, durable before whatever is sent after it."""
        ledger = self.ledger
        record = make_record(
            len(ledger), ledger.head_hash, self.term, body, self._sign, ledger.reader
        )
        self._take(record)
        self.has_decided = True
        self._out.append(Append(record))

    def note_checkpoint(self, peer: PeerId, message: CheckpointWritten) -> None:
        """A checkpoint is written, by the peer that PLAN named for it: CHECKPOINT."""
        group = self.view.groups.get(message.group)
        if group is None:
            return
        newest = group.checkpoint.op if group.checkpoint is not None else -1
        op = group.commits.get(message.op)
        if newest < message.op and op is not None and op.plan.checkpoint_by == peer:
            self.append(Checkpoint(message.op, peer, message.manifest_hash, message.group))

    def adopt(self, records: Iterable[bytes]) -> None:
        """Take over records of earlier lives that this one's disk has lost; known ones are passed.

        Raises:
            RemoteFault: they do not continue our chain or are not signed by the run key. Records
                before the faulty one are kept: they are ours, whoever brought them.
        """
        taken: list[Record] = []
        newest = -1
        try:
            for data in records:
                record = record_from_bytes(data)
                if record.index <= newest:
                    raise RemoteFault("chain", f"record {record.index} after record {newest}")
                newest = record.index
                if self.ledger.hash_at(record.index) != record.hash:
                    self._take(record)
                    taken.append(record)
        finally:
            if taken:
                self.term = max(self.term, self.ledger.term + 1)
                self._out.append(Adopt(tuple(taken), self.term))

    def send(self, peer: PeerId, message: CoordinatorMessage) -> None:
        """Send over the peer's control connection."""
        self._out.append(SendToPeer(peer, message))

    def send_records(self, peer: PeerId, line: PeerLine, now_s: float) -> None:
        """Send what the peer lacks, as far as its window has room; the rest follows what it
        acknowledges."""
        if line.sent_index == self.ledger.head_index or not line.has_room:
            return
        for parcel in self._parcels.since(line.sent_index + 1):
            self.send(peer, parcel.message)
            line.sent(parcel.newest, now_s, parcel.num_bytes)
            if not line.has_room:
                return

    def snapshot(self) -> None:
        """SNAPSHOT, where one is due."""
        if self._snapshots.is_due:
            self.append(self._snapshots.next())

    def send_image(self, peer: PeerId, line: PeerLine, now_s: float) -> None:
        """Let a newcomer begin with the newest SNAPSHOT, if there is one, and a process that was
        away for long too, if that is shorter."""
        newest, image, run = self._snapshots.record, self._snapshots.image, self.ledger.run_record
        if newest is None or run is None or not self._is_shorter(line.hello):
            return
        begins = run.to_bytes(), newest.to_bytes()
        for piece in self._parcels.image(newest.index, image, begins):
            self.send(peer, piece)
        line.sent(newest.index, now_s, len(image))

    def _is_shorter(self, hello: Hello) -> bool:
        if hello.head_index < 0:
            return True
        passed_bytes = self.bytes_before_newest(hello.head_index + 1)
        return hello.takes_image and len(self._snapshots.image) < passed_bytes

    def bytes_before_newest(self, first: int) -> int:
        """At least so many bytes of records lie between a record and the newest SNAPSHOT."""
        return self._snapshots.bytes_before(first)

    def send_older(self, peer: PeerId, line: PeerLine, stop: int) -> None:
        """Send some of the records that the peer asks for, each once on a connection: one that
        asks without end gets no more than the ledger."""
        batch = self.ledger.before(stop) if 0 < stop <= line.older_from else []
        if batch:
            self.send(peer, Records(batch[0].index, tuple(r.to_bytes() for r in batch)))
            line.older_from = batch[0].index

    def refuse(self, peer: PeerId, code: str, text: str) -> None:
        """Say why, then close."""
        self.send(peer, Refused(code, text))
        self._out.append(ClosePeer(peer))

    def close(self, peer: PeerId) -> None:
        """Close the peer's control connection after what was sent."""
        self._out.append(ClosePeer(peer))

    def take(self) -> tuple[CoordinatorAction, ...]:
        """The actions since the last call."""
        actions, self._out = tuple(self._out), []
        return actions

    def knows_history(self, hello: Hello) -> bool:
        """Return True if the peer's newest record is one of ours; a fork is never merged."""
        if hello.head_index < 0:
            return True
        return self.ledger.hash_at(hello.head_index) == hello.head_hash

    def is_behind(self, hello: Hello) -> bool:
        """Return True if the peer holds newer records than we do."""
        return hello.head_index > self.ledger.head_index

    def has_card(self, peer: PeerId, hello: Hello) -> bool:
        """Return True if the roster already says what this HELLO says."""
        join = self.view.roster.get(peer)
        return join is not None and _card(join) == _card(hello)


def _card(who: Join | Hello) -> tuple[bytes, bytes]:
    return who.boot, who.curve_key

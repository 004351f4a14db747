"""A verified ledger: every record is checked against the chain before it is kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    AnyBody,
    BodyReader,
    Record,
    Run,
    Snapshot,
    Verify,
    body_of,
)

_READ_AT_ONCE = 256
"""Records read from the archive at once."""


class Archive(Protocol):
    """The durable copy of a ledger: what is there need not be in memory."""

    def read(self, first: int, stop: int) -> Sequence[Record]:
        """Records from index `first` on, before `stop`."""


class Ledger:
    """A verified chain. Appending anything but the next legal record raises.

    Args:
        verify: signature check, so that the simulator need not spend 0.1 ms on each.
        archive: store of older records, None to keep all of them in memory.

    Attributes:
        head_index: index of the newest record, -1 when empty.
        head_hash: hash of the newest record, GENESIS_HASH when empty.
        term: term of the newest record.
        reader: reads and writes the bodies of its records.
        first: oldest record that is here without a gap up to the head; 0 where all are.
        run_record: record 0, None when empty.
    """

    def __init__(self, verify: Verify, archive: Archive | None = None) -> None:
        self._verify, self._archive = verify, archive
        self._recent: list[Record] = []
        self._recent_bytes = 0
        self._run: Run | None = None
        self._run_key = b""
        self.head_index, self.head_hash, self.term = -1, GENESIS_HASH, 0
        self.reader = BodyReader()
        self.first = 0
        self.run_record: Record | None = None
        self._prev_hash = GENESIS_HASH
        self._known = -1, GENESIS_HASH
        self._passed: list[Record] = []

    def expect(self, run_key: bytes) -> None:
        """Name the run key, as WELCOME says it; the ledger must be the one that it has signed.

        Raises:
            RemoteFault: reason ``key``: RUN names another.
        """
        self._run_key = run_key
        if self._run is not None:
            self._check_key(self._run)

    def begin_at(
        self,
        run: Record,
        snapshot: Record,
        judge: Callable[[Run, Snapshot], BodyReader],
        known: tuple[int, bytes] = (-1, GENESIS_HASH),
    ) -> None:
        """Begin with a SNAPSHOT; `prepend` takes the records before it.

        Args:
            run: record 0.
            snapshot: the SNAPSHOT.
            judge: checks the two beyond the chain's own rules, and reads the records after them.
                Heard once they are legal; if it raises, nothing is kept.
            known: index and hash of the newest record that is here before the gap.

        Raises:
            RemoteFault: reason ``chain``, ``key`` or ``signature``; the ledger is empty as before.
        """
        first, body = body_of(run), body_of(snapshot)
        if run.index or not isinstance(first, Run) or not isinstance(body, Snapshot):
            raise RemoteFault("chain", "a ledger begins with RUN, or after a SNAPSHOT")
        self._check_key(first)
        for record in (run, snapshot):
            self._check_signed(record, record.hash, first.run_key)
        self.reader = judge(first, body)
        self.run_record, self._run = run, first
        self.head_index, self.head_hash = snapshot.index, snapshot.hash
        self.term = snapshot.term
        self._passed = (self._recent or [run]) if self._archive is None else []
        self._recent, self._recent_bytes = [snapshot], len(snapshot.body)
        self.hold_from(snapshot, max(known, (0, run.hash)))
        self.prepend(())

    def hold_from(self, oldest: Record, known: tuple[int, bytes]) -> None:
        """Note that all records from this one on are here; before it comes a gap.

        Args:
            oldest: the record.
            known: index and hash of the newest record that is here before the gap.
        """
        self.first, self._prev_hash, self._known = oldest.index, oldest.prev_hash, known

    def prepend(self, records: Sequence[Record]) -> Sequence[Record]:
        """Take records that end where ours begin; those that were not here yet.

        Raises:
            RemoteFault: reason ``chain``: they do not lead to the oldest record here; or reason
                ``snapshot``: that was all, and what was here before the gap is not their beginning.
        """
        first, prev_hash = self.first, self._prev_hash
        for record in reversed(records):
            if record.index != first - 1 or record.hash != prev_hash:
                raise RemoteFault("chain", f"record {record.index} does not lead to {first}")
            first, prev_hash = record.index, record.prev_hash
            if first - 1 <= self._known[0]:
                break
        taken = records[first - self.first + len(records) :]
        if first - 1 == self._known[0]:
            if prev_hash != self._known[1]:
                raise RemoteFault("snapshot", f"record {first} does not follow what was here")
            first = 0
        self.first, self._prev_hash = first, prev_hash
        if self._archive is None:
            self._recent[:0] = taken if first else [*self._passed, *taken]
        return taken

    def before(self, stop: int) -> list[Record]:
        """The last records before index `stop`, as many as fit into a message."""
        found = list(self.since(max(self.first, stop - _READ_AT_ONCE), min(stop, len(self))))
        return next(batches(reversed(found)), [])[::-1]

    def __len__(self) -> int:
        return self.head_index + 1

    def hash_at(self, index: int) -> bytes | None:
        """Hash of record `index`, None where there is none."""
        if not self.first <= index < len(self):
            return None
        first = len(self) - len(self._recent)
        if index >= first or self._archive is None:
            return self._recent[index - first].hash
        return next((record.hash for record in self._archive.read(index, index + 1)), None)

    def since(self, index: int, stop: int | None = None) -> Iterator[Record]:
        """Records from `index` on, up to `stop` if one is given, older ones from the archive."""
        first = len(self) - len(self._recent)
        stop = len(self) if stop is None else stop
        if index < self.first:
            raise LocalFault(f"record {index} is not here")
        while index < min(first, stop) and self._archive is not None:
            older = self._archive.read(index, min(first, stop, index + _READ_AT_ONCE))
            if not older:
                raise LocalFault(f"record {index} is not in the archive")
            yield from older
            index += len(older)
        yield from self._recent[max(0, index - first) : max(0, stop - first)]

    def trim(self) -> None:
        """Let go of older records in memory. All that were appended are in the archive by now."""
        if self._archive is None or self._recent_bytes <= limits.LEDGER_MEMORY_BYTES:
            return
        kept = kept_bytes = 0
        while kept_bytes < limits.LEDGER_MEMORY_BYTES // 2 and kept < len(self._recent):
            kept += 1
            kept_bytes += len(self._recent[-kept].body)
        self._recent, self._recent_bytes = self._recent[-kept:], kept_bytes

    def append(
        self, record: Record, judge: Callable[[Record, AnyBody], None] | None = None
    ) -> AnyBody:
        """Check the record against the chain and keep it.

        Args:
            record: the next one.
            judge: checks the record beyond the chain's own rules, once it is a legal link and not
                yet kept; if it raises, the record is not kept.

        Raises:
            RemoteFault: reason ``chain``, ``key`` or ``signature``; the ledger is as before.
        """
        index = record.index
        if index != self.head_index + 1 or record.prev_hash != self.head_hash:
            raise RemoteFault("chain", f"record {index} does not follow {self.head_index}")
        if record.term < self.term:
            raise RemoteFault("chain", f"term {record.term} after term {self.term}")
        digest = record.hash
        if index:
            self._check_signed(record, digest, self.run.run_key)
        body = self.reader.look(record)
        run = body if isinstance(body, Run) else None
        if (run is not None) != (index == 0):
            raise RemoteFault("chain", "RUN is record 0 and nothing else is")
        if run is not None:
            self._check_key(run)
            self._check_signed(record, digest, run.run_key)
        if judge is not None:
            judge(record, body)
        self._recent.append(record)
        self._recent_bytes += len(record.body)
        self.head_index, self.head_hash, self.term = index, digest, record.term
        if run is not None:
            self.run_record, self._run = record, run
        self.reader.take(record, body)
        return body

    def _check_key(self, run: Run) -> None:
        if self._run_key not in (b"", run.run_key):
            raise RemoteFault("key", "RUN names another run key than WELCOME")

    def _check_signed(self, record: Record, digest: bytes, key: bytes) -> None:
        """Before its body is read, where we have the key: short bodies may be of long lists."""
        if not self._verify(key, record.signature, digest):
            raise RemoteFault("signature", f"record {record.index} is not signed by the run key")

    @property
    def run(self) -> Run:
        """Body of record 0.

        Raises:
            LocalFault: the ledger is empty.
        """
        if self._run is None:
            raise LocalFault("the ledger is empty")
        return self._run


_AROUND_BODY_BYTES = 200
"""Index, hash, term and signature of a record: no more than this."""


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Consecutive records in messages of bounded size."""
    batch: list[Record] = []
    room = limits.RECORDS_BATCH_BYTES
    for record in records:
        size = size_of(record)
        if batch and size > room:
            yield batch
            batch, room = [], limits.RECORDS_BATCH_BYTES
        batch.append(record)
        room -= size
    if batch:
        yield batch


def size_of(record: Record) -> int:
    """About the record's bytes in a message."""
    return len(record.body) + _AROUND_BODY_BYTES

"""A peer's own copy of the ledger on disk: lz4 segments of records, appended and never changed.

Each segment has its length and its CRC, and its records follow each other by hash. Segments come
in the order in which they were had: where a copy has a gap, older ones come after newer ones. Those
that a crash cut short or a disk has changed are dropped at the next start, with all that comes
after them, because the coordinator sends those records again. A mere reader of the file is told
where it stops to make sense, and changes nothing.
"""

import io
import os
import struct
import sys
import zlib
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import lz4.block

from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.errors import earlier_version
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.chain import batches
from swarmtrain_transport.peer.ledger_copy import ranges_of
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    Record,
    Snapshot,
    outline_of,
    record_from_bytes,
    tag_of,
)

FILE_NAME = "ledger.bin"

_SEGMENT = struct.Struct("<III")
"""Bytes packed, bytes unpacked, CRC-32 of the packed ones."""

_LENGTH_BYTES = 4

_FORM = 2
"""Form of the records in a segment: where its CRC begins to count, so one of another form fails
it."""

_EARLIER_FORMS = (0,)

_MARKED_RECORDS = 256
"""To read from a record on, no more than so many before it are read too."""

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """Contents of a file.

    Attributes:
        records: records of all whole segments before the first that is not, by index.
        whole_bytes: end of those segments.
        num_bytes: end of the file.
    """

    records: list[Record]
    whole_bytes: int
    num_bytes: int


def read(path: Path) -> LedgerFile:
    """The records of a file; none where there is no such file.

    Raises:
        OSError: it cannot be read.
        UserError: SWT-E810, an earlier version has written it.
    """
    if not path.exists():
        return LedgerFile([], 0, 0)
    with regular_file.opened(path) as file:
        kept = _parsed(file, os.fstat(file.fileno()).st_size)
        file.seek(0)
        if not kept.records and _is_of_earlier_form(file):
            raise earlier_version(str(path))
    return kept


def parse(data: bytes) -> LedgerFile:
    """The records in the bytes of a file, whatever they are."""
    return _parsed(io.BytesIO(data), len(data))


def _parsed(file: BinaryIO, num_bytes: int) -> LedgerFile:
    records: list[Record] = []
    whole_bytes = 0
    for _, end, segment in _whole_segments(file):
        records += segment
        whole_bytes = end
    return LedgerFile(sorted(records, key=lambda one: one.index), whole_bytes, num_bytes)


def _whole_segments(file: BinaryIO) -> Iterator[tuple[int, int, list[Record]]]:
    """Start, end and records of each segment before the first that makes no sense."""
    position = 0
    edges = _Edges()
    while (segment := _segment_at(file)) and edges.fit(segment):
        start, position = position, file.tell()
        yield start, position, segment


def _segment_at(file: BinaryIO) -> list[Record] | None:
    """The records of the segment that begins here, None if it is not whole."""
    header = file.read(_SEGMENT.size)
    if len(header) < _SEGMENT.size:
        return None
    packed_bytes, plain_bytes, crc = _SEGMENT.unpack(header)
    if packed_bytes > 2 * limits.CONTROL_BYTES_MAX:
        return None
    packed = file.read(packed_bytes)
    if len(packed) != packed_bytes or zlib.crc32(packed, _FORM) != crc:
        return None
    return _unpacked(packed, plain_bytes)


class _Edges:
    """The ends of a file's stretches, by index and hash."""

    def __init__(self) -> None:
        self._ends: dict[int, bytes] = {0: GENESIS_HASH}
        """Hash of the newest record of a stretch, by the index that comes next."""
        self._starts: dict[int, bytes] = {}
        """Hash that the oldest record of a stretch names, by its index."""

    def fit(self, segment: Sequence[Record]) -> bool:
        """Return True if the records follow each other, and continue a stretch at either end; or
        begin one with a SNAPSHOT."""
        oldest, newest = segment[0], segment[-1]
        is_chain = all(
            (after.index, after.prev_hash) == (before.index + 1, before.hash)
            for before, after in pairwise(segment)
        )
        before = self._ends.pop(oldest.index, None)
        after = self._starts.pop(newest.index + 1, None)
        self._ends[newest.index + 1], self._starts[oldest.index] = newest.hash, oldest.prev_hash
        is_joined = before is not None or after is not None
        return (
            is_chain
            and before in (None, oldest.prev_hash)
            and after in (None, newest.hash)
            and (is_joined or _is_snapshot(oldest))
        )


def _is_snapshot(record: Record) -> bool:
    try:
        return outline_of(record).kind == tag_of(Snapshot)
    except RemoteFault:
        return False


def _is_of_earlier_form(file: BinaryIO) -> bool:
    header = file.read(_SEGMENT.size)
    if len(header) < _SEGMENT.size:
        return False
    packed_bytes, _, crc = _SEGMENT.unpack(header)
    packed = file.read(min(packed_bytes, 2 * limits.CONTROL_BYTES_MAX))
    return bool(packed) and any(zlib.crc32(packed, form) == crc for form in _EARLIER_FORMS)


class LedgerLog:
    """A file that is open: records are appended to it, and read again from any index on.

    Args:
        path: path of the file; a torn end is cut off.

    Attributes:
        ranges: ranges of records in the file, each as first and stop, oldest first.

    Raises:
        OSError: it cannot be read or written.
        UserError: SWT-E810, an earlier version has written it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Unbuffered: what a full disk refused must not wait in a buffer and fail once more.
        self._file = path.open("ab", buffering=0)
        self._marks: list[tuple[int, int]] = []
        self.ranges: list[tuple[int, int]] = []
        self._newest = self._marked = _NOWHERE
        whole_bytes = 0
        with path.open("rb") as file:
            for start, end, segment in _whole_segments(file):
                self._note(segment, start)
                whole_bytes = end
            file.seek(0)
            if not whole_bytes and _is_of_earlier_form(file):
                self._file.close()
                raise earlier_version(str(path))
        if whole_bytes < path.stat().st_size:
            os.truncate(path, whole_bytes)

    @property
    def num_records(self) -> int:
        """Records in the file."""
        return sum(stop - first for first, stop in self.ranges)

    def append(self, records: Sequence[Record]) -> None:
        """Add records, in segments of bounded size. OSError: nothing of the last one is kept."""
        for first, stop in ranges_of(records):
            for batch in batches(one for one in records if first <= one.index < stop):
                self._append(batch)

    def _append(self, records: Sequence[Record]) -> None:
        segment = memoryview(segment_of(records))
        whole_bytes = os.fstat(self._file.fileno()).st_size
        try:
            while segment:
                segment = segment[self._file.write(segment) :]
        except OSError:
            # A torn segment would hide those that follow it.
            os.ftruncate(self._file.fileno(), whole_bytes)
            raise
        self._note(records, whole_bytes)

    def _note(self, records: Sequence[Record], position: int) -> None:
        """These lie there now."""
        first, stop = records[0].index, records[-1].index + 1
        if first != self._newest or first >= self._marked + _MARKED_RECORDS:
            insort(self._marks, (first, position))
            self._marked = first
        self._newest = stop
        if self.ranges and self.ranges[-1][1] == first:
            self.ranges[-1] = (self.ranges[-1][0], stop)
            return
        joined: list[tuple[int, int]] = []
        for one in sorted([*self.ranges, (first, stop)]):
            is_next = joined and joined[-1][1] == one[0]
            joined[-1:] = [(joined[-1][0], one[1])] if is_next else [*joined[-1:], one]
        self.ranges = joined

    def read(self, first: int, stop: int) -> list[Record]:
        """Records from index `first` on, before `stop`, as far as there is no gap."""
        found: list[Record] = []
        with self._path.open("rb") as file:
            while first < stop:
                place = bisect_right(self._marks, first, key=lambda mark: mark[0]) - 1
                if place < 0:
                    break
                stretch = self._stretch(file, self._marks[place][1], first, stop)
                if not stretch:
                    break
                found += stretch
                first = stretch[-1].index + 1
        return found

    def _stretch(self, file: BinaryIO, position: int, first: int, stop: int) -> list[Record]:
        """Read these records as far as they follow each other in the file from this place on."""
        file.seek(position)
        found: list[Record] = []
        newest = _NOWHERE
        while segment := _segment_at(file):
            if newest not in (_NOWHERE, segment[0].index):
                break
            found += [record for record in segment if first <= record.index < stop]
            newest = segment[-1].index + 1
            if newest >= stop:
                break
        return found

    def replay(self, first: int, stop: int = sys.maxsize) -> Iterator[Record]:
        """Read as `read` does, a few at a time."""
        while records := self.read(first, min(stop, first + _MARKED_RECORDS)):
            yield from records
            first = records[-1].index + 1

    def keep_only(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Free the disk of all other records.

        Raises:
            OSError: the disk; the file is as it was.
        """
        fresh = self._path.with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        log = LedgerLog(fresh)
        for first, stop in ranges:
            for batch in batches(self.replay(first, stop)):
                log.append(batch)
        os.fsync(log._file.fileno())
        fresh.replace(self._path)
        self.close()
        atomic_file.sync_folder(self._path.parent)
        self._file, self._marks, self.ranges = log._file, log._marks, log.ranges
        self._newest, self._marked = log._newest, log._marked

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def segment_of(records: Sequence[Record]) -> bytes:
    """The bytes to append for some records."""
    plain = b"".join(_framed(record.to_bytes()) for record in records)
    packed: bytes = lz4.block.compress(plain, store_size=False)
    return _SEGMENT.pack(len(packed), len(plain), zlib.crc32(packed, _FORM)) + packed


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def _unpacked(packed: bytes, plain_bytes: int) -> list[Record] | None:
    """The records of one segment, None if it has none or makes no sense. Sizes are checked before
    decoding."""
    if plain_bytes > 2 * limits.CONTROL_BYTES_MAX:
        return None
    try:
        plain = lz4.block.decompress(packed, uncompressed_size=plain_bytes)
        records = []
        position = 0
        while position < len(plain):
            start = position + _LENGTH_BYTES
            position = start + int.from_bytes(plain[position:start], "little")
            records.append(record_from_bytes(plain[start:position]))
    except (lz4.block.LZ4BlockError, RemoteFault):
        return None
    return records if records and position == len(plain) == plain_bytes else None

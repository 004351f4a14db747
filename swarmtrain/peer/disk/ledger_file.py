"""A peer's own copy of the ledger on disk: lz4 segments of records, appended and never changed.

Each segment has its length and its CRC, and its records follow those before it by hash. Segments
that a crash cut short or a disk has changed are dropped at the next start, with all that comes
after them, because the coordinator sends those records again. A mere reader of the file is told
where it stops to make sense, and changes nothing.
"""

import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import lz4.block

from swarmtrain.errors import earlier_version
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.chain import batches
from swarmtrain_transport.wire.records import Record, record_from_bytes

FILE_NAME = "ledger.bin"

_SEGMENT = struct.Struct("<III")
"""Bytes packed, bytes unpacked, CRC-32 of the packed ones."""

_LENGTH_BYTES = 4

_FORM = 2
"""Of the records in a segment: where its CRC begins to count, so one of another form fails it."""

_EARLIER_FORMS = (0,)

_MARKED_RECORDS = 256
"""To read from a record on, no more than so many before it are read too."""


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """Contents of a file.

    Attributes:
        records: of all whole segments before the first that is not.
        whole_bytes: where those segments end.
        num_bytes: where the file ends.
        marks: index of a record, and where the segment that begins with it does, for one in some
            hundred records.
    """

    records: list[Record]
    whole_bytes: int
    num_bytes: int
    marks: list[tuple[int, int]] = field(default_factory=list, compare=False)


def read(path: Path) -> LedgerFile:
    """The records of a file; none where there is no such file.

    Raises:
        OSError: it cannot be read.
        UserError: SWT-E810, an earlier version has written it.
    """
    data = path.read_bytes() if path.exists() else b""
    kept = parse(data)
    if not kept.records and _is_of_earlier_form(data):
        raise earlier_version(str(path))
    return kept


def _is_of_earlier_form(data: bytes) -> bool:
    if len(data) < _SEGMENT.size:
        return False
    packed_bytes, _, crc = _SEGMENT.unpack_from(data)
    packed = data[_SEGMENT.size : _SEGMENT.size + packed_bytes]
    return bool(packed) and any(zlib.crc32(packed, form) == crc for form in _EARLIER_FORMS)


def parse(data: bytes) -> LedgerFile:
    """The records in the bytes of a file, whatever they are."""
    records: list[Record] = []
    marks: list[tuple[int, int]] = []
    position = 0
    while position + _SEGMENT.size <= len(data):
        packed_bytes, plain_bytes, crc = _SEGMENT.unpack_from(data, position)
        start = position + _SEGMENT.size
        packed = data[start : start + packed_bytes]
        if len(packed) != packed_bytes or zlib.crc32(packed, _FORM) != crc:
            break
        segment = _unpacked(packed, plain_bytes)
        if segment is None or not _follow(records[-1:] + segment):
            break
        records += segment
        _mark(marks, segment[0].index, position)
        position = start + packed_bytes
    return LedgerFile(records, position, len(data), marks)


def _mark(marks: list[tuple[int, int]], index: int, position: int) -> None:
    if not marks or index >= marks[-1][0] + _MARKED_RECORDS:
        marks.append((index, position))


class LedgerLog:
    """A file that is open: records are appended to it, and read again from any index on.

    Args:
        path: of the file; what is torn at its end is cut off.

    Attributes:
        num_records: in the file.

    Raises:
        OSError: it cannot be read or written.
        UserError: SWT-E810, an earlier version has written it.
    """

    def __init__(self, path: Path) -> None:
        kept = read(path)
        if kept.whole_bytes < kept.num_bytes:
            os.truncate(path, kept.whole_bytes)
        self.num_records = len(kept.records)
        self._path, self._marks = path, kept.marks
        # Unbuffered: what a full disk refused must not wait in a buffer and fail once more.
        self._file = path.open("ab", buffering=0)

    def append(self, records: Sequence[Record]) -> None:
        """Add records, in segments of bounded size. OSError: nothing of the last one is kept."""
        for batch in batches(records):
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
        self.num_records += len(records)
        _mark(self._marks, records[0].index, whole_bytes)

    def read(self, first: int, stop: int) -> list[Record]:
        """Records from index `first` on, before `stop`."""
        found: list[Record] = []
        place = bisect_right(self._marks, first, key=lambda mark: mark[0]) - 1
        if place < 0:
            return found
        with self._path.open("rb") as file:
            file.seek(self._marks[place][1])
            while len(header := file.read(_SEGMENT.size)) == _SEGMENT.size:
                packed_bytes, plain_bytes, _ = _SEGMENT.unpack(header)
                segment = _unpacked(file.read(packed_bytes), plain_bytes) or []
                found += [record for record in segment if first <= record.index < stop]
                if not segment or segment[-1].index >= stop - 1:
                    break
        return found

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


def _follow(records: Sequence[Record]) -> bool:
    """Return True if each is the link after the one before it; the first has index 0."""
    if records[0].index and len(records) == 1:
        return False
    return all(
        (after.index, after.prev_hash) == (before.index + 1, before.hash)
        for before, after in pairwise(records)
    )


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

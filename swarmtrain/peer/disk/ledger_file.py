"""A peer's own copy of the ledger on disk: lz4 segments of records, appended and never changed.

Each segment has its length and its CRC, and its records follow those before it by hash. What a
crash cut short, a disk has changed or does not follow is dropped at the next start, with all that
comes after it, because the coordinator sends those records again. Whoever only looks at the file is
told where it stops to make sense, and changes nothing.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import lz4.block

from swarmtrain.errors import earlier_version
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import Record, record_from_bytes

FILE_NAME = "ledger.bin"

_SEGMENT = struct.Struct("<III")
"""Bytes packed, bytes unpacked, CRC-32 of the packed ones."""

_LENGTH_BYTES = 4

_FORM = 2
"""Of the records in a segment: where its CRC begins to count, so one of another form fails it."""

_EARLIER_FORMS = (0,)


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """What a file holds.

    Attributes:
        records: of all whole segments before the first that is not.
        whole_bytes: where those segments end.
        num_bytes: where the file ends.
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
        position = start + packed_bytes
    return LedgerFile(records, position, len(data))


def segment_of(records: Sequence[Record]) -> bytes:
    """The bytes to append for some records."""
    plain = b"".join(_framed(record.to_bytes()) for record in records)
    packed: bytes = lz4.block.compress(plain, store_size=False)
    return _SEGMENT.pack(len(packed), len(plain), zlib.crc32(packed, _FORM)) + packed


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def _follow(records: Sequence[Record]) -> bool:
    """Whether each is the next link after the one before it; the first of all has index 0."""
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

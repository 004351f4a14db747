"""Ledger records in messages of bounded size."""

from collections.abc import Iterable, Iterator

from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import Record

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

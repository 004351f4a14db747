"""Ledger records in messages of bounded size."""

from collections.abc import Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import Record


def batches(records: Sequence[Record]) -> list[list[Record]]:
    """Consecutive records in messages of bounded size."""
    batches: list[list[Record]] = []
    room = 0
    for record in records:
        size = len(record.body) + 200
        if size > room:
            batches.append([])
            room = limits.RECORDS_BATCH_BYTES
        batches[-1].append(record)
        room -= size
    return batches

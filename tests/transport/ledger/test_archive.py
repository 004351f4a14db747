"""Archive of a long ledger: its newest records are in memory, the others where they are durable."""

from collections.abc import Sequence

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.wire.records import Record
from tests.transport.hall import Hall
from tests.transport.rig import A, B, Chain, join_body, run_body, verify


class Disk:
    """A list that counts how much is read from it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.num_read = 0

    def read(self, first: int, stop: int) -> Sequence[Record]:
        found = self.records[first:stop]
        self.num_read += len(found)
        return found


def written(count: int) -> tuple[Ledger, Disk, list[Record]]:
    chain, disk = Chain(run_body(), *[join_body(A)] * (count - 1)), Disk()
    ledger = Ledger(verify, disk)
    for record in chain.records:
        ledger.append(record)
        disk.records.append(record)
        ledger.trim()
    return ledger, disk, chain.records


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 2000)


def test_a_long_ledger_reads_as_a_short_one_does() -> None:
    ledger, disk, records = written(100)
    assert (len(ledger), ledger.head_index, ledger.head_hash) == (100, 99, records[-1].hash)
    for index in (0, 1, 50, 97, 99, 100, 101):
        assert list(ledger.since(index)) == records[index:]
        wanted = records[index].hash if index < 100 else None
        assert ledger.hash_at(index) == wanted
    assert ledger.hash_at(-1) is None
    disk.num_read = 0
    assert list(ledger.since(98)) == records[98:] and not disk.num_read, "that is in memory"


def test_memory_does_not_grow_with_the_ledger() -> None:
    for count in (100, 300):
        ledger, _, _ = written(count)
        assert sum(len(record.body) for record in ledger._recent) <= 2000


def test_a_ledger_without_an_archive_keeps_everything() -> None:
    chain = Chain(run_body(), *[join_body(A)] * 99)
    chain.ledger.trim()
    assert list(chain.ledger.since(0)) == chain.records


def test_what_the_archive_has_lost_is_our_own_fault() -> None:
    ledger, disk, _ = written(100)
    disk.records.clear()
    with pytest.raises(LocalFault, match="record 3 "):
        list(ledger.since(3))


def test_a_newcomer_gets_what_is_on_the_disk_alone() -> None:
    first = Hall()
    for number in range(60):
        first.join(B, boot=b"boot %d" % number)
    disk = Disk()
    hall = Hall(tuple(first.records), term=2, archive=disk)
    disk.records = hall.records
    hall.tick(100.0)
    hall.join(A)
    assert hall.heard(A) == hall.records and disk.num_read > 40

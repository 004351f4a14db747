"""Records and images as messages, each made once for all who lack the same.

Every peer is sent every record, and most of them lack the same ones. So the ledger is cut into
parcels at places that do not depend on who asks: whoever lacks more than one is sent the same
messages as the others, up to the first cut and after the last.

The newest records of ops in cells are sent in short (`short_records`): they are long, and all get
them.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.ledger.chain import Ledger, size_of
from swarmtrain_transport.wire.messages import Image, Records
from swarmtrain_transport.wire.records import Plan, Record, body_of, outline_of, tag_of
from swarmtrain_transport.wire.short_records import NONE, Before, shortened

_KEPT_BYTES = 4 << 20
"""Messages at hand: those after the newest SNAPSHOT, and those to where peers were told last."""

_SHORT_KEPT = 32
"""Newest records that go in short: as many as whoever is up to date lacks, and a few more."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Consecutive records in one message, the newest index, and about their bytes."""

    message: Records
    newest: int
    num_bytes: int


class Parcels:
    """The messages of one ledger.

    Args:
        ledger: is read from.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cuts: list[int] = []
        self._open_bytes = 0
        self._newest: list[bytes] = []
        self._newest_bytes = 0
        """The newest records as they travel: in a crowd each peer lacks others of them."""
        self._made: dict[tuple[int, int], Parcel] = {}
        self._made_bytes = 0
        self._images: tuple[int, tuple[Image, ...]] = (-1, ())
        self._plans: dict[int, tuple[Before, bool]] = {}
        """The newest PLAN of each group, and True if it has cells."""
        self._short: dict[int, bytes] = {}
        """Records that go in short, by index."""

    def added(self, record: Record) -> None:
        """The ledger has grown by a record."""
        size = size_of(record)
        if self._open_bytes and self._open_bytes + size > limits.RECORDS_BATCH_BYTES:
            self._cuts.append(record.index)
            self._open_bytes = 0
        self._open_bytes += size
        self._newest.append(data := record.to_bytes())
        self._newest_bytes += len(data)
        if self._newest_bytes > limits.LEDGER_MEMORY_BYTES:
            self._newest = self._newest[len(self._newest) // 2 :]
            self._newest_bytes = sum(map(len, self._newest))
        self._note(record, data)

    def _note(self, record: Record, data: bytes) -> None:
        """Write a record in short, if it goes so."""
        kind, group, op = outline_of(record)
        if op < 0:
            return
        before, is_in_cells = self._plans.get(group, (NONE, False))
        if kind == tag_of(Plan):
            plan = body_of(record)
            is_in_cells = isinstance(plan, Plan) and plan.cells > 1
            self._plans[group] = Before(group, op, record.body), is_in_cells
        if is_in_cells:
            near = before if kind == tag_of(Plan) else NONE
            self._short[record.index] = shortened(data, record.index, near)
            if len(self._short) > _SHORT_KEPT:
                del self._short[next(iter(self._short))]

    def since(self, first: int) -> Iterator[Parcel]:
        """Yield all records from this one on."""
        end = len(self._ledger)
        while first < end:
            after = bisect_right(self._cuts, first)
            stop = self._cuts[after] if after < len(self._cuts) else end
            yield self._parcel(first, stop)
            first = stop

    def _parcel(self, first: int, stop: int) -> Parcel:
        known = self._made.pop((first, stop), None)
        if known is None:
            records = self._bytes_of(first, stop)
            known = Parcel(Records(first, records), stop - 1, sum(map(len, records)))
            self._made_bytes += known.num_bytes
        self._made[first, stop] = known
        while self._made_bytes > _KEPT_BYTES:
            self._made_bytes -= self._made.pop(next(iter(self._made))).num_bytes
        return known

    def _bytes_of(self, first: int, stop: int) -> tuple[bytes, ...]:
        at = first - (len(self._ledger) - len(self._newest))
        if at >= 0:
            found = self._newest[at : at + stop - first]
        else:
            found = [record.to_bytes() for record in self._ledger.since(first, stop)]
        return tuple(self._short.get(first + n, data) for n, data in enumerate(found))

    def image(self, index: int, image: bytes, begins: tuple[bytes, bytes]) -> tuple[Image, ...]:
        """Return the pieces of a SNAPSHOT's image; the first brings the two records that it begins
        with.

        Args:
            index: index of the SNAPSHOT.
            image: the image.
            begins: RUN and the SNAPSHOT.
        """
        if self._images[0] != index:
            step = limits.RECORDS_BATCH_BYTES
            pieces = (
                Image(len(image), at, image[at : at + step], begins if not at else ())
                for at in range(0, len(image), step)
            )
            self._images = index, tuple(pieces)
        return self._images[1]

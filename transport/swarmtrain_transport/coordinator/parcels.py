"""Records and images as messages, each made once for all who lack the same.

Every peer is sent every record, and most of them lack the same ones. So the ledger is cut into
parcels at places that do not depend on who asks: whoever lacks more than one is sent the same
messages as the others, up to the first cut and after the last.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.ledger.chain import Ledger, size_of
from swarmtrain_transport.wire.messages import Image, Records
from swarmtrain_transport.wire.records import Record

_KEPT_BYTES = 4 << 20
"""Messages at hand: those after the newest SNAPSHOT, and those to where peers were told last."""


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
            return tuple(self._newest[at : at + stop - first])
        return tuple(record.to_bytes() for record in self._ledger.since(first, stop))

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

"""Follows a ledger and its fold: says when a SNAPSHOT is due, and checks those that are there."""

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.image import image_of
from swarmtrain_transport.wire.records import AnyBody, Record, Snapshot


class Snapshots:
    """The fold's own pen: hears of each record before it is kept, and folds it.

    Args:
        ledger, view: what it follows.

    Attributes:
        record: the newest SNAPSHOT, None before the first.
        image: what it names.
    """

    def __init__(self, ledger: Ledger, view: LedgerView) -> None:
        self.record: Record | None = None
        self.image = b""
        self._ledger, self._view = ledger, view
        self._bytes_since = 0

    @property
    def is_due(self) -> bool:
        """True if enough records have come since the newest one."""
        return self._bytes_since >= limits.SNAPSHOT_EVERY_BYTES

    def next(self) -> Snapshot:
        """The SNAPSHOT of the records so far."""
        image = image_of(self._view, self._ledger.reader)
        return Snapshot(content_hash(image), len(image))

    def apply(self, record: Record, body: AnyBody) -> None:
        """Fold the next record.

        Raises:
            RemoteFault: reason ``snapshot``: it names another fold than ours of the same records;
                or what the fold raises.
        """
        if isinstance(body, Snapshot):
            image = image_of(self._view, self._ledger.reader)
            if body != Snapshot(content_hash(image), len(image)):
                raise RemoteFault("snapshot", f"SNAPSHOT {record.index} is of another history")
            self.record, self.image, self._bytes_since = record, image, 0
            return
        self._view.apply(record, body)
        self._bytes_since += len(record.body)

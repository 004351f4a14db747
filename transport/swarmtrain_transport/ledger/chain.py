"""A verified ledger in memory: every record is checked against the chain before it is kept."""

from collections.abc import Callable

from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    AnyBody,
    BodyReader,
    Record,
    Run,
    Verify,
)


class Ledger:
    """A verified chain in memory. Appending anything but the next legal record raises.

    Args:
        verify: signature check, so that the simulator need not spend 0.1 ms on each.

    Attributes:
        head_index: index of the newest record, -1 when empty.
        reader: reads and writes the bodies of its records.
    """

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._records: list[Record] = []
        self._hashes: list[bytes] = []
        self._run: Run | None = None
        self.head_index = -1
        self.reader = BodyReader()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def head_hash(self) -> bytes:
        """Hash of the newest record, GENESIS_HASH when empty."""
        return self._hashes[-1] if self._hashes else GENESIS_HASH

    @property
    def term(self) -> int:
        """Term of the newest record."""
        return self._records[-1].term if self._records else 0

    def hash_at(self, index: int) -> bytes | None:
        """Hash of record `index`, None where there is none."""
        return self._hashes[index] if 0 <= index < len(self._hashes) else None

    def since(self, index: int) -> list[Record]:
        """Records from `index` on."""
        return self._records[index:]

    def append(
        self, record: Record, judge: Callable[[Record, AnyBody], None] | None = None
    ) -> AnyBody:
        """Check the record against the chain and keep it.

        Args:
            record: the next one.
            judge: what else must hold. It hears of a record that is a legal link before it is
                kept; if it raises, the record is not kept.

        Raises:
            RemoteFault: reason ``chain`` or ``signature``; the ledger is as before.
        """
        if record.index != len(self._records) or record.prev_hash != self.head_hash:
            raise RemoteFault("chain", f"record {record.index} does not follow {self.head_index}")
        if record.term < self.term:
            raise RemoteFault("chain", f"term {record.term} after term {self.term}")
        digest = record.hash
        if record.index:
            self._check_signed(record, digest, self.run.run_key)
        body = self.reader.look(record)
        if isinstance(body, Run) != (record.index == 0):
            raise RemoteFault("chain", "RUN is record 0 and nothing else is")
        if isinstance(body, Run):
            self._check_signed(record, digest, body.run_key)
        if judge is not None:
            judge(record, body)
        self._records.append(record)
        self._hashes.append(digest)
        self.head_index = record.index
        if isinstance(body, Run):
            self._run = body
        self.reader.take(record, body)
        return body

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

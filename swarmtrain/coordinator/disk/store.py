"""The coordinator's durable memory: the decision log, invites and who was let in.

Every decision must be on the disk before anybody hears of it (protocol.md part 2, LOG), so an
append is one synced transaction that fails unless it continues exactly what is there. It lies in
SQLite, where an exclusive lock makes a second coordinator on the same directory fail at once, or in
PostgreSQL, where the second stands by (`postgres`). Each write checks that its term is the newest:
who led before, and wakes up, changes nothing.

It knows two things of what records mean: an op has one outcome, and a JOIN uses an invite.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmtrain.coordinator.disk.database import Database, SqliteDatabase, Taken
from swarmtrain.coordinator.disk.register import REGISTER_TABLES, SHARED_TABLES, Register
from swarmtrain.coordinator.disk.store_errors import (
    StoreError,
    conflict,
    damaged,
    of_earlier_version,
    of_later_version,
)
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    BodyReader,
    Commit,
    Join,
    Record,
    Rewind,
    Skip,
    body_of,
    outline_of,
    record_from_bytes,
    tag_of,
)

FILE_NAME = "ledger.sqlite"
SIDE_FILES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm")
"""All that SQLite may keep of one store."""

LOCK_FILE = "coordinator.lock"
"""In the state directory of a coordinator whose log is in a database: two coordinators there would
answer for each other."""

MARKS = (FILE_NAME, LOCK_FILE)
"""Files of which a coordinator's state directory has one."""

_JOIN, _REWIND = tag_of(Join), tag_of(Rewind)
_OUTCOMES = tag_of(Commit), tag_of(Skip)

SCHEMA, _EARLIER_SCHEMAS = 4, (1, 2)
"""Form of tables and records; before 3 a JOIN said where a peer listens."""

_READABLE = (3, SCHEMA)

_LOG_COLUMNS = 8

_READ_AT_ONCE = 256
"""Rows that are in memory at once while the log is replayed."""

_TABLES = f"""
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS log (
    idx INTEGER PRIMARY KEY, prev_hash BLOB NOT NULL, hash BLOB NOT NULL, term INTEGER NOT NULL,
    kind TEXT NOT NULL, grp INTEGER NOT NULL, op INTEGER, bytes BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_outcome ON log (grp, op) WHERE kind IN ('COMMIT', 'SKIP');
CREATE TABLE IF NOT EXISTS losses (op INTEGER PRIMARY KEY, loss REAL NOT NULL) STRICT;
{REGISTER_TABLES}
INSERT INTO meta VALUES ('schema', 3), ('term', 0), ('closed', 0) ON CONFLICT DO NOTHING
"""

MIGRATIONS = ((3, _TABLES), (4, SHARED_TABLES))
"""Form of the tables, and the statements that make it of the one before."""


class Replay:
    """Reads a log from its beginning, a few records at a time, and checks the chain of hashes."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._reader, self._newest_hash, self._position = BodyReader(), GENESIS_HASH, 0

    def more(self) -> Iterator[Record]:
        """The records that follow on those it has given, as far as they are there by now.

        Raises:
            StoreDamaged: a record is missing, altered or out of its place.
        """
        while rows := self._page(self._position):
            rewinds = self._rewinds(self._position)
            for row in rows:
                record = self._checked_row(row, self._position, rewinds)
                if record.prev_hash != self._newest_hash:
                    raise damaged(
                        self._db.name, f"record {record.index} does not continue the chain"
                    )
                try:
                    self._reader.read(record)
                except RemoteFault as exc:
                    raise damaged(self._db.name, f"record {record.index} does not decode") from exc
                self._newest_hash, self._position = record.hash, record.index + 1
                yield record

    def _page(self, first: int) -> list[tuple[Any, ...]]:
        query = "SELECT * FROM log WHERE idx >= ? ORDER BY idx LIMIT ?"
        return self._db.read(query, (first, _READ_AT_ONCE))

    def _rewinds(self, first: int) -> list[tuple[int, int, int]]:
        """Index, group and op of each REWIND from a record on. One whose kind was altered is found
        in its place."""
        query = "SELECT idx, bytes FROM log WHERE kind = ? AND idx >= ?"
        found = self._db.read(query, (_REWIND, first))
        try:
            outlines = [(index, outline_of(record_from_bytes(data))) for index, data in found]
        except (RemoteFault, TypeError) as exc:
            raise damaged(self._db.name, "a REWIND does not decode") from exc
        return [(index, outline.group, outline.op) for index, outline in outlines]

    def _checked_row(
        self, row: tuple[Any, ...], position: int, rewinds: Sequence[tuple[int, int, int]]
    ) -> Record:
        """The record of a row that says of it what it says itself. An outcome that a later REWIND
        has cancelled is none any more, but in a row that was read before it came."""
        if len(row) != _LOG_COLUMNS or not isinstance(row[-1], bytes):
            raise damaged(self._db.name, f"record {position} is no record")
        try:
            record = record_from_bytes(row[-1])
            kind, group, op = outline_of(record)
        except RemoteFault as exc:
            raise damaged(self._db.name, f"record {row[0]} does not decode") from exc
        expected = [_log_row(record)]
        if kind in _OUTCOMES and any(
            index > position and to_op < op and of == group for index, of, to_op in rewinds
        ):
            expected.append((*expected[0][:6], None, expected[0][7]))
        if record.index != position or row not in expected:
            raise damaged(self._db.name, f"record {position} is missing or altered")
        return record


class Store(Register):
    """One open state directory, or a run's tables of a database that coordinators share. It belongs
    to the thread that opened it."""

    def __init__(self, database: Database, term: int) -> None:
        super().__init__(database, term)
        self._kept_losses: set[int] = set()
        self._newest: tuple[int, bytes] | None = None
        """Index and hash of the newest record, once that was read: nobody else adds any. None after
        a failure."""

    @classmethod
    def open(cls, directory: Path) -> "Store":
        """Open or create the store of a directory, take its lock and begin the next term.

        Raises:
            StoreLocked: another process has it open.
            StoreDamaged: not a store.
            StoreOfEarlierVersion, StoreOfLaterVersion: of another version.
            StoreFull, StoreFailed: the disk.
        """
        return cls.begin(SqliteDatabase(directory / FILE_NAME))

    @classmethod
    def begin(cls, database: Database) -> "Store":
        """Begin the next term in a database that nobody else writes to, whose tables are made or
        brought to this version's form. It is closed if that fails. Raises as `open`."""
        try:
            with database.transaction():
                found = checked_schema(database, database.schema())
                for number, script in MIGRATIONS:
                    if number == 3 or number > found:  # its additions came without a number
                        database.define(script)
                database.change("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA,))
                term = _term(database) + 1
                database.change("UPDATE meta SET value = ? WHERE key = 'term'", (term,))
        except BaseException:
            database.close()
            raise
        return cls(database, term)

    @classmethod
    def open_to_read(cls, directory: Path) -> "Store":
        """Open a store that nobody uses, without a lock, a new term or any other change.

        Raises:
            StoreLocked: a coordinator has it open.
            StoreDamaged: not a store.
            StoreOfEarlierVersion, StoreOfLaterVersion: of another version.
            StoreFailed: the disk, or there is no store.
        """
        database = SqliteDatabase(directory / FILE_NAME, is_read=True)
        try:
            if not checked_schema(database, database.schema()):
                raise damaged(database.name, "it has no format")
            return cls(database, _term(database))
        except StoreError:
            database.close()
            raise

    def close(self) -> None:
        """Release the lock. Closing twice is allowed."""
        self._db.close()

    # ---- the log

    def records(self) -> tuple[Record, ...]:
        """All records, as `replay` gives them."""
        return tuple(self.replay())

    def replay(self) -> Iterator[Record]:
        """All records, oldest first, read a few at a time, with the chain of hashes checked.

        Raises:
            StoreDamaged: a record is missing, altered or out of its place.
        """
        return Replay(self._db).more()

    def read(self, first: int, stop: int) -> list[Record]:
        """Records from index `first` on, before `stop`; they were checked when the log was opened.

        Raises:
            StoreError: the disk.
        """
        rows = self._db.read(
            "SELECT bytes FROM log WHERE idx >= ? AND idx < ? ORDER BY idx", (first, stop)
        )
        return [record_from_bytes(data) for (data,) in rows]

    def append(self, *records: Record) -> None:
        """Add the records in one transaction that is on the disk when this returns: to sync many
        takes as long as to sync one.

        A JOIN also counts a use of its invite, once per key, in the same transaction: a crash
        can neither lose the use nor count it twice.

        Raises:
            StoreConflict: not the expected record, another term, a second outcome of an op, or
                a JOIN by an invite without a use left.
            StoreFull, StoreFailed: the disk. The log is as it was before the call.
        """
        with self._continued():
            for record in records:
                if record.term != self.term:
                    raise conflict(
                        f"record {record.index} is of term {record.term}, not {self.term}"
                    )
                join = self._insert(record)
                if join is not None:
                    self._admit(join)

    def adopt(self, records: Sequence[Record], term: int) -> None:
        """Take over what earlier lives decided and this disk has lost, and go on as `term`.

        Raises:
            StoreConflict: the records do not continue the log.
            StoreFull, StoreFailed: the disk. The log is as it was before the call.
        """
        with self._continued():
            for record in records:
                join = self._insert(record)
                if join is not None and self._let_in(join):
                    # Its invite may be younger than this disk: then there is nothing to count.
                    self._db.change(
                        "UPDATE invites SET uses = uses + 1 WHERE id = ?", (join.invite,)
                    )
            self._db.change("UPDATE meta SET value = ? WHERE key = 'term'", (term,))
        self.term = term

    def losses(self) -> dict[int, float]:
        """Validation losses by op, as far as they were kept."""
        found = self._db.read("SELECT op, loss FROM losses ORDER BY op")
        if not all(isinstance(op, int) and isinstance(loss, float) for op, loss in found):
            raise damaged(self._db.name, "a loss is no number")
        return dict(found)

    def keep_losses(self, losses: Mapping[int, float]) -> None:
        """Keep those that are new: no record holds them, and people ask after a restart too.

        Raises:
            StoreFull, StoreFailed: the disk.
        """
        new = losses.keys() - self._kept_losses
        if new:
            with self._transaction():
                rows = [(op, losses[op]) for op in sorted(new)]
                self._db.change_all(
                    "INSERT INTO losses VALUES (?, ?) ON CONFLICT (op)"
                    " DO UPDATE SET loss = excluded.loss",
                    rows,
                )
                self._db.change("DELETE FROM losses WHERE op < ?", (min(losses),))
            self._kept_losses = set(losses)

    def newest(self) -> tuple[int, bytes]:
        """Index and hash of the newest record, -1 and GENESIS_HASH where there is none."""
        newest = self._db.read("SELECT idx, hash FROM log ORDER BY idx DESC LIMIT 1")
        return (newest[0][0], newest[0][1]) if newest else (-1, GENESIS_HASH)

    @contextmanager
    def _continued(self) -> Iterator[None]:
        """Add records, all or none."""
        try:
            with self._transaction():
                yield
        except BaseException:
            self._newest = None
            raise

    def _insert(self, record: Record) -> Join | None:
        """Add a row; a JOIN is returned, for its invite."""
        index, digest = self._newest or self.newest()
        if record.index != index + 1 or record.prev_hash != digest:
            raise conflict(f"record {record.index} does not continue record {index}, the newest")
        kind, group, op = outline_of(record)
        try:
            self._db.change("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _log_row(record))
        except Taken as exc:
            raise conflict(f"{kind} would be a second outcome of op {op}") from exc
        if kind == _REWIND:
            # Cancelled outcomes make room for those that take their place.
            self._db.change("UPDATE log SET op = NULL WHERE grp = ? AND op > ?", (group, op))
        self._newest = record.index, record.hash
        body = body_of(record) if kind == _JOIN else None
        return body if isinstance(body, Join) else None


def checked_schema(database: Database, found: int) -> int:
    """Return the form of the tables if this version knows it; 0 where there are none."""
    if found in _EARLIER_SCHEMAS:
        raise of_earlier_version(database.name)
    if found > SCHEMA:
        raise of_later_version(database.name, found, SCHEMA)
    if found and found not in _READABLE:
        raise damaged(database.name, f"it has format {found}, this version reads {SCHEMA}")
    return found


def _term(database: Database) -> int:
    found = database.read("SELECT value FROM meta WHERE key = 'term'")
    if not found or not isinstance(found[0][0], int):
        raise damaged(database.name, "it has no term")
    return int(found[0][0])


_LogRow = tuple[int, bytes, bytes, int, str, int, int | None, bytes]


def _log_row(record: Record) -> _LogRow:
    """The row of a record in the table `log`."""
    kind, group, op = outline_of(record)
    outcome = op if kind in _OUTCOMES else None
    return (
        record.index, record.prev_hash, record.hash, record.term, kind, group, outcome,
        record.to_bytes(),
    )  # fmt: skip

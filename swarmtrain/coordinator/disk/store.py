"""The coordinator's durable memory: the decision log, invites and who was let in, in SQLite.

Every decision must be on the disk before anybody hears of it (protocol.md part 2, LOG), so an
append is one fsynced transaction that fails unless it continues exactly what is there. WAL with
synchronous=FULL survives a kill at any instant; the exclusive lock makes a second coordinator on
the same directory fail at once instead of forking the run.

It knows two things of what records mean: an op has one outcome, and a JOIN uses an invite.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swarmtrain.coordinator.disk.register import REGISTER_TABLES
from swarmtrain.coordinator.disk.store_errors import (
    StoreError,
    conflict,
    damaged,
    of_earlier_version,
    translated,
)
from swarmtrain.coordinator.disk.text_register import TEXT_TABLES, TextRegister
from swarmtrain.foundation import regular_file
from swarmtrain_transport import limits
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

_JOIN, _REWIND = tag_of(Join), tag_of(Rewind)
_OUTCOMES = tag_of(Commit), tag_of(Skip)

SCHEMA, _EARLIER_SCHEMAS = 3, (1, 2)
"""Format of tables and records; before 3 a JOIN said where a peer listens."""

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
{REGISTER_TABLES}{TEXT_TABLES}
INSERT OR IGNORE INTO meta VALUES ('schema', {SCHEMA}), ('term', 0), ('closed', 0);
"""


class Store(TextRegister):
    """One open state directory. Belongs to the thread that opened it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, term: int) -> None:
        super().__init__(connection, path)
        self.term = term
        self._kept_losses: set[int] = set()

    @classmethod
    def open(cls, directory: Path) -> "Store":
        """Open or create the store, take its lock and begin the next term.

        Raises:
            StoreLocked: another process has it open.
            StoreDamaged: not a store, or of an unknown version.
            StoreOfEarlierVersion: of an earlier one.
            StoreFull, StoreFailed: the disk.
        """
        path = directory / FILE_NAME
        with translated(path):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its side files the mode of the main one, so that is set first. One that
            # exists is not touched: closing any handle to it would drop this process's locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
        try:
            with translated(path):
                return cls(connection, path, _prepare(connection, path))
        except StoreError:
            connection.close()
            raise

    @classmethod
    def open_to_read(cls, directory: Path) -> "Store":
        """Open a store that nobody uses, without a lock, a new term or any other change.

        Raises:
            StoreLocked: a coordinator has it open.
            StoreDamaged: not a store, or of an unknown version.
            StoreOfEarlierVersion: of an earlier one.
            StoreFailed: the disk, or there is no store.
        """
        path = directory / FILE_NAME
        with translated(path):
            regular_file.check(path)
            uri = f"{path.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * limits.CONTROL_BYTES_MAX)
        try:
            with translated(path):
                return cls(connection, path, _checked(connection, path)["term"])
        except StoreError:
            connection.close()
            raise

    def close(self) -> None:
        """Fold the WAL into the file and release the lock. Closing twice is allowed."""
        with translated(self.path):
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
        rewinds = self._rewinds()
        reader, newest_hash, position = BodyReader(), GENESIS_HASH, 0
        while rows := self._page(position):
            for row in rows:
                record = self._checked_row(row, position, rewinds)
                if record.prev_hash != newest_hash:
                    raise damaged(self.path, f"record {position} does not continue the chain")
                try:
                    reader.read(record)
                except RemoteFault as exc:
                    raise damaged(self.path, f"record {position} does not decode") from exc
                newest_hash, position = record.hash, position + 1
                yield record

    def _page(self, first: int) -> list[tuple[Any, ...]]:
        query = "SELECT * FROM log WHERE idx >= ? ORDER BY idx LIMIT ?"
        with translated(self.path):
            return self._db.execute(query, (first, _READ_AT_ONCE)).fetchall()

    def _rewinds(self) -> list[tuple[int, int, int]]:
        """Index, group and op of each REWIND. One whose kind was altered is found in its place."""
        with translated(self.path):
            rows = self._db.execute("SELECT idx, bytes FROM log WHERE kind = ?", (_REWIND,))
            found = rows.fetchall()
        try:
            outlines = [(index, outline_of(record_from_bytes(data))) for index, data in found]
        except (RemoteFault, TypeError) as exc:
            raise damaged(self.path, "a REWIND does not decode") from exc
        return [(index, outline.group, outline.op) for index, outline in outlines]

    def _checked_row(
        self, row: tuple[Any, ...], position: int, rewinds: Sequence[tuple[int, int, int]]
    ) -> Record:
        """The record of a row that says of it what it says itself. An outcome that a later REWIND
        has cancelled is none any more."""
        if len(row) != _LOG_COLUMNS or not isinstance(row[-1], bytes):
            raise damaged(self.path, f"record {position} is no record")
        try:
            record = record_from_bytes(row[-1])
            kind, group, op = outline_of(record)
        except RemoteFault as exc:
            raise damaged(self.path, f"record {row[0]} does not decode") from exc
        expected = _log_row(record)
        if kind in _OUTCOMES and any(
            index > position and to_op < op and of == group for index, of, to_op in rewinds
        ):
            expected = (*expected[:6], None, expected[7])
        if record.index != position or row != expected:
            raise damaged(self.path, f"record {position} is missing or altered")
        return record

    def read(self, first: int, stop: int) -> list[Record]:
        """Records from index `first` on, before `stop`; they were checked when the log was opened.

        Raises:
            StoreError: the disk.
        """
        with translated(self.path):
            rows = self._db.execute(
                "SELECT bytes FROM log WHERE idx >= ? AND idx < ? ORDER BY idx", (first, stop)
            ).fetchall()
        return [record_from_bytes(data) for (data,) in rows]

    def append(self, record: Record) -> None:
        """Add the record in one transaction that is on the disk when this returns.

        A JOIN also counts a use of its invite, once per key, in the same transaction: a crash
        can neither lose the use nor count it twice.

        Raises:
            StoreConflict: not the expected record, another term, a second outcome of an op, or
                a JOIN by an invite without a use left.
            StoreFull, StoreFailed: the disk. The log is as it was before the call.
        """
        with self._transaction():
            if record.term != self.term:
                raise conflict(f"record {record.index} is of term {record.term}, not {self.term}")
            join = self._insert(record)
            if join is not None:
                self._admit(join)

    def adopt(self, records: Sequence[Record], term: int) -> None:
        """Take over what earlier lives decided and this disk has lost, and go on as `term`.

        Raises:
            StoreConflict: the records do not continue the log.
            StoreFull, StoreFailed: the disk. The log is as it was before the call.
        """
        with self._transaction():
            for record in records:
                join = self._insert(record)
                if join is not None and self._let_in(join):
                    # Its invite may be younger than this disk: then there is nothing to count.
                    self._db.execute(
                        "UPDATE invites SET uses = uses + 1 WHERE id = ?", (join.invite,)
                    )
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'term'", (term,))
        self.term = term

    def losses(self) -> dict[int, float]:
        """Validation losses by op, as far as they were kept."""
        with translated(self.path):
            found = self._db.execute("SELECT op, loss FROM losses ORDER BY op").fetchall()
        if not all(isinstance(op, int) and isinstance(loss, float) for op, loss in found):
            raise damaged(self.path, "a loss is no number")
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
                self._db.executemany("INSERT OR REPLACE INTO losses VALUES (?, ?)", rows)
                self._db.execute("DELETE FROM losses WHERE op < ?", (min(losses),))
            self._kept_losses = set(losses)

    def _insert(self, record: Record) -> Join | None:
        """Add a row; a JOIN is returned, for its invite."""
        newest = self._db.execute("SELECT idx, hash FROM log ORDER BY idx DESC LIMIT 1").fetchone()
        index, digest = newest or (-1, GENESIS_HASH)
        if record.index != index + 1 or record.prev_hash != digest:
            raise conflict(f"record {record.index} does not continue record {index}, the newest")
        kind, group, op = outline_of(record)
        try:
            self._db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _log_row(record))
        except sqlite3.IntegrityError as exc:
            raise conflict(f"{kind} would be a second outcome of op {op}") from exc
        if kind == _REWIND:
            # Cancelled outcomes make room for those that take their place.
            self._db.execute("UPDATE log SET op = NULL WHERE grp = ? AND op > ?", (group, op))
        body = body_of(record) if kind == _JOIN else None
        return body if isinstance(body, Join) else None


def _prepare(connection: sqlite3.Connection, path: Path) -> int:
    """Lock, check and migrate the file; returns the new term."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # On macOS fsync alone leaves the bytes in the drive's cache.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("BEGIN IMMEDIATE")
    _check_pages(connection, path)
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    term = _checked(connection, path)["term"] + 1
    connection.execute("UPDATE meta SET value = ? WHERE key = 'term'", (term,))
    connection.execute("COMMIT")
    return term


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, str(verdict))


def _checked(connection: sqlite3.Connection, path: Path) -> dict[str, int]:
    """Read the file's own description, if it is whole and of this version."""
    _check_pages(connection, path)
    tables = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
    if connection.execute(tables).fetchone():
        raise damaged(path, "it has views or triggers")  # which can compute without an end
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if meta.get("schema") in _EARLIER_SCHEMAS:
        raise of_earlier_version(path)
    if meta.get("schema") != SCHEMA or not isinstance(meta.get("term"), int):
        found = meta.get("schema")
        raise damaged(path, f"it has format {found}, this version reads {SCHEMA}")
    return meta


_LogRow = tuple[int, bytes, bytes, int, str, int, int | None, bytes]


def _log_row(record: Record) -> _LogRow:
    """The row of a record in the table `log`."""
    kind, group, op = outline_of(record)
    outcome = op if kind in _OUTCOMES else None
    return (
        record.index, record.prev_hash, record.hash, record.term, kind, group, outcome,
        record.to_bytes(),
    )  # fmt: skip

"""The narrow interface between the store and the database under it, and SQLite, the one built in.

Statements are the common part of SQLite's and PostgreSQL's SQL, with `?` for values. A database
knows its locks, its types and its errors, and nothing of what the tables mean.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from swarmtrain.coordinator.disk.store_errors import StoreError, damaged, translated
from swarmtrain.foundation import regular_file
from swarmtrain_transport import limits

Row = tuple[Any, ...]


class Taken(Exception):
    """A row with this key is there already."""


class Database(Protocol):
    """One open database, which nobody else writes to. Errors are those of `store_errors`."""

    name: str
    """Its name in messages."""

    locking: str
    """Ending of a SELECT that locks what it reads until the transaction ends."""

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows that a SELECT finds."""

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Change rows, and return how many. Taken: a key exists."""

    def change_all(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do the same change with each of several rows of values."""

    def define(self, script: str) -> None:
        """Carry out statements that make tables, in SQLite's types."""

    def schema(self) -> int:
        """Return the number of the tables' form, 0 where there are none."""

    def transaction(self) -> AbstractContextManager[None]:
        """Make what happens inside durable at its end, or nothing of it."""

    def close(self) -> None:
        """Let others have it. Closing twice is allowed."""


class SqliteDatabase:
    """A file of SQLite's, in WAL mode with full sync.

    Args:
        is_read: True to leave it as it is, without a lock.

    Raises:
        StoreLocked, StoreDamaged, StoreFull, StoreFailed
    """

    locking = ""  # BEGIN IMMEDIATE keeps all other writers out

    def __init__(self, path: Path, *, is_read: bool = False) -> None:
        self.path, self.name = path, str(path)
        with translated(path):
            self.connection = _opened_to_read(path) if is_read else _opened(path)
        try:
            with translated(path):
                if not is_read:
                    self._lock()
                self._check()
        except StoreError:
            self.connection.close()
            raise

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows that a SELECT finds."""
        with translated(self.path):
            return self.connection.execute(statement, values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Change rows, and return how many."""
        with translated(self.path):
            try:
                return self.connection.execute(statement, values).rowcount
            except sqlite3.IntegrityError as exc:
                raise Taken from exc

    def change_all(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do the same change with each of several rows of values."""
        with translated(self.path):
            self.connection.executemany(statement, rows)

    def define(self, script: str) -> None:
        """Carry out statements that make tables."""
        for statement in script.split(";"):
            self.change(statement)

    def schema(self) -> int:
        """Return the number of the tables' form, 0 where there are none."""
        if not self.read("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
            return 0
        found = self.read("SELECT value FROM meta WHERE key = 'schema'")
        return int(found[0][0]) if found else 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what happens inside durable at its end, or nothing of it."""
        with translated(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                # After some faults SQLite has rolled back by itself.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Fold the WAL into the file and release the lock."""
        with translated(self.path):
            self.connection.close()

    def _lock(self) -> None:
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self.connection.execute(f"PRAGMA {setting}")
        # On macOS fsync alone leaves the bytes in the drive's cache.
        self.connection.execute("PRAGMA fullfsync = ON")
        self.connection.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
        self.connection.execute("COMMIT")

    def _check(self) -> None:
        """Refuse a file whose pages are damaged, or that is more than tables."""
        (verdict,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(self.path, str(verdict))
        foreign = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
        if self.connection.execute(foreign).fetchone():
            raise damaged(self.path, "it has views or triggers")  # which can compute without an end


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its side files the mode of the main one, so that is set first. One that exists is
    # not touched: closing any handle to it would drop this process's locks.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


def _opened_to_read(path: Path) -> sqlite3.Connection:
    regular_file.check(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * limits.CONTROL_BYTES_MAX)
    return connection

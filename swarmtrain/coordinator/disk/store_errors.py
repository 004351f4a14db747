"""Errors of the coordinator's durable memory, and SQLite's errors as these."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmtrain.foundation.errors import UserError, disk_full, earlier_version

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StoreError(UserError):
    """Root of the store's errors. After one of `append`, nothing of that record is kept."""


class StoreFull(StoreError):
    """The disk (or the quota) has no room for the record."""


class StoreLocked(StoreError):
    """Another coordinator has this state directory open."""


class StoreConflict(StoreError):
    """The record does not continue the log: a decision would have been made twice. A bug."""


class StoreDamaged(StoreError):
    """The file on the disk is not an unbroken log of this version."""


class StoreOfEarlierVersion(StoreError):
    """The log is whole, in a form that this version does not read."""


class StoreOfLaterVersion(StoreError):
    """A later version has written the log."""


class StoreLost(StoreError):
    """The database does not answer, or another coordinator leads now. The log is whole, and goes on
    with whoever leads next."""


class StoreFailed(StoreError):
    """The disk refused to read or write, for another reason than space."""


def conflict(detail: str) -> StoreConflict:
    """A record that does not continue the log."""
    return StoreConflict(
        "SWT-E901",
        f"The log refused a decision: {detail}.",
        "Nothing was written and nothing was sent; the log on the disk is whole.",
    )


def damaged(log: Path | str, detail: str) -> StoreDamaged:
    """The file is not a log, or not a whole one, or not this run's."""
    return StoreDamaged(
        "SWT-E805",
        f"{log} is damaged: {detail}.",
        "The run cannot go on from it. Peers still hold the weights.",
        "Bring back a copy of it. Or move it away (ledger.sqlite* of the state directory; in a"
        " database, empty the run's table log) and start again: the run then goes on from the copy"
        " of the log that a peer keeps.",
    )


def of_earlier_version(log: str) -> StoreOfEarlierVersion:
    """An earlier version has written the log."""
    return StoreOfEarlierVersion(*earlier_version(log).args)


def of_later_version(log: str, found: int, known: int) -> StoreOfLaterVersion:
    """A later version has written the log."""
    return StoreOfLaterVersion(
        "SWT-E703",
        f"{log} was written by a later version of swarmtrain.",
        f"Its tables have form {found}; this version knows forms up to {known}, and has changed\n"
        "nothing.",
        "Update swarmtrain on this machine.",
    )


def deposed(log: str, term: int) -> StoreLost:
    """A later life of the coordinator has begun."""
    return StoreLost(
        "SWT-E412",
        f"Another coordinator leads the run in {log}: term {term} has begun.",
        "This one decides nothing any more, and nothing of it was written.",
        "Leave it running: it stands by, and takes over when the other one is gone.",
    )


def not_reached(database: str, reason: str) -> StoreLost:
    """Nobody answers where a database should be."""
    return StoreLost(
        "SWT-E413",
        f"{database} cannot be used: {reason}.",
        "Without it the coordinator can decide nothing that lasts. Nothing was changed.",
        "Check the address after --store, that the server runs and lets this machine in, and the\n"
        "password (in ~/.pgpass or PGPASSWORD rather than in the address).",
    )


def lost(database: str, reason: str) -> StoreLost:
    """A database does not answer any more, or cannot write for now."""
    return StoreLost(
        "SWT-E413",
        f"The connection to {database} was lost: {reason}.",
        "What was confirmed is there. The run waits.",
        "Bring the database back; the run goes on by itself.",
    )


def database_failed(database: str, reason: str) -> StoreFailed:
    """A database refuses for a reason that waiting does not change."""
    return StoreFailed(
        "SWT-E414",
        f"{database} refuses: {reason}.",
        "A decision that cannot be made durable is not made. What was complete is intact.",
        "Give the user of --store the right to make a schema there, or name another database.",
    )


def _full(path: Path) -> StoreFull:
    return StoreFull(*disk_full(str(path), at_coordinator=True).args)


def locked(directory: Path) -> StoreLocked:
    """Another coordinator has a state directory."""
    return StoreLocked(
        "SWT-E404",
        f"{directory} is in use by another coordinator.",
        "Two coordinators on one log would decide twice, so only one may have it.",
        "Stop the other one, or name another directory with --state-dir.",
    )


def _failed(path: Path, detail: str) -> StoreFailed:
    return StoreFailed(
        "SWT-E403",
        f"{path} cannot be read or written: {detail}.",
        "A decision that cannot be made durable is not made. What was complete is intact.",
        "Check the disk and the rights of the directory, or name another with --state-dir.",
    )


_DAMAGES = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG
)  # fmt: skip


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as this module's, once, here."""
    try:
        yield
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise _full(path) from exc
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise locked(path.parent) from exc
        if code in _DAMAGES:
            raise damaged(path, str(exc)) from exc
        raise _failed(path, str(exc)) from exc
    except UnicodeDecodeError as exc:
        # A text of the file, or one with which SQLite says what is wrong with it.
        raise damaged(path, "a text in it is not UTF-8") from exc
    except OSError as exc:
        if exc.errno in _NO_SPACE:
            raise _full(path) from exc
        raise _failed(path, exc.strerror or str(exc)) from exc

"""The store's tables in PostgreSQL, for coordinators on several machines of which one leads.

Whoever holds the run's advisory lock leads. The server itself takes the lock back from a leader
that is gone, or says nothing for `SILENT_S`, as it ends that session; so no clock of ours decides.
A leader that wakes up after that finds its session closed, and each write checks its term besides.
A call that gets no answer for `ANSWER_S` is cut off, as a loop that waits for it hears no peer.

A run has a schema of its own in the database, so several runs may share one. Sessions must be the
server's own: a pooler that hands out another one for each transaction would lose the lock.
"""

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors, sql

from swarmtrain.coordinator.disk.database import Row, Taken
from swarmtrain.coordinator.disk.store_errors import (
    StoreError,
    database_failed,
    lost,
    not_reached,
)

VERSION_MIN = 14_00_00
"""The first with `idle_session_timeout`."""

CONNECT_S = 5
ANSWER_S = 5.0
"""Longest wait for an answer: a full sync of a slow disk takes a tenth of it."""

SILENT_S = 6
"""Silence after which the server ends a session: several times `HOLD_S`, and more than ANSWER_S."""

HOLD_S = 1.0
"""Pause between two signs of life of a leader."""

_NAME_BYTES_MAX = 63
"""PostgreSQL cuts longer names off without a word."""

_TYPES = ((" STRICT", ""), ("BLOB", "BYTEA"), ("INTEGER", "BIGINT"), ("REAL", "DOUBLE PRECISION"))

_SETTINGS = (
    f"SET idle_session_timeout = '{SILENT_S}s'",
    f"SET idle_in_transaction_session_timeout = '{SILENT_S}s'",
    f"SET statement_timeout = '{int(ANSWER_S * 1000)}ms'",
    f"SET lock_timeout = '{int(ANSWER_S * 1000)}ms'",
    # A replica's stricter setting stays; a laxer one than our own disk would be is raised.
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')",
)


class PostgresDatabase:
    """A session with the tables of one run. It belongs to the thread that opened it.

    Args:
        url: `postgresql://...`, as libpq reads it.
        run: name of the run, whose schema is found or made by whoever leads.

    Raises:
        StoreLost: SWT-E413, nobody answers there.
        StoreFailed: SWT-E414, the server refuses.
    """

    locking = " FOR UPDATE"

    def __init__(self, url: str, run: str) -> None:
        _check_address(url)
        self._schema = _schema_of(run)
        self.name = f"run {run} in {shown(url)}"
        self._busy_since: float | None = None
        self._is_closed = threading.Event()
        try:
            self._session: psycopg.Connection[Row] = psycopg.connect(
                url, autocommit=True, client_encoding="UTF8", connect_timeout=CONNECT_S,
                keepalives_idle=2, keepalives_interval=1, keepalives_count=3,
                tcp_user_timeout=int(ANSWER_S * 1000),
                application_name=f"swarmtrain {run}"[:_NAME_BYTES_MAX],
            )  # fmt: skip
        except psycopg.Error as exc:
            raise not_reached(shown(url), _reason(exc)) from None  # the URL holds a password
        threading.Thread(target=self._watch, name="database-watch", daemon=True).start()
        try:
            if self._session.info.server_version < VERSION_MIN:
                found = self._session.info.server_version // 10_000
                raise database_failed(self.name, f"it is PostgreSQL {found}, 14 or later is needed")
            with self._answered():
                for setting in _SETTINGS:
                    self._session.execute(setting)
                path = sql.SQL("SET search_path = {}").format(sql.Identifier(self._schema))
                self._session.execute(path)
        except StoreError:
            self.close()
            raise

    def leads(self) -> bool:
        """Take the run's lock if nobody has it; return True if it is held from now on.

        Raises:
            StoreLost, StoreFailed
        """
        ((is_held,),) = self.read("SELECT pg_try_advisory_lock(?)", (_lock_of(self._schema),))
        if is_held:
            with self._answered():
                make = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}")
                self._session.execute(make.format(sql.Identifier(self._schema)))
        return bool(is_held)

    def set_aside(self) -> str:
        """Give the schema of a run another name, and return that, "" where it has no tables. The
        lock must be held."""
        exists = "SELECT 1 FROM information_schema.schemata WHERE schema_name = ?"
        if not self.schema():
            return ""
        number = 1
        while self.read(exists, (name := _fitting(f"{self._schema} before {number}"),)):
            number += 1
        rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
        with self._answered():
            old, new = sql.Identifier(self._schema), sql.Identifier(name)
            self._session.execute(rename.format(old, new))
        return name

    def warning(self) -> str:
        """Say what makes this server forget what it has confirmed, "" if nothing does."""
        off = self.read(
            "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes')"
            " AND setting = 'off'"
        )
        names = ", ".join(name for (name,) in off)
        return (
            f"The database server has {names} off: a power cut may cost decisions." if off else ""
        )

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows that a SELECT finds."""
        with self._answered():
            return self._session.execute(_ours(statement), values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Change rows, and return how many."""
        with self._answered():
            try:
                return self._session.execute(_ours(statement), values).rowcount
            except errors.UniqueViolation as exc:
                raise Taken from exc

    def change_all(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do the same change with each of several rows of values."""
        with self._answered(), self._session.cursor() as cursor:
            cursor.executemany(_ours(statement), rows)

    def define(self, script: str) -> None:
        """Carry out statements that make tables."""
        for theirs, own in _TYPES:
            script = script.replace(theirs, own)
        with self._answered():
            self._session.execute(script.encode())

    def schema(self) -> int:
        """Return the number of the tables' form, 0 where there are none."""
        if not self.read("SELECT 1 WHERE to_regclass('meta') IS NOT NULL"):
            return 0
        found = self.read("SELECT value FROM meta WHERE key = 'schema'")
        return int(found[0][0]) if found else 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what happens inside durable at its end, or nothing of it. After StoreLost at the end
        it may be either; whoever leads next reads which."""
        with self._answered(), self._session.transaction():
            yield

    def hold(self) -> None:
        """Give a sign of life, without which the server takes the lock back.

        Raises:
            StoreLost: it has.
        """
        self.read("SELECT 1")

    def close(self) -> None:
        """End the session, and the lock with it."""
        self._is_closed.set()
        with contextlib.suppress(psycopg.Error):
            self._session.close()

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """A call that ends, with errors of the store."""
        is_outer, self._busy_since = self._busy_since is None, time.monotonic()
        try:
            yield
        except psycopg.Error as exc:
            is_waited_for = isinstance(
                exc, psycopg.OperationalError | errors.ReadOnlySqlTransaction
            )
            error = lost if is_waited_for or self._session.closed else database_failed
            raise error(self.name, _reason(exc)) from exc
        finally:
            if is_outer:
                self._busy_since = None

    def _watch(self) -> None:
        """Cut a connection off that gives no answer. The one thing done beside the own thread."""
        while not self._is_closed.wait(ANSWER_S / 10):
            since = self._busy_since
            if since is not None and time.monotonic() - since > ANSWER_S + 0.5:
                with contextlib.suppress(OSError, psycopg.Error):
                    handle = os.dup(self._session.fileno())
                    with socket.socket(fileno=handle) as line:
                        line.shutdown(socket.SHUT_RDWR)


def _check_address(url: str) -> None:
    """Refuse an address that libpq cannot read, or takes apart at another place than was meant: its
    own words would show what may be a password."""
    try:
        host = str(psycopg.conninfo.conninfo_to_dict(url).get("host") or "")
    except psycopg.Error:
        host = "@"
    if "@" in host:
        raise not_reached(
            "The database",
            "its address cannot be read. In user and password anything but letters, digits and"
            " -._~ is written as %XX, a @ as %40",
        )


def shown(url: str) -> str:
    """Return the address of a database as messages show it, without user and password."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    host, name = parts.get("host") or "this machine", parts.get("dbname") or "its default database"
    return f"PostgreSQL {name} at {host}"


def _ours(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _reason(error: psycopg.Error) -> str:
    """The first line of the server's own words."""
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    return said.splitlines()[0][:300].rstrip(".")


def _schema_of(run: str) -> str:
    return _fitting(f"swarmtrain {run}")


def _fitting(name: str) -> str:
    if len(name) <= _NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _NAME_BYTES_MAX - 17]} {digest}"


def _lock_of(schema: str) -> int:
    digest = hashlib.sha256(b"swarmtrain lock 1:" + schema.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)

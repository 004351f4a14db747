"""Tables for coordinators that share a database: the run's keys, sealed, and who stands by.

A store of one machine keeps its keys in files beside it (`certificate`) and has nobody else.
"""

from swarmtrain.coordinator.disk.text_register import TextRegister

SHARED_TABLES = """
CREATE TABLE IF NOT EXISTS sealed_keys (name TEXT PRIMARY KEY, sealed BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS coordinators (
    host TEXT NOT NULL, port INTEGER NOT NULL, seen_at REAL NOT NULL,
    PRIMARY KEY (host, port)) STRICT
"""

COORDINATORS_MAX = 4
"""Addresses that an invite carries: a few lines of text at most."""

AWAY_S = 7 * 86_400.0
"""A coordinator that was not seen for so long is in no invite any more."""


class SharedRegister(TextRegister):
    """The tables of one open store that coordinators share."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._db.name

    def sealed_key(self, name: str) -> bytes | None:
        """Return the sealed bytes of a key, None where there is none."""
        rows = self._db.read("SELECT sealed FROM sealed_keys WHERE name = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    def keep_key(self, name: str, sealed: bytes) -> None:
        """Keep a key's sealed bytes, durably. One that exists is not replaced."""
        with self._transaction():
            self._db.change(
                "INSERT INTO sealed_keys VALUES (?, ?) ON CONFLICT DO NOTHING", (name, sealed)
            )

    def replace_key(self, name: str, new_name: str, sealed: bytes) -> None:
        """Keep sealed bytes of a key under another name in place of the first, durably."""
        with self._transaction():
            self._db.change("DELETE FROM sealed_keys WHERE name = ?", (name,))
            self._db.change("INSERT INTO sealed_keys VALUES (?, ?)", (new_name, sealed))

    def coordinators(self, wall_s: float) -> list[tuple[str, int]]:
        """Return addresses of coordinators that were seen lately, the newest first."""
        rows = self._db.read(
            "SELECT host, port FROM coordinators WHERE seen_at > ? ORDER BY seen_at DESC LIMIT ?",
            (wall_s - AWAY_S, COORDINATORS_MAX),
        )
        return [(host, port) for host, port in rows]

    def note_coordinator(self, host: str, port: int, wall_s: float) -> None:
        """Note that peers find a coordinator there: this one, or one that stands by."""
        with self._db.transaction():
            self._db.change(
                "INSERT INTO coordinators VALUES (?, ?, ?)"
                " ON CONFLICT (host, port) DO UPDATE SET seen_at = excluded.seen_at",
                (host, port, wall_s),
            )

"""The name of the run's text, and how often each piece was used: kept beside the log.

Nothing of it is a decision that peers must know of, so it is in no record; yet a coordinator that
comes back must know the text again, and go on where the pass was.
"""

from collections.abc import Mapping

from swarmtrain.coordinator.disk.register import Register
from swarmtrain.coordinator.disk.store_errors import translated

TEXT_TABLES = """
CREATE TABLE IF NOT EXISTS text (manifest BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS uses (piece BLOB PRIMARY KEY, uses INTEGER NOT NULL) STRICT;
"""


class TextRegister(Register):
    """The text's tables of one open store."""

    def text_manifest(self) -> bytes | None:
        """SHA-256 of the manifest of the run's text, None before there was one."""
        with translated(self.path):
            row = self._db.execute("SELECT manifest FROM text").fetchone()
        return bytes(row[0]) if row else None

    def begin_text(self, manifest: bytes) -> None:
        """Take this text for the run's, none of it used.

        Raises:
            StoreFull, StoreFailed: the disk.
        """
        with self._transaction():
            self._db.execute("DELETE FROM text")
            self._db.execute("DELETE FROM uses")
            self._db.execute("INSERT INTO text VALUES (?)", (manifest,))

    def text_uses(self) -> dict[bytes, int]:
        """Number of uses of each piece that was used."""
        with translated(self.path):
            return dict(self._db.execute("SELECT piece, uses FROM uses").fetchall())

    def keep_uses(self, uses: Mapping[bytes, int]) -> None:
        """Note how often these pieces were used by now.

        Raises:
            StoreFull, StoreFailed: the disk.
        """
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?)", [*uses.items()])

"""The name of the run's text, and how often each piece was used: kept beside the log.

Nothing of it is a decision that peers must know of, so it is in no record; yet a coordinator that
comes back must know the text again, and go on where the pass was.
"""

from collections.abc import Mapping

from swarmtrain.coordinator.disk.register import Register

TEXT_TABLES = """
CREATE TABLE IF NOT EXISTS text (manifest BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS uses (piece BLOB PRIMARY KEY, uses INTEGER NOT NULL) STRICT;
"""


class TextRegister(Register):
    """The text's tables of one open store."""

    def text_manifest(self) -> bytes | None:
        """SHA-256 of the manifest of the run's text, None before there was one."""
        rows = self._db.read("SELECT manifest FROM text")
        return bytes(rows[0][0]) if rows else None

    def begin_text(self, manifest: bytes) -> None:
        """Take this text for the run's, none of it used.

        Raises:
            StoreFull, StoreFailed: the disk.
        """
        with self._transaction():
            self._db.change("DELETE FROM text")
            self._db.change("DELETE FROM uses")
            self._db.change("INSERT INTO text VALUES (?)", (manifest,))

    def text_uses(self) -> dict[bytes, int]:
        """Number of uses of each piece that was used."""
        return dict(self._db.read("SELECT piece, uses FROM uses"))

    def keep_uses(self, uses: Mapping[bytes, int]) -> None:
        """Note how often these pieces were used by now.

        Raises:
            StoreFull, StoreFailed: the disk.
        """
        with self._transaction():
            self._db.change_all(
                "INSERT INTO uses VALUES (?, ?)"
                " ON CONFLICT (piece) DO UPDATE SET uses = excluded.uses",
                [*uses.items()],
            )

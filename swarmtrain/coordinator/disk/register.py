"""Data that the coordinator keeps beside its log: invites, who was let in, and the text's uses; and
in a database that coordinators share the run's keys, sealed, and who stands by.

Nothing of it is a decision that peers must know of, so it is in no record: the names of invites,
the organiser's words for a ban, and hashes of secrets never leave this machine. Yet a coordinator
that comes back must know the text again, and go on where the pass was. A store of one machine keeps
its keys in files beside it (`certificate`) and has nobody else.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from swarmtrain.coordinator.disk.database import Database, Taken
from swarmtrain.coordinator.disk.store_errors import conflict, deposed
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Join

REGISTER_TABLES = """
CREATE TABLE IF NOT EXISTS invites (
    id TEXT PRIMARY KEY, secret_hash BLOB NOT NULL UNIQUE, uses INTEGER NOT NULL,
    uses_max INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL,
    revoked INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS admitted (peer_id BLOB PRIMARY KEY, invite_id TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS invite_names (id TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS invite_roles (id TEXT PRIMARY KEY, role TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS bans (peer_id BLOB PRIMARY KEY, reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS text (manifest BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS uses (piece BLOB PRIMARY KEY, uses INTEGER NOT NULL) STRICT;
"""

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

_INVITES = (
    "SELECT invites.*, coalesce(name, ''), coalesce(role, '') FROM invites"
    " LEFT JOIN invite_names USING (id) LEFT JOIN invite_roles USING (id)"
)


@dataclass(frozen=True, slots=True)
class InviteRow:
    """One invite as stored: never its secret, only the secret's SHA-256.

    Attributes:
        uses_max: 0 for no limit.
        created_at: seconds since 1970.
        expires_at: seconds since 1970; 0 for never.
        name: the organiser's word for it; it never leaves this machine.
        role: "" for one that lets peers in; else what it opens instead.
    """

    invite_id: str
    secret_hash: bytes
    uses: int
    uses_max: int
    created_at: float
    expires_at: float
    revoked: bool
    name: str = ""
    role: str = ""

    def is_used_up(self, promised: int = 0) -> bool:
        """Return True if no new peer may come in with it after `promised` more have."""
        return 0 < self.uses_max <= self.uses + promised

    def has_expired(self, wall_s: float) -> bool:
        """Return True if its time is over at `wall_s` (seconds since 1970)."""
        return 0 < self.expires_at <= wall_s


class Register:
    """The tables of one open store. It belongs to the thread that opened it.

    Args:
        term: the life of the coordinator that writes; no other one's writes are taken.
    """

    def __init__(self, database: Database, term: int) -> None:
        self._db = database
        self.term = term

    def _let_in(self, join: Join) -> bool:
        """Note that the key is let in; return True if it is new."""
        statement = "INSERT INTO admitted VALUES (?, ?) ON CONFLICT DO NOTHING"
        return bool(self._db.change(statement, (join.peer, join.invite)))

    def _admit(self, join: Join) -> None:
        if not self._let_in(join) or not join.invite:
            return
        counted = self._db.change(
            "UPDATE invites SET uses = uses + 1"
            " WHERE id = ? AND revoked = 0 AND (uses_max = 0 OR uses < uses_max)",
            (join.invite,),
        )
        if not counted:
            raise conflict(f"invite {join.invite} has no use left")

    def is_admitted(self, peer: PeerId) -> bool:
        """Return True if this key was let in once; it needs no invite again."""
        return bool(self._db.read("SELECT 1 FROM admitted WHERE peer_id = ?", (peer,)))

    def add_invite(self, row: InviteRow) -> None:
        """Keep a new invite, durably.

        Raises:
            StoreConflict: one with this id or secret exists.
        """
        with self._transaction():
            try:
                self._db.change(
                    "INSERT INTO invites VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (row.invite_id, row.secret_hash, row.uses, row.uses_max, row.created_at,
                     row.expires_at, int(row.revoked)),
                )  # fmt: skip
            except Taken as exc:
                raise conflict(f"invite {row.invite_id} exists already") from exc
            if row.name:
                self._db.change("INSERT INTO invite_names VALUES (?, ?)", (row.invite_id, row.name))
            if row.role:
                self._db.change("INSERT INTO invite_roles VALUES (?, ?)", (row.invite_id, row.role))

    def invites(self) -> tuple[InviteRow, ...]:
        """All invites, oldest first."""
        rows = self._db.read(f"{_INVITES} ORDER BY created_at, invites.id")
        return tuple(_invite_row(row) for row in rows)

    def invite(self, invite_id: str) -> InviteRow | None:
        """The invite of this id, if there is one."""
        rows = self._db.read(f"{_INVITES} WHERE invites.id = ?", (invite_id,))
        return _invite_row(rows[0]) if rows else None

    def invite_of_secret(self, secret_hash: bytes) -> InviteRow | None:
        """The invite whose secret has this SHA-256, if there is one."""
        rows = self._db.read(f"{_INVITES} WHERE secret_hash = ?", (secret_hash,))
        return _invite_row(rows[0]) if rows else None

    def revoke_invite(self, invite_id: str, *, with_members: bool = False) -> bool:
        """Let nobody new in with it. False when it is unknown.

        Args:
            with_members: True if who came with it needs a new invite; else these come back as ever.
        """
        with self._transaction():
            known = self._db.change("UPDATE invites SET revoked = 1 WHERE id = ?", (invite_id,))
            if with_members:
                self._db.change("DELETE FROM admitted WHERE invite_id = ?", (invite_id,))
            return known > 0

    def admitted_by(self, invite_id: str) -> tuple[PeerId, ...]:
        """Keys that this invite has let in."""
        rows = self._db.read(
            "SELECT peer_id FROM admitted WHERE invite_id = ? ORDER BY peer_id", (invite_id,)
        )
        return tuple(peer for (peer,) in rows)

    @property
    def is_closed(self) -> bool:
        """True if no new peer is let in, whatever invite it has."""
        ((value,),) = self._db.read("SELECT value FROM meta WHERE key = 'closed'")
        return bool(value)

    def close_door(self, *, closed: bool) -> None:
        """Let nobody new in, or anybody with an invite again; durably."""
        with self._transaction():
            self._db.change("UPDATE meta SET value = ? WHERE key = 'closed'", (int(closed),))

    def ban_reason(self, peer: PeerId) -> str:
        """The organiser's words for a ban, "" where there are none. The ban itself is a record."""
        rows = self._db.read("SELECT reason FROM bans WHERE peer_id = ?", (peer,))
        return str(rows[0][0]) if rows else ""

    def note_ban(self, peer: PeerId, reason: str) -> None:
        """Keep the words for a ban, durably, in place of earlier ones."""
        with self._transaction():
            self._db.change(
                "INSERT INTO bans VALUES (?, ?)"
                " ON CONFLICT (peer_id) DO UPDATE SET reason = excluded.reason",
                (peer, reason),
            )

    # ---- the text

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

    # ---- coordinators that share a database

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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all or nothing, if no later life of the coordinator has begun.

        Raises:
            StoreLost: one has.
        """
        with self._db.transaction():
            # The row stays locked until the end, so that no other life begins in between.
            query = f"SELECT value FROM meta WHERE key = 'term'{self._db.locking}"
            ((term,),) = self._db.read(query)
            if term != self.term:
                raise deposed(self._db.name, term)
            yield


def _invite_row(row: tuple[str, bytes, int, int, float, float, int, str, str]) -> InviteRow:
    return InviteRow(*row[:6], revoked=bool(row[6]), name=row[7], role=row[8])

"""Judgement of viewers: a viewing link shows the run, or the run file lets everybody look.

A viewing link is an invite of the role `observer`: it lets nobody in as a peer, and an invite of a
peer opens no page. Its secret stands in the fragment of the page's address, which browsers send to
nobody; the page exchanges it for a cookie. The cookie names the link and a number of the viewer's
own, under a key of the run: so a withdrawn or expired link closes all pages that came with it, and
a restarted coordinator knows its viewers.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable

from swarmtrain.coordinator.disk.certificate import SECRET_BYTES, RunKeys
from swarmtrain.coordinator.disk.register import InviteRow
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.admission import add_invite

OBSERVER = "observer"
"""The role of an invite that shows the run and lets nobody in."""

_NUMBER_BYTES = 16
_PUBLIC = "public"
_LABEL = b"swarmtrain viewers 1"
_COOKIE_CHARS_MAX = 160


class Viewers:
    """Judges links and cookies.

    Args:
        is_public: True if everybody may look.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self, store: Store, keys: RunKeys, *, is_public: bool, wall_clock: Callable[[], float]
    ) -> None:
        self.is_public = is_public
        self._store, self._wall_clock = store, wall_clock
        self._key = hmac.digest(keys.run_key.private_bytes_raw(), _LABEL, "sha256")

    def enter(self, secret: str, address: str, now_s: float) -> str | None:
        """Return a cookie for a viewing link's secret, None for one that opens nothing now.

        Args:
            secret: hex digits of the link, "" for none.
            address: the viewer's IP address.
            now_s: monotonic seconds.
        """
        if self.is_public and not secret:
            return self._cookie(_PUBLIC)
        try:
            data = bytes.fromhex(secret) if len(secret) == 2 * SECRET_BYTES else b""
        except ValueError:
            data = b""
        # Behind a proxy all have its address, so tries are not counted: of 128 bits no number of
        # them is enough, and each costs a connection at the door.
        row = self._store.invite_of_secret(hashlib.sha256(data).digest()) if data else None
        return self._cookie(row.invite_id) if row is not None and self._is_open(row) else None

    def judge(self, cookie: str) -> bytes | None:
        """Return the viewer's id, 32 bytes, None for whom a cookie shows nothing."""
        if not cookie.isascii():
            return None
        number, _, rest = cookie[:_COOKIE_CHARS_MAX].partition(".")
        invite_id, _, seal = rest.partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(number, invite_id).encode()):
            return None
        if invite_id == _PUBLIC:
            is_open = self.is_public
        else:
            row = self._store.invite(invite_id)
            is_open = row is not None and self._is_open(row)
        return hashlib.sha256(cookie.encode()).digest() if is_open else None

    def _is_open(self, row: InviteRow) -> bool:
        is_over = row.revoked or row.has_expired(self._wall_clock())
        return row.role == OBSERVER and not is_over

    def _cookie(self, invite_id: str) -> str:
        number = secrets.token_hex(_NUMBER_BYTES)
        return f"{number}.{invite_id}.{self._seal(number, invite_id)}"

    def _seal(self, number: str, invite_id: str) -> str:
        return hmac.digest(self._key, f"{number}.{invite_id}".encode(), "sha256").hex()


def page_link(host: str, port: int, secret: str) -> str:
    """The address of the page, the secret in its fragment."""
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{port}/" + (f"#{secret}" if secret else "")


def standing_link(store: Store, keys: RunKeys, wall_s: float) -> bytes:
    """Secret of the run's own viewing link: the same after a restart, until it was withdrawn."""
    number = 0
    while True:
        secret = keys.viewing_secret(number)
        row = store.invite_of_secret(hashlib.sha256(secret).digest())
        if row is None:
            add_invite(
                store, secret, uses_max=0, expires_at=0.0, wall_s=wall_s, role=OBSERVER,
                name=f"page {number}" if number else "page",
            )  # fmt: skip
            return secret
        if not row.revoked:
            return secret
        number += 1

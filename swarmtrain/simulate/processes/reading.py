"""Text in a simulated world: the production accounting over pieces that hold nothing.

A peer's walk and the coordinator's leases are those of real runs; only the text is pretended, and
the time that a piece takes on its way.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.data.walk import Walk
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased, LeaseGrant, LeaseRequest

CONTEXT = 4
PIECE_TOKENS = 23
WINDOWS = (PIECE_TOKENS - 1) // CONTEXT
"""Windows of every piece."""

_LEASE_PIECES = 3
_BATCH = 4
_FETCH_S = 0.05


class PretendedText:
    """Pieces that differ, and say nothing.

    Args:
        pieces: number of pieces.
    """

    manifest_hash = ""
    validation: tuple[str, ...] = ()

    def __init__(self, pieces: int) -> None:
        self.train = tuple(hashlib.sha256(b"piece %d" % n).hexdigest() for n in range(pieces))

    def piece(self, piece_hash: str) -> bytes:
        """Return as many bytes as a piece has tokens."""
        return bytes(PIECE_TOKENS)


def service_of(
    pieces: int, seed: int, uses: Mapping[bytes, int], keep: Callable[[Mapping[bytes, int]], None]
) -> CorpusService | None:
    """Return the coordinator's part in a world with text, from what its disk holds."""
    if not pieces:
        return None
    return CorpusService(
        PretendedText(pieces), seed=seed % 2**31, lease_pieces_max=_LEASE_PIECES, uses=uses,
        keep=keep,
    )  # fmt: skip


class ReadWatch(Protocol):
    """Looks on at what peers read."""

    def read(self, peer: PeerId, boot: bytes, leased: Leased, first: int) -> None:
        """A process has read the window of a piece that begins at this token."""


class Reading:
    """Reading of one process.

    Args:
        peer: key of the peer.
        boot: boot of the process.
        send: says something to the coordinator.
        later: does something in so many seconds, if the process still lives.
        watch: looks on.
    """

    def __init__(
        self,
        peer: PeerId,
        boot: bytes,
        send: Callable[[LeaseRequest], None],
        later: Callable[[float, Callable[[], object]], None],
        watch: ReadWatch,
    ) -> None:
        self._peer, self._boot = peer, boot
        self._send, self._later, self._watch = send, later, watch
        self._walk = Walk(CONTEXT, random.Random(boot))
        self._turns: dict[bytes, int] = {}

    def ask(self) -> None:
        """Ask for text, as after every WELCOME."""
        self._send(self._walk.ask(_LEASE_PIECES))

    def leave(self) -> None:
        """Say what was read, before the goodbye."""
        self._send(self._walk.finish())

    def granted(self, grant: LeaseGrant) -> None:
        """Fetch what was granted, and go on with it."""
        self._later(_FETCH_S, lambda: self._hold(grant))

    def _hold(self, grant: LeaseGrant) -> None:
        self._turns = dict(grant.train)
        self._walk.hold(grant.train, dict.fromkeys(self._turns, PIECE_TOKENS))

    def step(self) -> None:
        """Read the windows of one inner step."""
        if not self._turns:
            return
        for piece, first in self._walk.next(_BATCH):
            self._watch.read(self._peer, self._boot, Leased(piece, self._turns[piece]), first)
        if self._walk.wants_more:
            self.ask()

"""Leases of text: which peer trains on which pieces, and the pieces themselves.

Pieces that fewest peers hold go first, then those leased least often, then in an order drawn from
the run's seed: all text is seen before any is seen twice, and two peers share a piece only when
there are more requests than pieces. Leases are no state of the run: a restart forgets them, and a
peer asks again.
"""

import hashlib
import heapq
import logging
import random
from collections.abc import Mapping
from typing import Protocol

import msgspec

from swarmtrain.control_lane import pack_piece
from swarmtrain.coordinator.initial import Initial
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import LeaseGrant, Ready

logger = logging.getLogger(__name__)

_Entry = tuple[int, int, int, bytes]

_STALE_MAX = 4
"""The heap is made anew when it holds so many entries per piece: one is true, the others are old.
Making it takes as long as the requests that brought it there."""


class Text(Protocol):
    """A text cut into pieces: `swarmtrain.data.corpus.Corpus`, `swarmtrain.data.stored`."""

    @property
    def train(self) -> tuple[str, ...]:
        """Hex SHA-256 of each training piece."""

    @property
    def validation(self) -> tuple[str, ...]:
        """Hex SHA-256 of each validation piece."""

    @property
    def manifest_hash(self) -> str:
        """Hex SHA-256 of what names all pieces."""

    def piece(self, piece_hash: str) -> bytes:
        """The bytes of one piece; KeyError if there is none of that hash."""


class CorpusService:
    """Grants and takes back leases of one text; None leaves every peer to its own text.

    Args:
        seed: of the order among equals.
        lease_pieces_max: pieces that one peer holds at most.
        piece_samples: training windows in one piece, 0 if it is not known what a sample is.
        tokenizer: the file that makes tokens of text, which members get by its hash; or empty.
        initial: the weights that the run begins with, if it begins with any.
    """

    def __init__(
        self,
        text: Text | None,
        *,
        seed: int,
        lease_pieces_max: int,
        piece_samples: int = 0,
        tokenizer: bytes = b"",
        initial: Initial | None = None,
    ) -> None:
        self._initial = initial
        self._tokenizer = tokenizer
        self._tokenizer_hash = hashlib.sha256(tokenizer).digest() if tokenizer else b""
        self._text = text
        self._lease_pieces_max = lease_pieces_max
        self._piece_samples = piece_samples if text is not None else 0
        # Equal pieces are one piece.
        self._train = tuple(dict.fromkeys(map(bytes.fromhex, text.train))) if text else ()
        self._validation = tuple(map(bytes.fromhex, text.validation)) if text else ()
        order = list(range(len(self._train)))
        random.Random(seed).shuffle(order)
        self._rank = {piece: order[index] for index, piece in enumerate(self._train)}
        self._holders = dict.fromkeys(self._train, 0)
        self._leased = dict.fromkeys(self._train, 0)
        self._leases: dict[PeerId, tuple[bytes, ...]] = {}
        self._next = [self._entry(piece) for piece in self._train]
        heapq.heapify(self._next)  # entries whose piece has another priority now are passed over

    def grant(self, peer: PeerId, count: int) -> LeaseGrant:
        """Give the peer `count` pieces (or as many as one may hold) in place of its last ones.

        Raises:
            RemoteFault: reason ``lease``, a count below 1.
        """
        if count < 1:
            raise RemoteFault("lease", f"a request for {count} pieces")
        self.release(peer)
        count = min(count, self._lease_pieces_max)
        pieces = tuple(self._take_next() for _ in range(min(count, len(self._train))))
        for piece in pieces:
            self._holders[piece] += 1
            self._leased[piece] += 1
            heapq.heappush(self._next, self._entry(piece))
        self._leases[peer] = pieces
        return LeaseGrant(train=pieces, validation=self._validation)

    def release(self, peer: PeerId) -> None:
        """Take back what the peer holds, if anything."""
        for piece in self._leases.pop(peer, ()):
            self._holders[piece] -= 1
            heapq.heappush(self._next, self._entry(piece))
        if len(self._next) > _STALE_MAX * (len(self._train) + self._lease_pieces_max):
            self._next = [self._entry(piece) for piece in self._train]
            heapq.heapify(self._next)

    def believed(self, peer: PeerId, ready: Ready) -> Ready:
        """READY with no more samples than the peer's text holds: weights follow them, and no boast
        shall take the whole mean (protocol.md part 1 rule 2).

        After a restart, until the peer has asked for text again, it is as much as one may hold.
        """
        if not self._piece_samples:
            return ready
        pieces = len(self._leases.get(peer, ())) or self._lease_pieces_max
        most = pieces * self._piece_samples
        return msgspec.structs.replace(ready, samples=most) if ready.samples > most else ready

    def leases(self) -> Mapping[PeerId, tuple[bytes, ...]]:
        """Return the hashes of the training pieces that each peer holds."""
        return dict(self._leases)

    def packed_piece(self, piece_hash: bytes) -> bytes | None:
        """A piece as it travels, or None if there is none of this hash."""
        if piece_hash == self._tokenizer_hash:
            return pack_piece(self._tokenizer)
        if self._initial is not None and (plain := self._initial.piece(piece_hash)) is not None:
            return pack_piece(plain)
        if self._text is None:
            return None
        try:
            plain = self._text.piece(piece_hash.hex())
        except KeyError:
            return None
        except OSError as exc:
            logger.error("A piece of text cannot be given out: %s.", exc)
            return None
        return pack_piece(plain)

    def _take_next(self) -> bytes:
        while True:
            entry = heapq.heappop(self._next)
            if entry == self._entry(entry[-1]):
                return entry[-1]

    def _entry(self, piece: bytes) -> _Entry:
        return self._holders[piece], self._leased[piece], self._rank[piece], piece

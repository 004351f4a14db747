"""The coordinator's text: its pieces as they travel, and who reads which (`data.leases`)."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from swarmtrain.coordinator.initial import Initial
from swarmtrain.data.leases import HELD_MAX, Leases
from swarmtrain.foundation.control_lane import pack_piece
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import LeaseGrant, LeaseRequest, Ready
from swarmtrain_transport.wire.text_place import TextPlace

logger = logging.getLogger(__name__)

Keep = Callable[[Mapping[bytes, int]], None]
"""Makes durable how often pieces were used."""


Parted = tuple[bytes, Mapping[bytes, int]]
"""A router's file, and the expert of each piece."""


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
        seed: seed of the order among equals.
        lease_pieces_max: pieces of one lease.
        piece_samples: training windows in one piece, 0 if it is not known what a sample is.
        example_bytes: bytes of one window and its last target; shorter pieces are not leased.
        tokenizer: the file that makes tokens of text, which members get by its hash; or empty.
        uses: number of uses of each piece before this life.
        keep: hears how often pieces were used, before anybody else does.
        parted: in a run of experts the router's file, and the expert of each piece.
        group_of: the group, and so the expert, of a peer.
    """

    def __init__(
        self,
        text: Text | None,
        *,
        seed: int,
        lease_pieces_max: int,
        piece_samples: int = 0,
        example_bytes: int = 0,
        tokenizer: bytes = b"",
        initial: Initial | None = None,
        uses: Mapping[bytes, int] | None = None,
        keep: Keep = lambda uses: None,
        parted: Parted | None = None,
        group_of: Callable[[PeerId], int] = lambda peer: 0,
    ) -> None:
        self._initial = initial
        self._tokenizer = tokenizer
        self._tokenizer_hash = hashlib.sha256(tokenizer).digest() if tokenizer else b""
        self._text = text
        self._lease_pieces_max = lease_pieces_max
        self._piece_samples = piece_samples if text is not None else 0
        train = text.train if text is not None else ()
        if text is not None and len(train) > 1 and len(text.piece(train[-1])) < example_bytes:
            train = train[:-1]  # all others are whole
        self._validation = tuple(map(bytes.fromhex, text.validation)) if text else ()
        # Equal pieces are one piece.
        self.pieces = tuple(dict.fromkeys(map(bytes.fromhex, train)))
        self._router, self._parts = parted or (b"", dict.fromkeys(self.pieces, 0))
        self._router_hash = hashlib.sha256(self._router).digest() if self._router else b""
        self._group_of = group_of
        self.leases = tuple(
            Leases(
                [piece for piece in self.pieces if self._parts[piece] == part],
                seed=seed, most=lease_pieces_max, uses=uses or {},
            )
            for part in range(max(self._parts.values(), default=0) + 1)
        )  # fmt: skip
        self._keep = keep

    @property
    def progress(self) -> TextPlace | None:
        """Pass and position in the text, None where the coordinator leases none."""
        places = [leases.progress for leases in self.leases]
        number = min(place.number for place in places)
        used = sum(p.used if p.number == number else p.pieces for p in places)
        pieces = sum(place.pieces for place in places)
        return TextPlace(number, used, pieces) if pieces else None

    def grant(self, peer: PeerId, request: LeaseRequest) -> LeaseGrant:
        """Count what the peer has used, and give it more.

        Raises:
            RemoteFault: reason ``lease``, more pieces than a peer can hold, or fewer than none.
            StoreError: it could not be made durable; nothing may be sent.
        """
        if len(request.done) > HELD_MAX * self._lease_pieces_max:
            raise RemoteFault("lease", f"{len(request.done)} pieces are said to be done")
        part = self._group_of(peer)
        leases = self.leases[part]
        counted = leases.count(peer, request.done)
        if counted:
            self._keep(counted)
        for other in self.leases:
            if other is not leases:
                other.release(peer)
        train = leases.grant(peer, request.count, request.held)
        own = tuple(one for one in self._validation if self._parts.get(one, 0) == part)
        validation = own if self._router and own else self._validation
        return LeaseGrant(train=train, validation=validation, router=self._router_hash)

    def release(self, peer: PeerId) -> None:
        """Take back what the peer holds, if anything."""
        for leases in self.leases:
            leases.release(peer)

    def believed(self, peer: PeerId, ready: Ready) -> Ready:
        """READY with no more samples than the peer's text holds: weights follow them, and no boast
        shall take the whole mean (protocol.md part 1 rule 2).

        After a restart, until the peer has asked for text again, it is as much as one may hold.
        """
        if not self._piece_samples:
            return ready
        held = sum(len(leases.held(peer)) for leases in self.leases)
        pieces = held or self._lease_pieces_max
        most = pieces * self._piece_samples
        return msgspec.structs.replace(ready, samples=most) if ready.samples > most else ready

    def packed_piece(self, piece_hash: bytes) -> bytes | None:
        """A piece as it travels, or None if there is none of this hash."""
        if piece_hash == self._tokenizer_hash:
            return pack_piece(self._tokenizer)
        if piece_hash == self._router_hash:
            return pack_piece(self._router)
        if self._initial is not None and (plain := self._initial.piece(piece_hash)) is not None:
            return pack_piece(plain)
        if self._text is None:
            return None
        try:
            plain = self._text.piece(piece_hash.hex())
        except KeyError:
            return None
        except OSError as exc:
            logger.error("A piece of text is left out from now on: %s.", exc)
            for leases in self.leases:
                leases.withdraw(piece_hash)
            return None
        return pack_piece(plain)

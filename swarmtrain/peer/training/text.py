"""Leased text on its way to the trainer: from this machine's own copy where it is the same bytes.

A piece is named by its hash, so a piece that the local standard library yields need not travel;
all others come from the coordinator. Runs on the network thread; the trainer only looks whether
something new has arrived.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmtrain import atomic_file
from swarmtrain.config.settings import BYTES, IDS, STDLIB, DataSection
from swarmtrain.data.corpus import Corpus, CorpusMissing, build_corpus
from swarmtrain.data.tokenizer import FILE, FILE_BYTES_MAX
from swarmtrain.errors import translate
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain_transport.wire.messages import LeaseGrant


@dataclass(frozen=True, slots=True)
class _Delivery:
    train: tuple[bytes, ...]
    validation: tuple[bytes, ...]


class TextFeed:
    """Turns lease grants into pieces of text.

    Args:
        section: how the run's text is cut.
        directory: of this peer's state, where the run's tokenizer is kept for other commands.
    """

    def __init__(self, section: DataSection, directory: Path) -> None:
        self._section = section
        self._tokenizer = directory / FILE
        self._local: Corpus | None = None
        self._tried_local = section.source != STDLIB
        self._delivery: _Delivery | None = None
        self._validation: tuple[bytes, ...] | None = None

    async def fill(self, shell: PeerShell, grant: LeaseGrant) -> None:
        """Get every piece of a grant.

        Raises:
            UserError: a piece is not to be had or not what its name says; or the disk is full.
        """
        await self._keep_tokenizer(shell)
        if self._validation is None:
            self._validation = await self._pieces(shell, grant.validation)
        train = await self._pieces(shell, grant.train)
        self._delivery = _Delivery(train, self._validation)

    async def _keep_tokenizer(self, shell: PeerShell) -> None:
        name = self._section.tokenizer
        if name in (BYTES, IDS):
            return
        try:
            kept = self._tokenizer.read_bytes() if self._tokenizer.exists() else b""
            if hashlib.sha256(kept).hexdigest() == name:
                return
            file = await shell.fetch_piece(bytes.fromhex(name), bytes_max=FILE_BYTES_MAX)
            atomic_file.write(self._tokenizer, file, mode=0o600)
        except OSError as error:
            raise translate(error) or error from error

    async def _pieces(self, shell: PeerShell, hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple([await self._piece(shell, digest) for digest in hashes])

    async def _piece(self, shell: PeerShell, digest: bytes) -> bytes:
        local = self._local_corpus()
        if local is not None:
            try:
                return local.piece(digest.hex())
            except KeyError:
                pass  # another Python: its text differs
        return await shell.fetch_piece(digest)

    def _local_corpus(self) -> Corpus | None:
        if not self._tried_local:
            self._tried_local = True
            try:
                self._local = build_corpus(self._section.piece_bytes)
            except CorpusMissing:
                self._local = None  # no sources here: everything is fetched
        return self._local

    def take_train(self) -> Sequence[bytes] | None:
        """Training pieces that arrived since the last call, for the training thread."""
        delivery, self._delivery = self._delivery, None
        return delivery.train if delivery is not None else None

    @property
    def has_train(self) -> bool:
        """True if training pieces wait to be taken."""
        return self._delivery is not None

    @property
    def validation(self) -> Sequence[bytes] | None:
        """Validation pieces, None until they are here."""
        return self._validation

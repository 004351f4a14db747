"""A peer's reading: text that is leased by the coordinator, or this peer's own, made into batches.

A piece is named by its hash, so a piece that the local standard library yields need not travel;
all others come from the coordinator. A volunteer's own text is leased by this machine to itself:
neither the text nor its hashes are ever sent. More is asked for before all is read.

Pieces are got on the network thread (`fill`); all else is the trainer's, who looks if something
new has arrived. Which window comes next, and what is done, says `data.walk`; what is leased to
whom, the coordinator's `data.leases`.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from swarmtrain.config.built_in import vocabulary_of, width_of
from swarmtrain.config.settings import BYTES, IDS, OWN_TEXT, STDLIB, RunConfig
from swarmtrain.data.batches import Batch, LeasedStream, unknown_token
from swarmtrain.data.clusters import ROUTER_BYTES_MAX, ROUTER_FILE
from swarmtrain.data.corpus import Corpus, CorpusMissing, build_corpus
from swarmtrain.data.leases import Leases
from swarmtrain.data.own import open_own
from swarmtrain.data.stored import StoredText
from swarmtrain.data.tokenizer import FILE, FILE_BYTES_MAX
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError, translate
from swarmtrain.peer.network.control import CoordinatorUnreachable
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain.peer.network.text_download import NOT_GIVEN, PieceRefused, not_as_named
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased, LeaseGrant, LeaseRequest

logger = logging.getLogger(__name__)

_ME = PeerId(b"own")
"""Holds all leases of this peer's own text."""


@dataclass(frozen=True, slots=True)
class _Own:
    """This peer's own text, and what it reads of it."""

    text: StoredText
    leases: Leases


class Reader:
    """Batches of text for one trainer.

    Args:
        config: the run file.
        directory: this peer's state directory; keeps the run's tokenizer for other commands, and
            facts of own text.
        batch: windows of a batch.
        seed: this peer's own seed of order and cuts.
        send: says something to the coordinator, or nothing while it is away.
        data: this peer's own text, where the run has none.
        tell: hears what was found there.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        batch: int,
        seed: int,
        send: Callable[[LeaseRequest], None],
        data: str = "",
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        self._config, self._directory, self._data, self._tell = config, directory, data, tell
        self._send = send
        self._stream = LeasedStream(
            batch=batch, context=config.model.context, rng=random.Random(seed),
            width=width_of(config),
        )  # fmt: skip
        self._is_own = config.data.source == OWN_TEXT
        self._delivery: Mapping[Leased, bytes] | None = None
        self._validation: tuple[bytes, ...] | None = None
        self._kept: dict[bytes, bytes] = {}
        self._own: _Own | None = None
        self._wanted = LeaseRequest(1)

    # ---- on the training thread

    def ask(self) -> None:
        """Say what was read, and ask for more. Nothing is said of own text; the coordinator answers
        with text to judge by, where there is any."""
        self._wanted = self._stream.walk.ask(self._config.data.lease_pieces)
        self._send(LeaseRequest(1) if self._is_own else self._wanted)

    def finish(self) -> None:
        """Say what was read, as the last word on it: who leaves wants no more."""
        last = self._stream.walk.finish()
        if last.done and not self._is_own:
            self._send(last)

    @property
    def has_text(self) -> bool:
        """True if there is something to read."""
        self._take()
        return self._stream.has_text

    def next_batch(self) -> Batch:
        """The next batch; the text is read anew where no other has come.

        Raises:
            ValueError: there is no text yet.
        """
        self._take()
        batch = self._stream.next_batch()
        if self._stream.walk.wants_more:
            self.ask()
        return batch

    @property
    def validation(self) -> Sequence[bytes] | None:
        """Validation pieces, None until they are here."""
        return self._validation

    def _take(self) -> None:
        train, self._delivery = self._delivery, None
        if train is not None:
            self._stream.hold(train)

    # ---- on the network thread

    async def fill(self, shell: PeerShell, grant: LeaseGrant) -> None:
        """Get every piece of a grant; what does not come for want of the coordinator is asked for
        again.

        Raises:
            UserError: a piece is not to be had or not what its name says; the disk is full; or own
                text is no text, too little, or not of the run's tokens.
        """
        try:
            await self._fill(shell, grant)
        except CoordinatorUnreachable as error:
            logger.warning("No new text to train on: %s The old text lasts until then.", error.what)
            self._stream.walk.failed()

    async def _fill(self, shell: PeerShell, grant: LeaseGrant) -> None:
        name, tokenizer = self._config.data.tokenizer, b""
        if name not in (BYTES, IDS):
            tokenizer = await self._file(shell, FILE, bytes.fromhex(name), FILE_BYTES_MAX)
        if grant.router:  # what has parted the run's text, for `swarmtrain export`
            await self._file(shell, ROUTER_FILE, grant.router, ROUTER_BYTES_MAX)
        if self._validation is None:
            self._validation = tuple([await self._piece(shell, one) for one in grant.validation])
        if self._is_own:
            if self._own is None:
                self._own = await asyncio.to_thread(self._open_own, tokenizer)
            own, wanted = self._own, self._wanted
            own.leases.count(_ME, wanted.done)
            granted = own.leases.grant(_ME, wanted.count, wanted.held)
            train = {one: _own_piece(own.text, one.piece) for one in granted}
        else:
            train = await self._fetched(shell, grant.train)
        self._kept = {one.piece: data for one, data in train.items()}
        self._delivery = train

    async def _file(self, shell: PeerShell, name: str, digest: bytes, bytes_max: int) -> bytes:
        """A file of the run by its hash, kept in the state directory for other commands."""
        path = self._directory / name
        try:
            kept = path.read_bytes() if path.exists() else b""
            if hashlib.sha256(kept).digest() != digest:
                kept = await shell.fetch_piece(digest, bytes_max=bytes_max)
                atomic_file.write(path, kept, mode=0o600)
        except OSError as error:
            raise translate(error) or error from error
        return kept

    def _open_own(self, tokenizer: bytes) -> _Own:
        folder, sets_aside = self._directory / "text", not self._validation
        try:
            text = open_own(
                self._config, self._data, tokenizer, folder, self._tell, sets_aside=sets_aside
            )
        except OSError as error:
            raise translate(error) or error from error
        if sets_aside:
            self._validation = tuple(text.piece(one) for one in text.validation)
        pieces, config = tuple(map(bytes.fromhex, text.train)), self._config
        most = config.data.lease_pieces
        return _Own(text, Leases(pieces, seed=config.run.seed, most=most, uses={}))

    async def _fetched(self, shell: PeerShell, granted: Sequence[Leased]) -> dict[Leased, bytes]:
        """The pieces of a grant, without those that the coordinator cannot read any more, unless
        that is all of them."""
        train: dict[Leased, bytes] = {}
        refusal: PieceRefused | None = None
        for one in granted:
            try:
                train[one] = await self._piece(shell, one.piece)
            except PieceRefused as error:
                if error.code != NOT_GIVEN:
                    raise
                refusal = error
                logger.warning("A piece of text is left out: %s", error.what)
        if refusal is not None and not train:
            raise refusal
        return train

    async def _piece(self, shell: PeerShell, digest: bytes) -> bytes:
        if digest in self._kept:
            return self._kept[digest]
        if self._local is not None:
            with suppress(KeyError):  # another Python: its text differs
                return self._local.piece(digest.hex())
        piece = await shell.fetch_piece(digest)
        vocabulary = vocabulary_of(self._config)
        unknown = unknown_token(piece, width_of(self._config), vocabulary) if vocabulary else None
        if unknown is not None:
            raise not_as_named(f"it has the token {unknown}, and the model knows {vocabulary}")
        return piece

    @cached_property
    def _local(self) -> Corpus | None:
        """The text, where this machine has it: else everything is fetched."""
        if self._config.data.source == STDLIB:
            with suppress(CorpusMissing):
                return build_corpus(self._config.data.piece_bytes)
        return None


def _own_piece(text: StoredText, digest: bytes) -> bytes:
    try:
        return text.piece(digest.hex())
    except OSError as error:
        raise UserError(
            "SWT-E823",
            f"Your text was changed while it was trained on: {error}.",
            "Pieces of it are named by their hashes, and one is not to be found again.",
            "Join again with the same --data; the text is then read anew.",
        ) from error

"""The organiser's text where it lies: cut into pieces that are read when somebody asks for them.

No text is held in memory: of a piece there is its hash, and a piece is some bytes of a stream of
file stretches. Those are the organiser's files where they hold what peers train on, and files of
tokens made of them where they do not (`prepared`). Hashing everything takes one reading, so what it
found is kept beside the run's state and believed while no file has changed.

Validation text is set aside by whole documents, drawn by the hash of their bytes, so that equal
ones stay together; where there are too few of them to draw, it is the end of the text.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from swarmtrain.config.built_in import vocabulary_of, width_of
from swarmtrain.config.settings import BYTES, RunConfig
from swarmtrain.console.lines import counted
from swarmtrain.console.units import human_bytes
from swarmtrain.data import prepared
from swarmtrain.data.corpus import SEPARATOR, VALIDATION_SHARE
from swarmtrain.data.documents import Kind, Source, find, text_digest
from swarmtrain.data.places import Places
from swarmtrain.data.stretches import Extent, Parts, Stream, is_drawn
from swarmtrain.data.tokenizer import tokenizer_of
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError

INDEX = "index.msgpack"

_ROOM = 4
"""Validation text is at most so many times what the run file asks for: the rest trains."""

_UNEVEN = 3
"""Drawn documents that make up so many times more or less than their share are too uneven."""

Tell = Callable[[str], None]


class _Index(msgspec.Struct, frozen=True):
    """Findings of one reading, as they are kept."""

    settings: bytes
    files: tuple[tuple[str, int, int], ...]
    train: tuple[Extent, ...]
    validation: tuple[Extent, ...]
    train_hashes: tuple[bytes, ...]
    validation_hashes: tuple[bytes, ...]
    skipped: int


class StoredText:
    """Text of the organiser in pieces; `coordinator.corpus_service.Text`."""

    def __init__(self, index: _Index, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._validation, self._train = Stream(index.validation), Stream(index.train)
        self._where: dict[bytes, tuple[Stream, int]] = {}
        for stream, hashes in (
            (self._validation, index.validation_hashes),
            (self._train, index.train_hashes),
        ):
            for number, digest in enumerate(hashes):
                if digest:
                    self._where.setdefault(digest, (stream, number))
        self.validation = tuple(digest.hex() for digest in index.validation_hashes if digest)
        judged = set(index.validation_hashes)
        self.train = tuple(
            digest.hex() for digest in dict.fromkeys(index.train_hashes) if digest not in judged
        )
        self.num_bytes = len(self._train) + len(self._validation)
        self.skipped = index.skipped
        named = msgspec.msgpack.encode((1, piece_bytes, self.train, self.validation))
        self.manifest_hash = hashlib.sha256(named).hexdigest()

    def piece(self, piece_hash: str) -> bytes:
        """The bytes of one piece.

        Raises:
            KeyError: there is none of that hash.
            OSError: its file is not as it was.
        """
        stream, number = self._where[bytes.fromhex(piece_hash)]
        data = stream.read(number * self._piece_bytes, self._piece_bytes)
        if hashlib.sha256(data).hexdigest() != piece_hash:
            raise OSError("a file of the text has other contents than when the run began")
        return data


def open_text(
    config: RunConfig, places: Places, folder: Path, tell: Tell, *, sets_aside: bool = True
) -> StoredText:
    """Read the organiser's text, or what an earlier reading found where no file has changed.

    Args:
        config: the settled run file.
        places: places of the text.
        folder: folder for the index and files of tokens; made if need be.
        tell: hears what was found.
        sets_aside: some of the source is judged by, where no other text is named for that.

    Raises:
        UserError: SWT-E820 nothing there, E821 no text, E822 too little of it, E825 tokens that the
            model does not know.
        OSError: the disk.
    """
    found = _apart([find(place) for place in (places.source, places.validation) if place], tell)
    files = [file for source in found for file in source.files]
    stats = tuple((file.path, file.size, file.changed_ns) for file in files)
    settings = msgspec.msgpack.encode(
        (2, str(folder.absolute()), places.source, places.validation, places.documents,
         config.data, config.model.context, vocabulary_of(config), sets_aside)
    )  # fmt: skip
    index = _kept(folder / INDEX)
    if index is None or (index.settings, index.files) != (settings, stats):
        size = human_bytes(sum(file.size for file in files)) if files else found[0].place
        tell(f"Reading the text: {size}.")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)  # it may speak of files that are made anew
        parts = _parts(config, places, found, folder, sets_aside)
        wanted = bool(places.source), sets_aside or bool(places.validation)
        index = _indexed(parts, settings, stats, config, wanted)
        atomic_file.write(folder / INDEX, msgspec.msgpack.encode(index), mode=0o600)
    text = StoredText(index, piece_bytes_of(config))
    if places.source and not text.train:
        raise too_little("all of it repeats what is set aside to judge by", config)
    skipped = _skipped(text.skipped)
    size = human_bytes(text.num_bytes) + (" of tokens" if config.data.tokenizer != BYTES else "")
    pieces, judged = counted(len(text.train), "piece"), len(text.validation)
    tell(f"Text: {size} in {pieces} to train on and {judged} to judge by{skipped}.")
    return text


def _apart(found: list[Source], tell: Tell) -> list[Source]:
    """The sources, without files to judge by in the one to train on."""
    if len(found) < 2 or not found[0].files:
        return found
    source, judged = found
    names = {os.path.realpath(file.path) for file in judged.files}
    files = tuple(file for file in source.files if os.path.realpath(file.path) not in names)
    if not files:
        raise UserError(
            "SWT-E822",
            f"All text of data.source is in data.validation too: {judged.place}.",
            "A model is judged by text that it was not trained on, so none is left to train on.",
            "Name other text as data.validation, or leave it out: a share is then set aside.",
        )
    if len(files) < len(source.files):
        count = len(source.files) - len(files)
        what = "1 file of data.source is" if count == 1 else f"{count} files of data.source are"
        tell(f"{what} in data.validation too: judged by, not trained on.")
    return [replace(source, files=files), judged]


def piece_bytes_of(config: RunConfig) -> int:
    """Bytes of a whole piece: as the run file says, in whole tokens."""
    width = width_of(config)
    return config.data.piece_bytes // width * width


def _kept(path: Path) -> _Index | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.msgpack.decode(path.read_bytes(), type=_Index)
    return None


def _parts(
    config: RunConfig, places: Places, found: Sequence[Source], folder: Path, sets_aside: bool
) -> Parts:
    """Train and validation text, as stretches of files."""
    data, skipped = config.data, sum(source.skipped for source in found)
    total = sum(file.size for file in found[0].files)
    is_drawn_from = sets_aside and bool(places.source) and len(found) == 1
    share = validation_share(config, total) if is_drawn_from else 0.0
    made: list[Parts] = []
    for number, source in enumerate(found):
        if source.kind is Kind.TOKENS:
            made.append(prepared.tokens(config, source, folder / f"tokens-{number}"))
        elif source.kind is Kind.TEXT and data.tokenizer == BYTES:
            made.append(_whole_files(source, share))
        else:
            most = 0 if number else places.documents
            tokenizer = tokenizer_of(data, places.tokenizer or None)
            made.append(
                prepared.text(config, source, tokenizer, folder / f"text-{number}", share, most)
            )
    skipped += sum(parts.skipped for parts in made)
    if is_drawn_from:
        return evened(made[0], config, share, skipped)
    whole = [[*parts.train, *parts.validation] for parts in made]
    train = whole.pop(0) if places.source else []
    return Parts(train, whole[0] if whole else [], skipped)


def validation_share(config: RunConfig, total: int) -> float:
    """Share of a text of so many bytes that is set aside."""
    data = config.data
    return min(VALIDATION_SHARE, _ROOM * data.validation_pieces * data.piece_bytes / max(1, total))


def evened(parts: Parts, config: RunConfig, share: float, skipped: int) -> Parts:
    """The drawn validation text, or the end of all text where the draw came out uneven."""
    train, validation, width = parts.train, parts.validation, width_of(config)
    drawn, total = sum(map(len, validation)), sum(map(len, (*train, *validation)))
    least = (config.model.context + 1) * width
    if parts.is_given and drawn:
        return Parts(train, validation, skipped)
    if max(least, share * total / _UNEVEN) <= drawn <= share * total * _UNEVEN:
        return Parts(train, validation, skipped)
    whole = Stream((*train, *validation))
    tail = min(max(int(share * total), least), total // 2)
    before, after = whole.parted((total - tail) // width * width)
    return Parts(list(before), list(after), skipped)


def _whole_files(source: Source, share: float) -> Parts:
    """The files that are text, as they are."""
    parts = Parts([], [])
    skipped = 0
    for file in source.files:
        digest = text_digest(file.path)
        if digest is None:
            skipped += 1
            continue
        part = parts.validation if is_drawn(digest, share) else parts.train
        part.append(Extent(file.path, 0, file.size, SEPARATOR))
    if not parts.train and not parts.validation:
        one = "The only file" if skipped == 1 else f"None of {skipped} files"
        seen = f"{one} at {source.place} is {'not ' if skipped == 1 else ''}UTF-8 text"
        raise UserError(
            "SWT-E821",
            f"{seen if skipped else f'There is no file with text at {source.place}'}.",
            "Models train on text; other files are skipped.",
            "Save the text as UTF-8, or name another file or folder.",
        )
    return Parts(parts.train, parts.validation, skipped)


def _indexed(
    parts: Parts,
    settings: bytes,
    stats: tuple[tuple[str, int, int], ...],
    config: RunConfig,
    wanted: tuple[bool, bool],
) -> _Index:
    """Cut both parts and hash their pieces: one reading of everything."""
    data, width, piece_bytes = config.data, width_of(config), piece_bytes_of(config)
    least = (config.model.context + 1) * width
    for name, extents, is_wanted in zip(
        ("to train on", "to judge by"), (parts.train, parts.validation), wanted, strict=True
    ):
        length = sum(map(len, extents))
        if is_wanted and length < least:
            unit = "bytes" if data.tokenizer == BYTES else "tokens"
            raise too_little(f"{length // width} {unit} {name}", config)
    train, judged = (
        tuple(hashlib.sha256(piece).digest() for piece in Stream(part).pieces(piece_bytes))
        for part in (parts.train, parts.validation)
    )
    most = data.validation_pieces
    if len(judged) > most:
        kept = {number * len(judged) // most for number in range(most)}
        judged = tuple(digest if i in kept else b"" for i, digest in enumerate(judged))
    return _Index(
        settings, stats, tuple(parts.train), tuple(parts.validation), train, judged, parts.skipped
    )


def too_little(what: str, config: RunConfig) -> UserError:
    """The error for a text of which nothing can be trained on, or judged by."""
    return UserError(
        "SWT-E822",
        f"There is too little text: {what}. One example takes model.context + 1 ="
        f" {config.model.context + 1} tokens.",
        "Where data.validation names no text to judge the model by, some of the source is set aside"
        " for that.",
        "Give more text; or, in a run file of your own, make model.context smaller.",
    )


def _skipped(count: int) -> str:
    if count == 1:
        return "; 1 file that is no text was skipped"
    return f"; {count} files that are no text were skipped" if count else ""

"""The organiser's text where it lies: cut into pieces that are read when somebody asks for them.

No text is held in memory: of a piece there is its hash, and a piece is some bytes of a stream of
file stretches. Hashing everything takes one reading, so what it found is kept beside the run's
state and believed while no file has changed.

Validation text is set aside by whole documents, drawn by the hash of their bytes, so that equal
ones stay together; where there are too few of them to draw, it is the end of the text.
"""

import bisect
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from swarmtrain import atomic_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.units import human_bytes
from swarmtrain.data.corpus import SEPARATOR, VALIDATION_SHARE
from swarmtrain.data.documents import File, find, text_digest
from swarmtrain.data.places import Places
from swarmtrain.errors import UserError

INDEX = "index.msgpack"

_ROOM = 4
"""Validation text is at most so many times what the run file asks for: the rest trains."""

_UNEVEN = 3
"""Drawn documents that make up so many times more or less than their share are too uneven."""

Tell = Callable[[str], None]


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a file in bytes, and what stands after it."""

    path: str
    offset: int
    length: int
    tail: bytes = b""

    def __len__(self) -> int:
        return self.length + len(self.tail)


class Stream:
    """Stretches of files, one after another, as one long text that is read by place."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.extents = tuple(extents)
        self._ends = list(accumulate(map(len, self.extents)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> bytes:
        """Bytes from `start` on, fewer at the end of the text.

        Raises:
            OSError: a file cannot be read, or is shorter than it was.
        """
        parts: list[bytes] = []
        index = bisect.bisect_right(self._ends, start)
        while length > 0 and index < len(self.extents):
            extent = self.extents[index]
            inside = start - (self._ends[index] - len(extent))
            part = _read(extent, inside, length)
            parts.append(part)
            start, length, index = start + len(part), length - len(part), index + 1
        return b"".join(parts)

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """All of it, cut."""
        for start in range(0, len(self), piece_bytes):
            yield self.read(start, piece_bytes)

    def parted(self, at: int) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
        """The stretches before and after a place."""
        index = bisect.bisect_right(self._ends, at)
        before, after = list(self.extents[:index]), list(self.extents[index + 1 :])
        if index == len(self.extents):
            return self.extents, ()
        cut = self.extents[index]
        inside = at - (self._ends[index] - len(cut))
        if inside >= cut.length:  # within what stands after the file: it is never torn
            return (*before, cut), tuple(after)
        if inside:
            before.append(Extent(cut.path, cut.offset, inside))
        rest = Extent(cut.path, cut.offset + inside, cut.length - inside, cut.tail)
        return tuple(before), (rest, *after)


def _read(extent: Extent, inside: int, length: int) -> bytes:
    if inside >= extent.length:
        return extent.tail[inside - extent.length :][:length]
    wanted = min(length, extent.length - inside)
    with open(extent.path, "rb") as file:
        file.seek(extent.offset + inside)
        data = file.read(wanted)
    if len(data) < wanted:
        raise OSError(f"{extent.path} has become shorter")
    return data + extent.tail[: length - wanted]


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


@dataclass(frozen=True, slots=True)
class _Parts:
    """A text on its way to pieces."""

    train: list[Extent]
    validation: list[Extent]
    skipped: int = 0


def open_text(config: RunConfig, places: Places, folder: Path, tell: Tell) -> StoredText:
    """Read the organiser's text, or what an earlier reading found where no file has changed.

    Args:
        config: the settled run file.
        places: where the text lies.
        folder: where the index is kept; made if need be.
        tell: hears what was found.

    Raises:
        UserError: SWT-E820 nothing there, E821 no text, E822 too little of it.
    """
    data = config.data
    files = find(places.source)
    judged = find(places.validation) if places.validation else ()
    stats = tuple((file.path, file.size, file.changed_ns) for file in (*files, *judged))
    settings = msgspec.msgpack.encode(
        (1, places.source, places.validation, data, config.model.context)
    )
    index = _kept(folder / INDEX)
    if index is None or (index.settings, index.files) != (settings, stats):
        tell(f"Reading the text: {human_bytes(sum(size for _, size, _ in stats))}.")
        parts = _parts(config, places, files, judged)
        index = _indexed(parts, settings, stats, config)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(folder / INDEX, msgspec.msgpack.encode(index), mode=0o600)
    text = StoredText(index, data.piece_bytes)
    if not text.train:
        raise too_little("all of it repeats what is set aside to judge by", config)
    skipped = f"; {text.skipped} files that are no text were skipped" if text.skipped else ""
    tell(
        f"Text: {human_bytes(text.num_bytes)} in {len(text.train)} pieces to train on and"
        f" {len(text.validation)} to judge by{skipped}."
    )
    return text


def _kept(path: Path) -> _Index | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.msgpack.decode(path.read_bytes(), type=_Index)
    return None


def _parts(
    config: RunConfig, places: Places, files: Sequence[File], judged: Sequence[File]
) -> _Parts:
    """Train and validation text, as stretches of files."""
    found, skipped = _texts(places.source, files)
    if judged:
        others, more = _texts(places.validation, judged)
        return _Parts([e for e, _ in found], [e for e, _ in others], skipped + more)
    total = sum(len(extent) for extent, _ in found)
    share = validation_share(config, total)
    drawn = [is_drawn(digest, share) for _, digest in found]
    parts = _Parts(
        [extent for (extent, _), is_judged in zip(found, drawn, strict=True) if not is_judged],
        [extent for (extent, _), is_judged in zip(found, drawn, strict=True) if is_judged],
        skipped,
    )
    return evened(parts.train, parts.validation, share, config, skipped)


def validation_share(config: RunConfig, total: int) -> float:
    """Share of a text of so many bytes that is set aside."""
    data = config.data
    return min(VALIDATION_SHARE, _ROOM * data.validation_pieces * data.piece_bytes / max(1, total))


def is_drawn(digest: bytes, share: float) -> bool:
    """Return True if the document of this SHA-256 is set aside."""
    return int.from_bytes(digest[:8], "big") < share * 2**64


def evened(
    train: Sequence[Extent],
    validation: Sequence[Extent],
    share: float,
    config: RunConfig,
    skipped: int = 0,
    width: int = 1,
) -> _Parts:
    """The drawn validation text, or the end of all text where the draw came out uneven."""
    drawn, total = sum(map(len, validation)), sum(map(len, (*train, *validation)))
    least = (config.model.context + 1) * width
    if max(least, share * total / _UNEVEN) <= drawn <= share * total * _UNEVEN:
        return _Parts(list(train), list(validation), skipped)
    whole = Stream((*train, *validation))
    tail = min(max(int(share * total), least), total // 2)
    before, after = whole.parted((total - tail) // width * width)
    return _Parts(list(before), list(after), skipped)


def _texts(place: str, files: Iterable[File]) -> tuple[list[tuple[Extent, bytes]], int]:
    """Stretches and hashes of the files that are text, and how many are not."""
    found: list[tuple[Extent, bytes]] = []
    skipped = 0
    for file in files:
        digest = text_digest(file.path)
        if digest is None:
            skipped += 1
        else:
            found.append((Extent(file.path, 0, file.size, SEPARATOR), digest))
    if not found:
        seen = "It is not UTF-8 text" if skipped == 1 else f"None of {skipped} files is UTF-8 text"
        raise UserError(
            "SWT-E821",
            f"{seen if skipped else 'No file'} at {place}.",
            "Models train on text; other files are skipped.",
            "Save the text as UTF-8, or name another file or folder as data.source.",
        )
    return found, skipped


def _indexed(
    parts: _Parts, settings: bytes, stats: tuple[tuple[str, int, int], ...], config: RunConfig
) -> _Index:
    """Cut both parts and hash their pieces: one reading of everything."""
    data, width = config.data, 1
    for name, extents in (("training", parts.train), ("validation", parts.validation)):
        length, least = sum(map(len, extents)), (config.model.context + 1) * width
        if length < least:
            raise too_little(f"{length} bytes of {name} text", config)
    train, judged = (
        tuple(hashlib.sha256(piece).digest() for piece in Stream(part).pieces(data.piece_bytes))
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
        "Some of the text is set aside to judge the model by, unless data.validation names other"
        " text for that.",
        "Give more text, or make model.context smaller.",
    )

"""Documents of a source: text files, lines of JSONL, rows of a dataset. Read a block at a time.

A file counts as text if all of it is UTF-8 without a zero byte. Others are skipped and counted.
Hidden files and folders (.git) are not looked at, and links to folders are not followed.
"""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count, islice
from pathlib import Path
from typing import Any

from swarmtrain.config.settings import STDLIB
from swarmtrain.data.corpus import library_folder, read_sources
from swarmtrain.foundation.errors import UserError, cleaned

HF = "hf:"
"""Begins the name of a dataset of the datasets library."""

BLOCK_BYTES = 1 << 20

LINE_BYTES_MAX = 64 << 20
"""Longest line of JSONL that is read: a book has one."""

_CHUNK_CHARS = 1 << 18
"""Documents are handed on in parts of about this length, which end where a line ends."""

_ASK = (
    "Name a folder or a file of UTF-8 text, JSONL (.jsonl) or tokens (.bin), or hf:NAME. A run "
    'file may have "python-stdlib" or "own", too, and paths in it are relative to it.'
)

_NAME_IT = "Name what holds it as data.field (evaluate: --field), or mend that line."
_MEND = "Mend that line, or leave it out."

Document = Iterable[str]
"""A text in parts: one after another they are all of it."""


class Kind(Enum):
    """Form of a source, by the names of its files."""

    TEXT = "text"
    LINES = "jsonl"
    TOKENS = "bin"
    DATASET = "hf"
    LIBRARY = "python-stdlib"


_ENDINGS = {".jsonl": Kind.LINES, ".ndjson": Kind.LINES, ".bin": Kind.TOKENS}


@dataclass(frozen=True, slots=True)
class File:
    """One file as the folder shows it: enough to see that it was not touched since."""

    path: str
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Source:
    """A place and its files; of a folder that is mostly JSONL or tokens only those count.

    Attributes:
        skipped: other files of it.
    """

    place: str
    kind: Kind
    files: tuple[File, ...]
    skipped: int = 0


def find(place: str) -> Source:
    """Look at a place.

    Raises:
        UserError: SWT-E820, there is nothing.
    """
    if place == STDLIB:
        return Source(place, Kind.LIBRARY, ())
    if place.startswith(HF):
        folder = Path(place.removeprefix(HF))
        return Source(place, Kind.DATASET, _files(folder) if folder.is_dir() else ())
    try:
        files = _files(Path(place))
        if not files:
            Path(place).stat()
    except (OSError, ValueError) as error:  # too long, with a zero byte, links in a circle
        raise UserError(
            "SWT-E820", f"There is no text at {cleaned(place)}.", "Nothing was trained.", _ASK
        ) from error
    of_kind: dict[Kind, list[File]] = {kind: [] for kind in (Kind.TEXT, Kind.LINES, Kind.TOKENS)}
    for file in files:
        of_kind[_ENDINGS.get(Path(file.path).suffix.lower(), Kind.TEXT)].append(file)
    kind = max(of_kind, key=lambda kind: sum(file.size for file in of_kind[kind]))
    if kind is Kind.TEXT:  # files of tokens are no text, and JSONL is
        return Source(place, kind, files)
    return Source(place, kind, tuple(of_kind[kind]), len(files) - len(of_kind[kind]))


def _files(root: Path) -> tuple[File, ...]:
    """Every non-empty file under a folder, or the one file, sorted by path."""
    paths = [root] if root.is_file() else []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    return tuple(file for path in sorted(paths) if (file := _stat(path)) is not None)


def _stat(path: Path) -> File | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    has_bytes = path.is_file() and stat.st_size > 0
    return File(str(path), stat.st_size, stat.st_mtime_ns) if has_bytes else None


def text_digest(path: str) -> bytes | None:
    """SHA-256 of a file, None if it is not text or cannot be read."""
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    try:
        with open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                if b"\0" in block:
                    return None
                decoder.decode(block)
                digest.update(block)
        decoder.decode(b"", final=True)
    except (OSError, UnicodeDecodeError):
        return None
    return digest.digest()


def documents(source: Source, field: str, most: int = 0) -> Iterator[Document]:
    """All documents of a source of text, of `most` files, lines or rows at most (0: no bound).

    Raises:
        UserError: SWT-E821, a line or a row has no such text; E820, the dataset is not to be had;
            E102, the datasets library is not installed.
    """
    found: Iterator[Document]
    match source.kind:
        case Kind.TEXT:
            found = (_parts(file.path) for file in source.files)
        case Kind.LIBRARY:
            texts = (file.data.decode(errors="replace") for file in read_sources(library_folder()))
            found = ((text,) for text in texts)
        case Kind.LINES:
            found = ((text,) for file in source.files for text in _lines(file.path, field))
        case _:
            found = ((text,) for text in _rows(source.place.removeprefix(HF), field))
    return islice(found, most) if most else found


def _parts(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8", newline="") as file:
        while part := file.read(_CHUNK_CHARS):
            yield part + file.readline(_CHUNK_CHARS)


def _lines(path: str, field: str) -> Iterator[str]:
    with open(path, "rb") as file:
        for number in count(1):
            line = file.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            if len(line) > LINE_BYTES_MAX:
                raise _no_text(
                    f"{path}, line {number} is longer than {LINE_BYTES_MAX} bytes", _MEND
                )
            if line.strip():
                try:
                    row = json.loads(line)
                except UnicodeDecodeError as error:
                    raise _no_text(f"{path}, line {number} is not UTF-8", _MEND) from error
                except (ValueError, RecursionError) as error:
                    raise _no_text(f"{path}, line {number} is not JSON", _MEND) from error
                yield _text_of(row, field, f"{path}, line {number}")


def _rows(name: str, field: str) -> Iterator[str]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "SWT-E102",
            "A source hf:NAME needs the datasets library, which is not installed.",
            "Files of text, JSONL and tokens work without it.",
            'Install it with: pip install "swarmtrain[hf]"',
        ) from error
    name, _, subset = name.partition("#")
    try:
        found: Any = datasets.load_dataset(name, subset or None, split="train", streaming=True)
        rows = iter(found)
        for number, row in enumerate(rows, 1):
            yield _text_of(row, field, f"hf:{name}, row {number}")
    except UserError:
        raise
    except Exception as error:  # the library raises dozens of kinds
        raise UserError(
            "SWT-E820",
            f"The dataset {name} cannot be read: {cleaned(str(error))[:300]}.",
            "The datasets library looks for a folder of that name, then on its hub.",
            "Check the name and the network; hf:NAME#SUBSET names one of its subsets.",
        ) from error


def _text_of(row: object, field: str, place: str) -> str:
    text = row.get(field) if isinstance(row, Mapping) else None
    if isinstance(text, str):
        return whole(text)
    if isinstance(row, Mapping) and field in row:
        what = f'{place} has {_KINDS.get(type(text), "something else")} under "{cleaned(field)}"'
        raise _no_text(f"{what}, and text is needed", _NAME_IT)
    keys = ", ".join(cleaned(str(key)) for key in row) if isinstance(row, Mapping) else "no keys"
    raise _no_text(f'{place} has no text under "{cleaned(field)}"; it has {keys[:200]}', _NAME_IT)


_KINDS = {type(None): "null", dict: "an object", list: "a list", bool: "true or false",
          int: "a number", float: "a number"}  # fmt: skip


def whole(text: str) -> str:
    """The text with a replacement mark for each half of a character: JSON can write them, UTF-8
    cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _no_text(what: str, remedy: str) -> UserError:
    return UserError(
        "SWT-E821",
        f"{what}.",
        "Every document must have text, so nothing was started.",
        remedy,
    )


_JUDGED = re.compile(r"(^|[^a-z])val(id(ation)?)?([^a-z]|$)")


def is_judged(path: str) -> bool:
    """Return True if a file of tokens is named as text to judge by: val.bin, fineweb_val_0.bin."""
    return bool(_JUDGED.search(Path(path).name.lower()))

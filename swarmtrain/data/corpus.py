"""The built-in text: the Python standard library's own sources, as pieces named by SHA-256.

Why this text: it is already on every machine that has CPython with sources, so a first run
downloads nothing. Its bytes differ between patch versions and distributions, so it is never "the
dataset" by name: the coordinator builds it once, and peers get pieces by hash.

Why split by file: validation holds whole files that no training piece contains. Which files is
decided by the hash of their bytes, not by their place in the alphabet, which would be a biased
sample.

Not here: tensors. The coordinator imports this module and has no torch.
"""

import hashlib
import json
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.config.settings import STDLIB

SEPARATOR = b"\0"
"""Stands after every file. Python source cannot contain it, so a model can learn "end of file"."""

VALIDATION_SHARE = 0.04
"""About 440 kB of 11 MB: enough that the loss is steady, little enough to miss in training."""

SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "lib2to3",
        "idlelib",
        "turtledemo",
    }
)
"""Installed packages, caches and tests: not the library, or often stripped from installations.
The last three are absent from newer versions or from slim builds."""


class CorpusMissing(Exception):
    """No usable source text was found. The text of the error says what to do."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the text: its path relative to the library, and its raw bytes."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text cut into pieces.

    Attributes:
        train: hex SHA-256 of each training piece, in the order of the text.
        validation: the same for the validation pieces.
        manifest: canonical JSON that names every file and piece and what built them.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    manifest: bytes
    _pieces: Mapping[str, memoryview]

    @property
    def manifest_hash(self) -> str:
        """Hex SHA-256 of the manifest: two equal hashes are the same text, cut the same way."""
        return hashlib.sha256(self.manifest).hexdigest()

    def piece(self, piece_hash: str) -> bytes:
        """The bytes whose hex SHA-256 is `piece_hash`.

        Raises:
            KeyError: this corpus has no such piece.
        """
        return bytes(self._pieces[piece_hash])


def build_corpus(
    piece_bytes: int, *, validation_pieces: int | None = None, root: Path | None = None
) -> Corpus:
    """Read, split and cut the standard library of this interpreter. Takes some tenths of a second.

    Args:
        piece_bytes: bytes of one piece, at least 1.
        validation_pieces: keep at most this many validation pieces, spread evenly over the
            validation text; None keeps all.
        root: a folder to read instead of the standard library.

    Raises:
        CorpusMissing: the folder holds no source, or too little to split.
    """
    if piece_bytes < 1:
        raise ValueError(f"piece_bytes must be at least 1, not {piece_bytes}")
    if validation_pieces is not None and validation_pieces < 1:
        raise ValueError(f"validation_pieces must be at least 1, not {validation_pieces}")
    folder = library_folder() if root is None else root
    files = read_sources(folder)
    if not files:
        raise CorpusMissing(
            f"no Python source files under {folder}. The built-in text is the standard library's "
            "own source, which embedded and zipped Python builds leave out. Start the coordinator "
            'with an ordinary CPython, or set [data] source = "own".'
        )
    train_files, validation_files = split_files(files)
    if not train_files or not validation_files:
        raise CorpusMissing(
            f"only {len(files)} source files under {folder}: too few to set some aside for "
            "validation. Start the coordinator with a complete CPython, or set "
            '[data] source = "own".'
        )
    train = _cut(join_files(train_files), piece_bytes)
    validation = _thin(_cut(join_files(validation_files), piece_bytes), validation_pieces)
    train_hashes = tuple(hashlib.sha256(piece).hexdigest() for piece in train)
    validation_hashes = tuple(hashlib.sha256(piece).hexdigest() for piece in validation)
    return Corpus(
        train=train_hashes,
        validation=validation_hashes,
        manifest=_manifest(files, piece_bytes, train_hashes, validation_hashes),
        _pieces=dict(zip(train_hashes + validation_hashes, train + validation, strict=True)),
    )


def library_folder() -> Path:
    """Folder of this interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_sources(root: Path) -> tuple[SourceFile, ...]:
    """Every non-empty ``.py`` file under `root` outside SKIPPED_FOLDERS, sorted by path.

    A folder that does not exist has no files. Links to folders are not followed, and a file that
    cannot be read is left out: the manifest says what was read.
    """
    files: list[SourceFile] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if not name.endswith(".py"):
                continue
            path = Path(folder, name)
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if data:
                files.append(SourceFile(path.relative_to(root).as_posix(), data))
    return tuple(sorted(files, key=lambda file: file.path))


def split_files(
    files: tuple[SourceFile, ...],
) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
    """Training files and validation files, each in the order given.

    Contents are taken into validation in the order of their SHA-256 while they fit into
    VALIDATION_SHARE of all bytes, so one large file cannot become the whole validation text.
    Files with equal contents stay together: nothing is in both parts.
    """
    digests = [hashlib.sha256(file.data).digest() for file in files]
    sizes: Counter[bytes] = Counter()
    for file, digest in zip(files, digests, strict=True):
        sizes[digest] += len(file.data)
    room = int(VALIDATION_SHARE * sizes.total())
    chosen: set[bytes] = set()
    for digest in sorted(sizes):
        if sizes[digest] <= room:
            room -= sizes[digest]
            chosen.add(digest)
    pairs = tuple(zip(files, digests, strict=True))
    return (
        tuple(file for file, digest in pairs if digest not in chosen),
        tuple(file for file, digest in pairs if digest in chosen),
    )


def join_files(files: Iterable[SourceFile]) -> bytes:
    """The files' bytes, SEPARATOR after each."""
    return b"".join(part for file in files for part in (file.data, SEPARATOR))


def _cut(text: bytes, piece_bytes: int) -> tuple[memoryview, ...]:
    view = memoryview(text)
    return tuple(view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes))


def _thin(pieces: tuple[memoryview, ...], keep: int | None) -> tuple[memoryview, ...]:
    if keep is None or keep >= len(pieces):
        return pieces
    return tuple(pieces[index * len(pieces) // keep] for index in range(keep))


def _manifest(
    files: tuple[SourceFile, ...],
    piece_bytes: int,
    train: tuple[str, ...],
    validation: tuple[str, ...],
) -> bytes:
    described = {
        "source": STDLIB,
        "python": platform.python_version(),
        "separator": SEPARATOR.hex(),
        "piece_bytes": piece_bytes,
        "files": [
            [file.path, len(file.data), hashlib.sha256(file.data).hexdigest()] for file in files
        ],
        "train": train,
        "validation": validation,
    }
    return json.dumps(described, sort_keys=True, separators=(",", ":")).encode()

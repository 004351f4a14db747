"""Text files, found and read a block at a time: never a whole file, however large.

A file counts as text if all of it is UTF-8 without a zero byte. Others are skipped and counted.
Hidden files and folders (.git) are not looked at, and links to folders are not followed.
"""

import codecs
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.errors import UserError

BLOCK_BYTES = 1 << 20

_ASK = (
    "A source is a folder or a file of UTF-8 text, JSONL (.jsonl), tokens (.bin), hf:NAME, "
    'or one of "python-stdlib" and "own". Paths are relative to the run file.'
)


@dataclass(frozen=True, slots=True)
class File:
    """One file as the folder shows it: enough to see that it was not touched since."""

    path: str
    size: int
    changed_ns: int


def find(place: str) -> tuple[File, ...]:
    """Return every non-empty file under a folder, or the one file, sorted by path.

    Raises:
        UserError: SWT-E820, there is nothing at that place.
    """
    root = Path(place)
    if root.is_file():
        paths = [root]
    elif root.is_dir():
        paths = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            paths += [Path(folder, name) for name in names if not name.startswith(".")]
    else:
        raise UserError("SWT-E820", f"There is no text at {place}.", "No run was started.", _ASK)
    return tuple(file for path in sorted(paths) if (file := _stat(path)) is not None)


def _stat(path: Path) -> File | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    is_text = path.is_file() and stat.st_size
    return File(str(path), stat.st_size, stat.st_mtime_ns) if is_text else None


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

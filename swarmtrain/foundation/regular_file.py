"""Files that somebody else may have made: regular ones only, and no longer than they can be.

A folder from elsewhere may hold a pipe into which nobody writes, a device without an end, a link to
either, or a file of terabytes that takes no room on a disk. None of these is read.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


class UnfitFile(OSError):
    """The file is none that can be what it is taken for; nothing of it was read."""


@contextmanager
def opened(path: str | Path, most: int | None = None) -> Iterator[BufferedReader]:
    """Open a file to read it while this lasts.

    Args:
        path: may be a link to a regular file.
        most: bytes that it may have; None for any number.

    Raises:
        UnfitFile: it is a folder, a pipe, a device or the like, or longer than `most`.
        OSError: it cannot be opened.
    """
    check(path, most)  # to open a device may be to use it
    # Without O_NONBLOCK a pipe that came in between would wait for whoever writes into it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb") as file:
        _check(os.fstat(file.fileno()), path, most)
        yield file


def read(path: str | Path, most: int | None) -> bytes:
    """Return the bytes of a file. Errors are those of `opened`."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def check(path: str | Path, most: int | None = None) -> None:
    """Look at a file that others will open. Errors are those of `opened`."""
    _check(os.stat(path), path, most)


def _check(found: os.stat_result, path: str | Path, most: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise UnfitFile(number, "it is no regular file", str(path))
    if most is not None and found.st_size > most:
        raise UnfitFile(errno.EINVAL, f"it is longer than {most} bytes", str(path))

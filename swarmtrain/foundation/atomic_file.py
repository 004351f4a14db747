"""Files that are there whole or not at all, whenever the power goes."""

import os
from collections.abc import Iterable
from pathlib import Path


def write(
    path: Path,
    data: bytes | Iterable[bytes | bytearray | memoryview],
    *,
    mode: int = 0o666,
    sync: bool = True,
) -> None:
    """Write a file, or replace it: written aside, flushed to the disk and renamed.

    Args:
        path: place of the file, in a folder that exists.
        data: all of its contents, or piece by piece.
        mode: permissions of the file from its first moment, less the umask.
        sync: flush file and folder; False for what is checked by hash when it is read, and not
            missed where it is damaged.

    Raises:
        OSError: it cannot be written; a file of that name is as it was, and nothing is beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)  # a killed process had the same id
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "wb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(aside)):
            error.filename = str(path)  # so that messages name what its reader knows
        raise
    if sync:
        sync_folder(path.parent)


def rename(old: Path, new: Path) -> None:
    """Give a file or a folder another name in the same folder, for good.

    Raises:
        OSError: it cannot be renamed.
    """
    os.replace(old, new)
    sync_folder(new.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, which a synced file alone is not."""
    if os.name == "nt":  # Windows cannot open folders; NTFS journals names itself
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

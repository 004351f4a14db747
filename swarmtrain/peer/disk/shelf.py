"""Disk of a keeper: states of stages that the peer does not serve, a file per name."""

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from swarmtrain.foundation import atomic_file
from swarmtrain_transport.arithmetic import Buffer

logger = logging.getLogger(__name__)

KEPT = "kept"
"""Folder of them, in the state directory."""


class DiskShelf:
    """A `Shelf` of the exchange. Its folders are made when they are first needed.

    Args:
        directory: state directory of the peer.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / KEPT

    def put(self, name: str, data: Buffer) -> bool:
        """Write a file, whole or not at all. False, and a line in the log, if the disk does not
        take it."""
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Nothing is synced: it is checked by its hash when it is read in another life.
            atomic_file.write(path, bytes(data), sync=False)
        except OSError as error:
            logger.warning("%s: %s; no more is kept for others", path, error.strerror or error)
            return False
        return True

    def get(self, name: str, start: int = 0, num_bytes: int | None = None) -> bytes:
        """Read bytes of a file. Raises OSError if the disk does not give them."""
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if num_bytes is None else num_bytes)

    def size(self, name: str) -> int | None:
        """Length of a file, None if there is none."""
        try:
            return os.stat(self._folder / name).st_size
        except OSError:
            return None

    def names(self) -> list[str]:
        """All names, in order."""
        whole = [path for path in self._folder.glob("*/*") if not path.name.startswith(".")]
        return sorted(path.relative_to(self._folder).as_posix() for path in whole)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files, and folders that are empty then."""
        for name in names:
            path = self._folder / name
            path.unlink(missing_ok=True)
            if not any(path.parent.glob("*")):
                shutil.rmtree(path.parent, ignore_errors=True)


def free_bytes(directory: Path) -> int:
    """Room on the disk where a state directory is, or is to be made."""
    known = next(path for path in (directory, *directory.resolve().parents) if path.exists())
    return shutil.disk_usage(known).free

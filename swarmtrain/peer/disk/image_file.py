"""Copies of a state on the disk, for peers that come: memory has one already, the live one.

Each copy is a file of its own that has no name once it is open: it is gone with whoever holds its
pieces, at the latest with the process. Nothing is synced, as nobody asks for it after a power cut.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.retention import Kept

logger = logging.getLogger(__name__)


class _File:
    """A file without a name, which ends with this object.

    Args:
        directory: folder of the bytes.

    Attributes:
        number: descriptor of the open file.
    """

    def __init__(self, directory: Path) -> None:
        self.number, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)

    def add(self, data: memoryview) -> None:
        """Write at its end."""
        while data:
            data = data[os.write(self.number, data) :]


class _Part(Kept):
    """Bytes of a file, which lives as long as one of its parts."""

    __slots__ = ("_file", "_start")

    def __init__(self, file: _File, start: int, num_bytes: int) -> None:
        super().__init__(b"")
        self.num_bytes = num_bytes
        self._file, self._start = file, start

    def read(self, start: int = 0, num_bytes: int | None = None) -> Buffer:
        """See `Kept.read`."""
        left = self.num_bytes - start if num_bytes is None else num_bytes
        place, found = self._start + start, []
        while left:
            data = os.pread(self._file.number, left, place)
            if not data:
                raise OSError("a copy of the state was cut off")
            found.append(data)
            place, left = place + len(data), left - len(data)
        return b"".join(found)


def put_in(directory: Path) -> Callable[[Iterable[memoryview], int], tuple[Kept, ...] | None]:
    """A function that puts states into files of this directory, see `state_image.Put`."""

    def put(parts: Iterable[memoryview], piece_bytes: int) -> tuple[Kept, ...] | None:
        try:
            file, total = _File(directory), 0
            for part in parts:
                total += len(part)
                file.add(part)
        except OSError as error:
            logger.warning(
                "%s: %s; a copy of the state stays in memory instead",
                directory, error.strerror or error,
            )  # fmt: skip
            return None
        return tuple(
            _Part(file, start, min(piece_bytes, total - start))
            for start in range(0, total, piece_bytes)
        )

    return put

"""A peer's file for what memory has no room for: parts of an op, results of past ones.

It has no name once it is open, so it is gone with the process, however that ends. Nothing is
synced: nobody asks for it after a power cut. Room that was freed is used again, the first that is
large enough; what is free at the end is given back to the disk.
"""

import logging
import os
from bisect import bisect_left
from pathlib import Path

from swarmtrain_transport.arithmetic import Buffer

logger = logging.getLogger(__name__)

_NAME = "spill.bin"


class SpillFile:
    """A `Spill` of the exchange. The file is made when it is first needed.

    Args:
        directory: state directory of the peer.

    Attributes:
        num_bytes: length of the file.
    """

    def __init__(self, directory: Path) -> None:
        self.num_bytes = 0
        self._path = directory / _NAME
        self._file = -1
        self._is_refusing = False
        self._holes: list[tuple[int, int]] = []

    def put(self, data: Buffer) -> int | None:
        """Write these bytes. None, and a line in the log, if the disk does not take them."""
        size = len(data)
        place = self._room_for(size)
        try:
            if self._file < 0:
                self._open()
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.pwrite(self._file, rest, place + size - len(rest)) :]
        except OSError as error:
            self.free(place, size)
            if not self._is_refusing:
                logger.warning(
                    "%s: %s; parts and results stay in memory instead",
                    self._path, error.strerror or error,
                )  # fmt: skip
            self._is_refusing = True
            return None
        self._is_refusing = False
        return place

    def get(self, place: int, num_bytes: int) -> bytes:
        """Read bytes that were written. Raises OSError if the disk does not give them."""
        pieces: list[bytes] = []
        while num_bytes > 0:
            piece = os.pread(self._file, num_bytes, place)
            if not piece:
                raise OSError(f"{self._path} ends before {num_bytes} bytes that were written")
            pieces.append(piece)
            place, num_bytes = place + len(piece), num_bytes - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def free(self, place: int, num_bytes: int) -> None:
        """Somebody else may have the room of what was put there."""
        at = bisect_left(self._holes, (place, 0))
        start, stop = place, place + num_bytes
        if at < len(self._holes) and self._holes[at][0] == stop:
            stop += self._holes.pop(at)[1]
        if at and sum(self._holes[at - 1]) == start:
            start = self._holes.pop(at - 1)[0]
            at -= 1
        if stop < self.num_bytes:
            self._holes.insert(at, (start, stop - start))
            return
        self.num_bytes = start
        if self._file >= 0:
            os.ftruncate(self._file, start)

    def close(self) -> None:
        """Drop it: nobody asks for it any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._path.unlink()

    def _room_for(self, size: int) -> int:
        """The first hole that is large enough, else the end of the file."""
        for at, (start, length) in enumerate(self._holes):
            if length >= size:
                if length == size:
                    del self._holes[at]
                else:
                    self._holes[at] = (start + size, length - size)
                return start
        start, self.num_bytes = self.num_bytes, self.num_bytes + size
        return start

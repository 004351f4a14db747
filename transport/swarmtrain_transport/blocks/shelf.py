"""A shelf: bytes that a peer keeps on its disk for others, by name, beyond the end of its process.

Sans IO but for the shell's disk, as `retention`'s spill. A name proves nothing of its bytes:
whatever is taken from the shelf of an earlier life is checked.
"""

from collections.abc import Iterable
from typing import Protocol

from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.retention import Kept


class Shelf(Protocol):
    """The disk."""

    def put(self, name: str, data: Buffer) -> bool:
        """Keep these bytes, whole or not at all; False if there is no room for them."""

    def get(self, name: str, start: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of what is kept under a name, all from `start` on unless told.

        Raises:
            OSError: they cannot be read.
        """

    def size(self, name: str) -> int | None:
        """Length of what is kept under a name, None for nothing."""

    def names(self) -> list[str]:
        """All names, in order."""

    def drop(self, names: Iterable[str]) -> None:
        """Forget what is kept under these; of an unknown one nothing is kept anyway."""


class MemoryShelf:
    """A shelf without a disk."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, name: str, data: Buffer) -> bool:
        """See `Shelf`."""
        self.kept[name] = bytes(data)
        return True

    def get(self, name: str, start: int = 0, num_bytes: int | None = None) -> bytes:
        """See `Shelf`."""
        stop = None if num_bytes is None else start + num_bytes
        return self.kept[name][start:stop]

    def size(self, name: str) -> int | None:
        """See `Shelf`."""
        return len(self.kept[name]) if name in self.kept else None

    def names(self) -> list[str]:
        """See `Shelf`."""
        return sorted(self.kept)

    def drop(self, names: Iterable[str]) -> None:
        """See `Shelf`."""
        for name in list(names):
            self.kept.pop(name, None)


class Shelved(Kept):
    """Bytes on a shelf, among others that are in memory.

    Args:
        shelf: shelf that has them.
        name: their name there.
        num_bytes: their length.
    """

    __slots__ = ("_name", "_shelf")

    def __init__(self, shelf: Shelf, name: str, num_bytes: int) -> None:
        super().__init__(b"")
        self.num_bytes = num_bytes
        self._shelf, self._name = shelf, name

    def read(self, start: int = 0, num_bytes: int | None = None) -> Buffer:
        """See `Kept`."""
        return self._shelf.get(self._name, start, num_bytes)

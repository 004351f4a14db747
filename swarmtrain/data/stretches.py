"""Stretches of files as one long text: its form on the disk, without its meaning."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec


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
        """Cut the whole text into pieces."""
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


@dataclass(frozen=True, slots=True)
class Parts:
    """A text to train on and one to judge by.

    Attributes:
        skipped: files that were no text.
        is_given: the second one was named as such, not drawn.
    """

    train: list[Extent]
    validation: list[Extent]
    skipped: int = 0
    is_given: bool = False


def is_drawn(digest: bytes, share: float) -> bool:
    """Return True if the document of this SHA-256 is set aside."""
    return int.from_bytes(digest[:8], "big") < share * 2**64

"""Bytes kept for later: in memory up to a bound, and beyond it in a file of the shell's.

An owner keeps every part of its slice until nobody can be taken out of the sum any more, and
results are kept for peers that fell behind. Nearly all of it is never looked at again. So cold
bytes go to the file first: results of past ops, parts whose chunk has been summed, and parts
already sent. The oldest of each kind goes first, because a new one is on its way to somebody and
held by that anyway. Bytes for which the file has no room stay in memory; nothing is lost.

Pure but for the spill, which is the shell's. Not here: snapshots of the state, which are counted by
ops and not by bytes.
"""

from typing import Protocol

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer


class Spill(Protocol):
    """Bytes that need not be in memory. They need not outlive the process."""

    def put(self, data: Buffer) -> int | None:
        """Move these bytes; return their new place, None if there is no room for them."""

    def get(self, place: int, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes from a place on, which lie within what one `put` has put there.

        Raises:
            OSError: they cannot be read.
        """

    def free(self, place: int, num_bytes: int) -> None:
        """Forget what one `put` has put there: nobody asks for it any more."""


class Kept:
    """Bytes that are kept, wherever they are.

    Args:
        data: must not change.
        retention: may move them to the file; None if somebody else needs them in memory anyway.

    Attributes:
        num_bytes: their length.
    """

    __slots__ = ("_data", "_place", "_retention", "num_bytes")

    def __init__(self, data: Buffer, retention: "Retention | None" = None) -> None:
        self.num_bytes = len(data)
        self._data: Buffer | None = data
        self._place = 0
        self._retention = retention

    def read(self, start: int = 0, num_bytes: int | None = None) -> Buffer:
        """The bytes, or so many of them from `start` on.

        Raises:
            OSError: they are in the file and cannot be read.
        """
        length = self.num_bytes - start if num_bytes is None else num_bytes
        data = self._data
        if data is None:
            assert self._retention is not None
            return self._retention.spill_get(self._place + start, length)
        return data if length == self.num_bytes else memoryview(data)[start : start + length]

    def cool(self) -> None:
        """Mark these bytes as hardly needed again."""
        if self._retention is not None and self._data is not None:
            self._retention.cooled(self)

    def release(self) -> None:
        """Let go of these bytes. Twice is allowed."""
        retention, self._retention = self._retention, None
        if retention is None:
            return
        retention.released(self, None if self._data is not None else self._place)
        self._data = b""

    def move(self, spill: Spill) -> bool:
        """Move these bytes out of memory, if there is room; for the retention alone."""
        assert self._data is not None
        place = spill.put(self._data)
        if place is None:
            return False
        self._data, self._place = None, place
        return True


Piece = Buffer | Kept
"""A chunk of a state, in memory or elsewhere. It does not change."""


def bytes_of(piece: Piece) -> bytes:
    """The bytes of a piece, in memory. Raises OSError: they cannot be read."""
    return bytes(piece.read() if isinstance(piece, Kept) else piece)


class Retention:
    """One peer's kept bytes.

    Args:
        spill: takes what is beyond the bound; None keeps all in memory.
        memory_max: bytes that may be in memory as long as the spill has room.

    Attributes:
        memory_bytes: bytes in memory now.
        spilled_bytes: bytes in the file now.
    """

    def __init__(
        self, spill: Spill | None = None, memory_max: int = limits.RETAIN_MEMORY_BYTES
    ) -> None:
        self.memory_bytes = 0
        self.spilled_bytes = 0
        self.memory_max = memory_max
        self._spill = spill
        self._warm: dict[Kept, None] = {}
        self._cold: dict[Kept, None] = {}

    def keep(self, data: Buffer) -> Kept:
        """Keep these bytes until they are released; they must not change."""
        kept = Kept(data, self)
        self._warm[kept] = None
        self.memory_bytes += kept.num_bytes
        self._make_room()
        return kept

    def _make_room(self) -> None:
        while self._spill is not None and self.memory_bytes > self.memory_max:
            pile = self._cold or self._warm
            kept = next(iter(pile))
            if not kept.move(self._spill):
                return
            del pile[kept]
            self.memory_bytes -= kept.num_bytes
            self.spilled_bytes += kept.num_bytes

    # ---- called by what is kept

    def spill_get(self, place: int, num_bytes: int) -> bytes:
        """Bytes of the file."""
        assert self._spill is not None
        return self._spill.get(place, num_bytes)

    def cooled(self, kept: Kept) -> None:
        """Let it go before what is warm."""
        if kept in self._warm:
            del self._warm[kept]
            self._cold[kept] = None

    def released(self, kept: Kept, place: int | None) -> None:
        """Forget it; `place` says where in the file it was, None for memory."""
        if place is None:
            self.memory_bytes -= kept.num_bytes
            self._warm.pop(kept, None)
            self._cold.pop(kept, None)
        else:
            assert self._spill is not None
            self.spilled_bytes -= kept.num_bytes
            self._spill.free(place, kept.num_bytes)

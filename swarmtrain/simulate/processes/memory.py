"""The store of a simulated peer, in memory or in a file: I10 of protocol.md part 2.

One peer in three has memory for all, one for nothing at all and one for a little, and the file of
that one is full every now and then. None of it may change the outcome: no draw of the world's
chance is used for it.
"""

from collections.abc import Callable

from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.peer.participant import Participant

Report = Callable[[str, str], None]
"""(invariant, story)."""

_LITTLE = 600
"""Bytes: about one chunk of each of two peers."""

_REFUSED_EVERY = 5


class SimFile:
    """A `Spill`. It knows what it was given, so that a wrong place does not go unnoticed.

    Args:
        refused_every: number of calls of which one finds no room; 0 for none.

    Attributes:
        has_refused: True if the last `put` found no room.
        given: bytes that are here, by place.
    """

    def __init__(self, refused_every: int = 0) -> None:
        self.has_refused = False
        self.given: dict[int, bytes] = {}
        self._refused_every = refused_every
        self._puts = 0
        self._end = 0

    def put(self, data: Buffer) -> int | None:
        """See `Spill`."""
        self._puts += 1
        self.has_refused = bool(self._refused_every) and self._puts % self._refused_every == 0
        if self.has_refused:
            return None
        place, self._end = self._end, self._end + len(data) + 1
        self.given[place] = bytes(data)
        return place

    def get(self, place: int, num_bytes: int) -> bytes:
        """See `Spill`."""
        base = place if place in self.given else max(p for p in self.given if p <= place)
        found = self.given[base][place - base : place - base + num_bytes]
        assert len(found) == num_bytes
        return found

    def free(self, place: int, num_bytes: int) -> None:
        """See `Spill`."""
        assert len(self.given.pop(place)) == num_bytes


class WatchedMemory:
    """One process's kept bytes, looked at after each of its events.

    Args:
        number: number of the peer.
        retain_bytes: bytes of others' parts that it has declared to keep.
        report: hears of what does not hold.

    Attributes:
        retention: retention for its participant.
    """

    def __init__(self, number: int, retain_bytes: int, report: Report) -> None:
        self._file = SimFile(_REFUSED_EVERY if number % 3 == 2 else 0)
        self._retain_bytes = retain_bytes
        self._report = report
        if number % 3:
            self.retention = Retention(self._file, _LITTLE if number % 3 == 2 else 0)
        else:
            self.retention = Retention()

    def look(self, machine: Participant) -> None:
        """I10: kept bytes are within what was declared, and those in memory within its bound."""
        retention = self.retention
        for group in machine.groups.values():
            for exchange in group.exchanges.values():
                if exchange.retained_bytes > self._retain_bytes:
                    story = f"{exchange.retained_bytes} of {self._retain_bytes} bytes are kept"
                    self._report("I10", story)
        if retention.memory_bytes > retention.memory_max and not self._file.has_refused:
            self._report("I10", f"{retention.memory_bytes} bytes are in memory")

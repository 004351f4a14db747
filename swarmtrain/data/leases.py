"""Leases of text, accounted for exactly once per pass. Sans IO, the same in every place.

A piece has a *turn*: the number of times that it was used. A peer leases it for its present turn,
reads all its windows, and reports piece and turn as done; then the turn is over and the piece is
counted. A report for another turn counts nothing, so none counts twice, however often it is said
and whoever says it. When a peer is gone, the pieces that it held are free again, with their turns
unchanged. The run is in pass n + 1 when every piece was used n times.

Free pieces of the lowest turn go first, in an order drawn anew for each turn. A piece that somebody
holds is leased to a second one only when all free ones are a turn ahead of it: at the end of a pass
nobody waits for the slowest, and nobody who sits on a piece keeps it from the others for long. The
first report counts then.

Not here: that a piece was really used is a peer's word (SECURITY.md).
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased
from swarmtrain_transport.wire.text_place import TextPlace

_Entry = tuple[int, int, bytes, bytes]

_STALE_MAX = 4
"""The heap is made anew when it holds so many entries per piece: one is true, the others are old.
Making it takes as long as the requests that brought it there."""

HELD_MAX = 2
"""Leases that a peer holds at most: one that it reads, and the next one."""


class Leases:
    """Grants and takes back leases of the pieces of one text.

    Args:
        pieces: their hashes, each once.
        seed: seed of the order among equals.
        most: pieces in one lease.
        uses: number of earlier uses of each piece, where there were any.
    """

    def __init__(
        self, pieces: Sequence[bytes], *, seed: int, most: int, uses: Mapping[bytes, int]
    ) -> None:
        self._most = most
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._turns = {piece: uses.get(piece, 0) for piece in pieces}
        self._with = Counter(self._turns.values())
        self._holders = dict.fromkeys(pieces, 0)
        self._leases: dict[PeerId, dict[bytes, int]] = {}
        self._next: list[_Entry] = []
        self._order()

    @property
    def progress(self) -> TextPlace:
        """Pass and position; of no text none."""
        lowest = min(self._with, default=0)
        total = len(self._turns)
        return TextPlace(lowest + 1, total - self._with[lowest], total)

    def held(self, peer: PeerId) -> Mapping[bytes, int]:
        """Return the pieces that a peer holds, with their turns."""
        return self._leases.get(peer, {})

    def holders(self) -> Mapping[PeerId, Mapping[bytes, int]]:
        """Return what each peer holds."""
        return self._leases

    def count(self, peer: PeerId, done: Sequence[Leased]) -> dict[bytes, int]:
        """Take a peer's word for what it has used.

        Args:
            peer: peer that says so.
            done: pieces with the turns that they were leased for.

        Returns:
            New turns of those that count. They must be durable before anything else happens.
        """
        counted: dict[bytes, int] = {}
        mine = self._leases.get(peer, {})
        for piece, turn in done:
            if self._turns.get(piece) != turn or (self._holders[piece] and piece not in mine):
                continue
            counted[piece] = turn + 1
            self._turns[piece] = turn + 1
            self._with[turn] -= 1
            self._with[turn + 1] += 1
            if not self._with[turn]:
                del self._with[turn]
            heapq.heappush(self._next, self._entry(piece))
        return counted

    def grant(self, peer: PeerId, count: int, held: Sequence[Leased] = ()) -> tuple[Leased, ...]:
        """Give the peer `count` pieces, or as many as one may have, beside those of `held` that it
        may go on with. It holds nothing else from now on; who leaves wants 0.

        Raises:
            RemoteFault: reason ``lease``, a count below 0 or more pieces than a peer can hold.
        """
        if count < 0 or len(held) > HELD_MAX * self._most:
            raise RemoteFault("lease", f"a request for {count} pieces beside {len(held)}")
        mine = self._leases.get(peer, {})
        kept = {
            piece: turn for piece, turn in held
            if self._turns.get(piece) == turn and (piece in mine or not self._holders[piece])
        }  # fmt: skip
        self.release(peer)
        self._hold(peer, kept)
        free = len(self._turns) - len(kept)
        room = HELD_MAX * self._most - len(kept)
        self._hold(peer, self._taken(min(count, self._most, room, free), kept))
        return tuple(Leased(piece, turn) for piece, turn in self.held(peer).items())

    def release(self, peer: PeerId) -> None:
        """Take back what the peer holds, if anything."""
        for piece in self._leases.pop(peer, ()):
            self._holders[piece] -= 1
            heapq.heappush(self._next, self._entry(piece))
        if len(self._next) > _STALE_MAX * (len(self._turns) + HELD_MAX * self._most):
            self._order()

    def withdraw(self, piece: bytes) -> None:
        """Forget a piece that cannot be read any more: there is one less from now on."""
        turn = self._turns.pop(piece, None)
        if turn is None:
            return
        self._with[turn] -= 1
        if not self._with[turn]:
            del self._with[turn]
        del self._holders[piece]
        for lease in self._leases.values():
            lease.pop(piece, None)
        self._order()

    def _hold(self, peer: PeerId, pieces: Mapping[bytes, int]) -> None:
        for piece in pieces:
            self._holders[piece] += 1
            heapq.heappush(self._next, self._entry(piece))
        self._leases.setdefault(peer, {}).update(pieces)

    def _taken(self, count: int, beside: Mapping[bytes, int]) -> dict[bytes, int]:
        """The next pieces, none of which the peer has already."""
        taken: dict[bytes, int] = {}
        passed: list[_Entry] = []
        while len(taken) < count:
            entry = heapq.heappop(self._next)
            piece = entry[-1]
            if entry != self._entry(piece) or piece in taken:
                continue
            if piece in beside:
                passed.append(entry)
            else:
                taken[piece] = self._turns[piece]
        for entry in passed:
            heapq.heappush(self._next, entry)
        return taken

    def _order(self) -> None:
        self._next = [self._entry(piece) for piece in self._turns]
        heapq.heapify(self._next)  # entries whose piece has another place now are passed over

    def _entry(self, piece: bytes) -> _Entry:
        turn, holders = self._turns[piece], self._holders[piece]
        drawn = hashlib.blake2b(piece + turn.to_bytes(8, "little"), digest_size=8, key=self._seed)
        return turn + holders, holders, drawn.digest(), piece

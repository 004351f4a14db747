"""Leases of text: each piece counts once per turn, and only if somebody has read all of it.

Kept apart from the machine that decides: who holds what follows from the grants that were sent, the
turns from what became durable. The names are X1 to X4, as protocol.md numbers no rule of text.

- X1: a piece's turn grows by one at a time, and never falls.
- X2: a piece counts only when one process has read every window of it in that turn.
- X3: what nobody holds is leased before what was used more often: nothing that a dead peer held is
  forgotten.
- X4: PLAN says where the run is in its text, if there is any.
"""

from collections.abc import Callable, Mapping, Sequence

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased
from swarmtrain_transport.wire.text_place import TextPlace


class LeaseChecks:
    """Checks the leases of one world.

    Args:
        windows: training windows of every piece.
        violated: hears what does not hold.
    """

    def __init__(self, windows: int, violated: Callable[[str, str], None]) -> None:
        self._windows, self._violated = windows, violated
        self._turns: dict[bytes, int] = {}
        self._pieces: tuple[bytes, ...] = ()
        self._held: dict[PeerId, set[bytes]] = {}
        self._read: dict[tuple[bytes, Leased], set[int]] = {}
        self._whole: set[Leased] = set()
        self.counted = 0
        self.passes = 0

    def began(self, pieces: Sequence[bytes]) -> None:
        """A life of the coordinator begins: it knows of no lease."""
        self._pieces = tuple(pieces)
        self._held.clear()

    def read(self, boot: bytes, leased: Leased, first: int) -> None:
        """A process has read a window."""
        seen = self._read.setdefault((boot, leased), set())
        seen.add(first)
        if len(seen) >= self._windows:
            self._whole.add(leased)

    def used(self, uses: Mapping[bytes, int]) -> None:
        """Pieces count as used so often; it is durable."""
        for piece, turn in uses.items():
            known = self._turns.get(piece, 0)
            if turn != known + 1:
                self._violated("X1", f"turn {known} of a piece is followed by {turn}")
            if Leased(piece, known) not in self._whole:
                self._violated(
                    "X2", f"a piece counts in turn {known} that nobody has read to its end"
                )
            self._turns[piece] = turn
            self.counted += 1
        self.passes = min((self._turns.get(piece, 0) for piece in self._pieces), default=0)

    def granted(self, peer: PeerId, held: Sequence[Leased], train: Sequence[Leased]) -> None:
        """A grant is sent to a peer that has said what it still holds: with that it goes on."""
        before = {one.piece for one in held}
        self._held.pop(peer, None)
        others: set[bytes] = set().union(*self._held.values())
        mine = {one.piece for one in train}
        free = [self._turn(p) for p in self._pieces if p not in others and p not in mine]
        for piece, turn in train:
            if turn != self._turn(piece):
                self._violated(
                    "X1", f"a piece is leased for turn {turn} in its {self._turn(piece)}"
                )
            worth = turn + sum(piece in theirs for theirs in self._held.values())
            if piece not in before and free and min(free) < worth:
                self._violated(
                    "X3", f"a free piece of turn {min(free)} waits behind one of {worth}"
                )
        self._held[peer] = mine

    def planned(self, text: TextPlace | None) -> None:
        """A PLAN is logged that names this place."""
        here = None
        if self._pieces:
            used = sum(self._turn(piece) > self.passes for piece in self._pieces)
            here = TextPlace(self.passes + 1, used, len(self._pieces))
        if text != here:
            self._violated("X4", f"PLAN names {text} of the text, the run is at {here}")

    def released(self, peer: PeerId) -> None:
        """A peer's connection is gone, and what it held is free."""
        self._held.pop(peer, None)

    def _turn(self, piece: bytes) -> int:
        return self._turns.get(piece, 0)

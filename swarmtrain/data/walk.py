"""A way through leased pieces: every window once, in a drawn order, and then the piece is done.

Windows of one lease are shuffled together; those of the next lease come after them, so a piece is
done when its lease is. When all are read and no new piece has come, the way begins again, so that
training never waits for text: what is read then counts for nothing.
"""

import random
from collections.abc import Mapping, Sequence

from swarmtrain_transport.wire.messages import Leased, LeaseRequest

Window = tuple[bytes, int]
"""A piece's hash, and the token in it at which the window begins."""


class Walk:
    """The windows of what one peer holds.

    Args:
        context: tokens in one window; the token after it is its last target.
        rng: generator of order and cuts.
    """

    def __init__(self, context: int, rng: random.Random) -> None:
        self._context = context
        self._rng = rng
        self._turns: dict[bytes, int] = {}
        self._sizes: dict[bytes, int] = {}
        self._left: dict[bytes, int] = {}
        self._ahead: list[Window] = []
        self._around: list[Window] = []
        self._new = 0
        self._is_asked = False

    @property
    def wants_more(self) -> bool:
        """True if half of the newest lease is read, or more, and nobody was asked yet."""
        return not self._is_asked and 2 * len(self._ahead) <= self._new

    def ask(self, count: int) -> LeaseRequest:
        """Return what to say to get so many pieces more. It may be said twice: it counts once."""
        self._is_asked = True
        return LeaseRequest(count, self.held, self.done)

    def finish(self) -> LeaseRequest:
        """Return what to say to count what was read and hold nothing any more."""
        return LeaseRequest(0, (), self.done)

    def failed(self) -> None:
        """Hear that what was leased did not come: it is asked for again."""
        self._is_asked = False

    @property
    def done(self) -> tuple[Leased, ...]:
        """Pieces of which every window was read."""
        return tuple(Leased(p, self._turns[p]) for p, left in self._left.items() if not left)

    @property
    def held(self) -> tuple[Leased, ...]:
        """Pieces that are still to be read, at least in part."""
        return tuple(Leased(p, self._turns[p]) for p, left in self._left.items() if left)

    def hold(self, granted: Sequence[Leased], sizes: Mapping[bytes, int]) -> None:
        """Go on with these pieces and no others; windows that were read stay read.

        Args:
            granted: all that the peer holds now.
            sizes: tokens of each of them, and of others that may be read when these are.
        """
        turns = dict(granted)
        same = {piece for piece, turn in turns.items() if self._turns.get(piece) == turn}
        ahead = [window for window in self._ahead if window[0] in same]
        new = [window for p in turns if p not in same for window in self._windows(p, sizes[p])]
        self._rng.shuffle(new)
        left = dict.fromkeys(turns, 0)
        for piece, _ in (*ahead, *new):
            left[piece] += 1
        self._turns, self._left = turns, left
        self._sizes = dict(sizes)
        self._ahead = [*reversed(new), *ahead]  # read from the end
        self._new = len(new)
        self._around = []
        self._is_asked = False

    def next(self, count: int) -> list[Window]:
        """The next windows.

        Raises:
            ValueError: no piece that is held has one.
        """
        return [self._one() for _ in range(count)]

    def _one(self) -> Window:
        if self._ahead:
            window = self._ahead.pop()
            self._left[window[0]] -= 1
            return window
        if not self._around:
            self._around = [w for p, size in self._sizes.items() for w in self._windows(p, size)]
            self._rng.shuffle(self._around)
        if not self._around:
            raise ValueError(f"no piece holds a window of {self._context} + 1 tokens")
        return self._around.pop()

    def _windows(self, piece: bytes, size: int) -> list[Window]:
        """All windows of a piece that do not overlap, cut at another place every time."""
        whole, spare = divmod(size - 1, self._context)
        if whole < 1:
            return []
        first = self._rng.randint(0, spare)
        return [(piece, first + self._context * number) for number in range(whole)]

"""GOT and HAVE that wait for others of their op.

In an op in cells a member owns some of hundreds of slices and takes all of them. So it says what it
has of several slices together, except the last word, for which others may wait.
"""

import math

from swarmtrain_transport import limits
from swarmtrain_transport.wire.messages import Have, joined


class Withheld:
    """Words of one op that a member will say soon.

    Args:
        num_slices: number of slices of the op.

    Attributes:
        owned: slices of ours of which GOT is to be said.
        due_s: time at which all of it is to be said.
    """

    def __init__(self, num_slices: int) -> None:
        self.owned: set[int] = set()
        self.due_s = math.inf
        self._haves: dict[int, Have] = {}
        self._whole: set[int] = set()
        self._num_slices = num_slices

    def hold(self, haves: list[Have], now_s: float) -> None:
        """Keep HAVE of slices for a while; once all slices are here it is due at once."""
        for have in haves:
            self._haves[have.slice_index] = have
            if all(have.chunks):
                self._whole.add(have.slice_index)
        if haves:
            is_last = len(self._whole) == self._num_slices
            self._falls_due(now_s if is_last else now_s + limits.CELL_SAY_S)

    def hold_got(self, index: int, now_s: float) -> None:
        """Keep GOT of a slice of ours for a while."""
        self.owned.add(index)
        self._falls_due(now_s + limits.CELL_SAY_S)

    def take(self) -> list[Have]:
        """Take HAVE of all slices that wait, joined; whatever is due is said now."""
        haves = list(self._haves.values())
        self._haves.clear()
        self.owned.clear()
        self.due_s = math.inf
        return [joined(haves)] if haves else []

    def _falls_due(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

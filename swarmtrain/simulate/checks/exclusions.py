"""Work that waits: after three exclusions in a row it is dropped (protocol.md rule 9)."""

from collections.abc import Sequence

import numpy as np

from swarmtrain.simulate.checks.work_balance import Ranges
from swarmtrain.simulate.processes.watched_driver import Learner

_MOST = 3


class Exclusions:
    """Counts of how often in a row each value of one peer's work was left out.

    Args:
        num_values: length of the vector.
    """

    def __init__(self, num_values: int) -> None:
        self._in_row = np.zeros(num_values, dtype=np.int8)

    def ended(
        self, learner: Learner, ranges: Ranges, included: Sequence[tuple[int, int, bool]]
    ) -> int:
        """Count an op that a peer has given to.

        Args:
            learner: peer whose strategy has dropped what it had to.
            ranges: places of its part in the vector.
            included: (start, stop, here) in the part, in order.

        Returns:
            Number of values that it should have dropped and has not, or the other way round.
        """
        places = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        for start, stop, here in included:
            at = places[start:stop]
            self._in_row[at] = 0 if here else self._in_row[at] + 1
        due = self._in_row >= _MOST
        dropped = np.zeros_like(due)
        for start, stop in getattr(learner.strategy, "dropped", ()):
            dropped[start:stop] = True
        self._in_row[due] = 0
        return int((due != dropped).sum())

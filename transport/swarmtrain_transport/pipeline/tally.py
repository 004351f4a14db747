"""Books of a peer: the micro-batches in its accumulator, and in the steps of the round."""

from collections import Counter
from collections.abc import Mapping

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline import orders
from swarmtrain_transport.pipeline.messages import Reason
from swarmtrain_transport.pipeline.requests import Count, Step
from swarmtrain_transport.pipeline.route import Fence, MicroBatch, Process


class Tally:
    """Books of a peer's gradient.

    Attributes:
        steps: inner steps made by this process.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._accumulated: list[Count] = []
        self._counted: dict[tuple[Process, int], Count] = {}
        self._others: dict[tuple[Process, int], tuple[Process | None, Process | None]] = {}
        self._redone: Counter[tuple[int, Reason]] = Counter()

    def __len__(self) -> int:
        """Micro-batches in the accumulator."""
        return len(self._accumulated)

    def __contains__(self, name: MicroBatch) -> bool:
        """Return True if books have an entry of it that is not settled."""
        return name.entry in self._counted

    def add(self, count: Count, above: Process | None = None, below: Process | None = None) -> None:
        """One more is in the accumulator; who has sent its input, and who its gradient."""
        self._counted[count.micro_batch.entry] = count
        self._others[count.micro_batch.entry] = above, below
        self._accumulated.append(count)

    def sent_again(self, name: MicroBatch, reason: Reason) -> None:
        """Note that it goes to yet another receiver."""
        self._redone[name.round, reason] += 1

    def step(self, norm: float | None = None, *, whole: int = 0) -> Step:
        """A step with what is accumulated, by the norm of the whole gradient; or one of which a
        `whole` one has so many micro-batches."""
        num_tokens = sum(count.tokens for count in self._accumulated)
        step = Step(num_tokens, len(self._accumulated), norm, whole)
        self._accumulated.clear()
        self.steps += 1
        return step

    def void(self, fence: Fence) -> None:
        """A step is not made: nothing of it was counted."""
        self._accumulated.clear()
        self._counted = {
            entry: count
            for entry, count in self._counted.items()
            if count.micro_batch.fence != fence
        }
        self._others = {entry: self._others[entry] for entry in self._counted}

    def settle(self, round: int, made: orders.Made) -> orders.Settled:
        """All that was counted up to the round, by source and stage; it is forgotten then."""
        books: dict[tuple[Process, int], set[int]] = {}
        seen: dict[tuple[Process, Process, int], set[int]] = {}
        for entry, count in list(self._counted.items()):
            if count.micro_batch.round > round:
                continue
            del self._counted[entry]
            source, number = entry
            for stage in range(count.first, count.last + 1):
                books.setdefault((source, stage), set()).add(number)
            above, below = self._others.pop(entry)
            for other, stage in ((above, count.first - 1), (below, count.last + 1)):
                if other is not None:
                    seen.setdefault((other, source, stage), set()).add(number)
        counted = tuple(
            orders.Counted(source, stage, marked)
            for (source, stage), numbers in sorted(books.items())
            for marked in orders.runs(numbers)
        )
        redone: Counter[Reason] = Counter()
        for at, reason in [key for key in self._redone if key[0] <= round]:
            redone[reason] += self._redone.pop((at, reason))
        return orders.Settled(round, counted, made, dict(sorted(redone.items())), _told(seen))


def _told(seen: Mapping[tuple[Process, Process, int], set[int]]) -> tuple[orders.Seen, ...]:
    """As much of what was seen as a report has room for."""
    told: list[orders.Seen] = []
    num_bytes = 0
    for key, numbers in sorted(seen.items()):
        for marked in orders.runs(numbers):
            num_bytes += len(marked.bits)
            if len(told) < limits.SEEN_MAX and num_bytes <= limits.SEEN_BYTES_MAX:
                told.append(orders.Seen(*key, marked))
    return tuple(told)

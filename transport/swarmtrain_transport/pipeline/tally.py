"""Books of a peer: the micro-batches in its accumulator, and in the steps of the round."""

from collections import Counter

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
        self._redone: Counter[tuple[int, Reason]] = Counter()

    def __len__(self) -> int:
        """Micro-batches in the accumulator."""
        return len(self._accumulated)

    def __contains__(self, name: MicroBatch) -> bool:
        """Return True if books have an entry of it that is not settled."""
        return name.entry in self._counted

    def add(self, count: Count) -> None:
        """One more is in the accumulator."""
        self._counted[count.micro_batch.entry] = count
        self._accumulated.append(count)

    def sent_again(self, name: MicroBatch, reason: Reason) -> None:
        """It goes to yet another receiver."""
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

    def settle(self, round: int, made: orders.Made) -> orders.Settled:
        """All that was counted up to the round, by source and stage; it is forgotten then."""
        books: dict[tuple[Process, int], set[int]] = {}
        for entry, count in list(self._counted.items()):
            if count.micro_batch.round > round:
                continue
            del self._counted[entry]
            source, number = entry
            for stage in range(count.first, count.last + 1):
                books.setdefault((source, stage), set()).add(number)
        counted = tuple(
            orders.Counted(source, stage, marked)
            for (source, stage), numbers in sorted(books.items())
            for marked in orders.runs(numbers)
        )
        redone: Counter[Reason] = Counter()
        for at, reason in [key for key in self._redone if key[0] <= round]:
            redone[reason] += self._redone.pop((at, reason))
        return orders.Settled(round, counted, made, dict(sorted(redone.items())))

"""Books of a peer: the micro-batches in its accumulators, and in the steps of the round.

A micro-batch may come in at any stage of a span, so each stage has an accumulator of its own.
"""

from collections import Counter
from collections.abc import Mapping

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer.requests import Count, Step
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import Fence, MicroBatch, Process, Span


class Tally:
    """Books of a peer's gradient.

    Args:
        paths: the stages of each micro-batch.

    Attributes:
        steps: inner steps made by this process, by stage.
        micro_batches: micro-batches in the accumulator of each stage that has any.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.steps: Counter[int] = Counter()
        self.micro_batches: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()
        self._counted: dict[tuple[Process, int], Count] = {}
        self._others: dict[tuple[Process, int], tuple[Process | None, Process | None]] = {}
        self._redone: Counter[tuple[int, Reason]] = Counter()

    def __contains__(self, name: MicroBatch) -> bool:
        """Return True if books have an entry of it that is not settled."""
        return name.entry in self._counted

    def add(self, count: Count, above: Process | None = None, below: Process | None = None) -> None:
        """One more is in its stages' accumulators; who has sent its input, and who its gradient."""
        self._counted[count.micro_batch.entry] = count
        self._others[count.micro_batch.entry] = above, below
        for stage in count.stages:
            self.micro_batches[stage] += 1
            self._tokens[stage] += count.tokens

    def sent_again(self, name: MicroBatch, reason: Reason) -> None:
        """Note that it goes to yet another receiver."""
        self._redone[name.round, reason] += 1

    def step(self, stages: Span, norm: float | None = None, *, whole: int = 0) -> Step:
        """A step of stages with what is accumulated, by the norm of the whole gradient; or of one
        stage, of which a `whole` step has so many micro-batches."""
        last = stages.last
        step = Step(stages, self._tokens[last], self.micro_batches[last], norm, whole)
        for stage in range(stages.first, stages.last + 1):
            del self.micro_batches[stage], self._tokens[stage]
            self.steps[stage] += 1
        return step

    def steps_due(self, whole: Mapping[int, int], *, rest: bool = False) -> list[Step]:
        """A step of each stage that has as many micro-batches as a whole one; or of each that has
        any, if it is the `rest`."""
        due = [
            stage
            for stage, count in sorted(self.micro_batches.items())
            if rest or count >= whole.get(stage, 1)
        ]
        return [self.step(Span(stage, stage), whole=whole.get(stage, 0)) for stage in due]

    def void(self, fence: Fence) -> None:
        """A step is not made: nothing of it was counted."""
        self.micro_batches.clear()
        self._tokens.clear()
        self._counted = {
            entry: count
            for entry, count in self._counted.items()
            if count.micro_batch.fence != fence
        }
        self._others = {entry: self._others[entry] for entry in self._counted}

    def settle(
        self, round: int, made: orders.Made, norms: tuple[float | None, ...] = (),
        busy_s: float = 0.0,
    ) -> orders.Settled:  # fmt: skip
        """All that was counted up to the round, by source and stage; it is forgotten then."""
        books: dict[tuple[Process, int], set[int]] = {}
        seen: dict[tuple[Process, Process, int], set[int]] = {}
        for entry, count in list(self._counted.items()):
            if count.micro_batch.round > round:
                continue
            del self._counted[entry]
            source, number = entry
            for stage in count.stages:
                books.setdefault((source, stage), set()).add(number)
            above, below = self._others.pop(entry)
            path = self._paths.of(source, number)
            first, last = path.index(count.stages[0]), path.index(count.stages[-1])
            for other, place in ((above, first - 1), (below, last + 1)):
                if other is not None:
                    seen.setdefault((other, source, path[place]), set()).add(number)
        counted = tuple(
            orders.Counted(source, stage, marked)
            for (source, stage), numbers in sorted(books.items())
            for marked in orders.runs(numbers)
        )
        redone: Counter[Reason] = Counter()
        for at, reason in [key for key in self._redone if key[0] <= round]:
            redone[reason] += self._redone.pop((at, reason))
        told = dict(sorted(redone.items()))
        return orders.Settled(round, counted, made, told, _told(seen), norms, busy_s)


def _told(seen: Mapping[tuple[Process, Process, int], set[int]]) -> tuple[orders.Seen, ...]:
    """Return as much of what was seen as a report has room for."""
    told: list[orders.Seen] = []
    num_bytes = 0
    for key, numbers in sorted(seen.items()):
        for marked in orders.runs(numbers):
            num_bytes += len(marked.bits)
            if len(told) < limits.SEEN_MAX and num_bytes <= limits.SEEN_BYTES_MAX:
                told.append(orders.Seen(*key, marked))
    return tuple(told)

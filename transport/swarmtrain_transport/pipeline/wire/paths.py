"""The stages that a micro-batch visits, where routes leave some out (SkipPipe, arXiv 2502.19913).

Every route begins with the first stage and ends with the last one; of those between it has some,
in their order. Whoever knows the name of a micro-batch knows its stages, so nobody has to be told
them, and nobody can tell others.

They come from a table that is drawn once for a number of stages. Consecutive micro-batches of a
source follow each other through the stages by a place at a time, and no two of them are at the same
stage then, or as few as can be; each stage between is left out as often as every other, and no
longer than need be. So none waits for a place that another one has, as far as a source can see. The
paper searches for such routes from the times of all peers; here the senders' shares (`balance`)
follow those.

Not here, of the paper: stages in another order. Peers hold a place until the gradient comes back,
so places that wait for a later stage and for an earlier one could wait for each other.
"""

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from swarmtrain_transport.pipeline.wire.route import Process, Span

Path = tuple[int, ...]
"""Stages of a route, in their order."""

_LEAST_ROUTES = 64
"""Routes of a table, at least: more than pairs of stages in a model of a dozen."""

_TRIES = 64


@dataclass(frozen=True, slots=True)
class Paths:
    """The stages of each micro-batch of a run.

    Attributes:
        num_stages: number of the model's stages.
        visit: stages of a route; 0 for all.
        at_random: each route is drawn for itself. For comparisons: it is what the table is held
            against.
    """

    num_stages: int
    visit: int = 0
    at_random: bool = False

    @property
    def num_left_out(self) -> int:
        """Stages that a route leaves out."""
        return self.num_stages - self.visit if self.visit else 0

    def of(self, source: Process, number: int) -> Path:
        """The stages of a source's micro-batch."""
        if not self.num_left_out:
            return tuple(range(self.num_stages))
        table = _table(self.num_stages, self.visit, self.at_random)
        first = int.from_bytes(hashlib.sha256(source.peer + source.boot).digest()[:8], "big")
        return table[(first + number) % len(table)]

    def share(self, stage: int) -> float:
        """The part of all micro-batches that visits a stage.

        >>> [Paths(6, 4).share(stage) for stage in range(6)]
        [1.0, 0.5, 0.5, 0.5, 0.5, 1.0]
        """
        between = 0 < stage < self.num_stages - 1
        return (self.visit - 2) / (self.num_stages - 2) if self.visit and between else 1.0

    def may_follow(self, span: Span, stage: int) -> bool:
        """Return True if a route may go from the end of a span to this stage."""
        return span.last < stage <= min(span.last + 1 + self.num_left_out, self.num_stages - 1)


def served(path: Path, entry: int, span: Span) -> Path:
    """The stages of a route that a peer serves which it comes to at `entry`."""
    return tuple(stage for stage in path if entry <= stage <= span.last)


@lru_cache(maxsize=16)
def _table(num_stages: int, visit: int, at_random: bool) -> tuple[Path, ...]:
    between, taken = num_stages - 2, visit - 2
    period = between // math.gcd(between, taken) if taken else 1
    length = period * -(-_LEAST_ROUTES // period)
    used: Counter[int] = Counter()
    table: list[Path] = []

    def drawn(attempt: int) -> Path:
        def place(stage: int) -> tuple[int, bytes]:
            named = f"swarmtrain routes 1 {num_stages} {visit} {len(table)} {attempt} {stage}"
            often = 0 if at_random else used[stage]
            return often, hashlib.sha256(named.encode()).digest()

        ranked = sorted(range(1, num_stages - 1), key=place)
        return 0, *sorted(ranked[:taken]), num_stages - 1

    def meetings(path: Path) -> int:
        here, gaps = len(table), range(1, visit)
        before = sum(meets(path, table[here - gap], gap) for gap in gaps if gap <= here)
        anew = ((here + gap - length, gap) for gap in gaps)  # the table begins anew after its end
        return before + sum(meets(table[place], path, gap) for place, gap in anew if place >= 0)

    for _ in range(length):
        path = min(map(drawn, range(1 if at_random else _TRIES)), key=meetings)
        table.append(path)
        used.update(path)
    return tuple(table)


def meets(path: Path, earlier: Path, gap: int) -> bool:
    """Return True if a micro-batch comes to a stage where one is that began so many places
    earlier."""
    return any(
        stage == other for stage, other in zip(path[1:-1], earlier[1 + gap : -1], strict=False)
    )

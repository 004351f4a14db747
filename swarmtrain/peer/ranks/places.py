"""Places of the flat vector's values on the ranks of a job. Pure; numpy alone.

A rank holds of each parameter one box of values, a shard. For the exchange a value belongs to one
rank: that which holds the first value of its block (the lowest of those that hold a copy of it),
for the values of a block share a scale. The blocks of a rank, one after the other, are its *own
vector*. Not here: tensors, and how values travel.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class NoPlace(ValueError):
    """The ranks' shards do not make up the parameter once."""


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a parameter that a rank holds.

    Attributes:
        offset: first index along each axis.
        shape: size along each axis.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Values in it."""
        return _size(self.shape)


@dataclass(frozen=True, slots=True)
class Runs:
    """Values of the flat vector in runs, in order and apart.

    Attributes:
        start: (num_runs,) first value of each run.
        stop: one past its last value.
        rank: rank that has it.
        offset: position of its first value in that rank's values.
    """

    start: Ints
    stop: Ints
    rank: Ints
    offset: Ints

    def within(self, start: int, stop: int) -> "Runs":
        """The parts of these runs that lie in [start, stop)."""
        first = int(np.searchsorted(self.stop, start, side="right"))
        last = int(np.searchsorted(self.start, stop, side="left"))
        lows = np.maximum(self.start[first:last], start)
        highs = np.minimum(self.stop[first:last], stop)
        shift: Ints = lows - self.start[first:last]
        offsets = np.add(self.offset[first:last], shift, dtype=np.int64)
        return Runs(lows, highs, self.rank[first:last], offsets)


@dataclass(frozen=True, slots=True)
class Moves:
    """Pieces that go from one place to another, each (num_pieces,).

    Attributes:
        length: values of each.
        source: rank that gives it.
        taken_at: place in the values of that rank.
        target: rank that gets it.
        put_at: place in the new ones.
    """

    length: Ints
    source: Ints
    taken_at: Ints
    target: Ints
    put_at: Ints

    def of(self, source: int, target: int) -> list[tuple[int, int, int]]:
        """(taken at, put at, length) of what goes from one rank to another, in order."""
        here = (self.source == source) & (self.target == target)
        columns = (self.taken_at[here], self.put_at[here], self.length[here])
        return list(zip(*(column.tolist() for column in columns), strict=True))


def moves_between(source: Runs, target: Runs) -> Moves:
    """Pieces of the values that both have."""
    cuts = np.unique(np.concatenate((source.start, source.stop, target.start, target.stop)))
    low, high = cuts[:-1], cuts[1:]
    given = np.searchsorted(source.start, low, side="right") - 1
    taken = np.searchsorted(target.start, low, side="right") - 1
    both = (given >= 0) & (taken >= 0)
    both[both] = (source.stop[given[both]] > low[both]) & (target.stop[taken[both]] > low[both])
    low, high, given, taken = low[both], high[both], given[both], taken[both]
    return Moves(
        high - low,
        source.rank[given], source.offset[given] + low - source.start[given],
        target.rank[taken], target.offset[taken] + low - target.start[taken],
    )  # fmt: skip


class Places:
    """Places of the values of a model in a job.

    Args:
        shapes: shapes of the parameters, in the order of the flat vector.
        boxes: box of each parameter, by rank; None where it holds nothing.
        block: values that share a scale.

    Attributes:
        num_values: number of the model's values, without padding.
        padded: a whole number of blocks.
        num_ranks: number of ranks in the job.
        owned: owner of each value of the padded vector, and its place in that rank's own vector.

    Raises:
        NoPlace: boxes overlap, or leave something out.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        boxes: Sequence[Sequence[Box | None]],
        block: int,
    ) -> None:
        sizes = [_size(shape) for shape in shapes]
        self._shapes = tuple(shapes)
        self._boxes = boxes
        self._starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self.num_values = int(self._starts[-1])
        self.padded = -(-self.num_values // block) * block
        self.num_ranks = len(boxes)
        self._sources = [self._source_of(index) for index in range(len(shapes))]
        owned = self.owned = self._owned(block)
        self._own_runs = [
            (owned.start[mine], owned.stop[mine], owned.offset[mine])
            for mine in (owned.rank == rank for rank in range(self.num_ranks))
        ]

    def range_of(self, parameter: int) -> tuple[int, int]:
        """First value of a parameter in the flat vector, and one past its last."""
        return int(self._starts[parameter]), int(self._starts[parameter + 1])

    def own_range(self, rank: int, start: int, stop: int) -> tuple[int, int]:
        """The part [low, high) of a rank's own vector with all that it has of [start, stop). The
        padding is the end of one of them."""
        starts, stops, offsets = self._own_runs[rank]

        def place(value: int) -> int:
            index = int(np.searchsorted(starts, value, side="right")) - 1
            if index < 0:
                return 0
            return int(offsets[index] + min(value, int(stops[index])) - starts[index])

        return place(start), place(stop)

    def owners(self, start: int, stop: int) -> tuple[int, ...]:
        """Ranks that have values of [start, stop), the first one's first."""
        return tuple(dict.fromkeys(self.owned.within(start, stop).rank.tolist()))

    def gathered(self, parameter: int) -> list[Moves]:
        """Moves that bring a parameter from whoever holds it to whom it belongs."""
        start, stop = self.range_of(parameter)
        source = self._sources[parameter]
        return [
            moves_between(source.within(low, high), self.owned.within(low, high))
            for low, high in windows(start, stop)
        ]

    def scattered(self, parameter: int) -> list[Moves]:
        """Moves that bring a parameter from whom it belongs to all who hold it."""
        start, stop = self.range_of(parameter)
        held = [self._held(parameter, rank) for rank in range(self.num_ranks)]
        return [
            moves_between(self.owned.within(low, high), runs.within(low, high))
            for low, high in windows(start, stop)
            for runs in held
        ]

    def collected(self, start: int, stop: int, target: int) -> Moves:
        """Moves that bring values [start, stop) of a sharded vector to one rank, in order."""
        own = self.owned.within(start, stop)
        whole = np.full_like(own.rank, target)
        return Moves(own.stop - own.start, own.rank, own.offset, whole, own.start - start)

    def spread(self, start: int, stop: int, source: int) -> Moves:
        """Moves that bring values [start, stop), which one rank has, to whom they belong."""
        back = self.collected(start, stop, source)
        return Moves(back.length, back.target, back.put_at, back.source, back.taken_at)

    def _held(self, parameter: int, rank: int) -> Runs:
        """The runs of a rank's box; its offsets are places in that box."""
        box, first = self._boxes[rank][parameter], self.range_of(parameter)[0]
        if box is None or not box.num_values:
            nothing = np.empty(0, dtype=np.int64)
            return Runs(nothing, nothing, nothing, nothing)
        starts, length = _runs_of(self._shapes[parameter], box)
        offsets = np.arange(len(starts), dtype=np.int64) * length
        return Runs(first + starts, first + starts + length, np.full_like(starts, rank), offsets)

    def _source_of(self, parameter: int) -> Runs:
        """Every value once: of several ranks with the same box the lowest gives it."""
        first, last = self.range_of(parameter)
        seen: dict[Box, Runs] = {}
        for holder, boxes in enumerate(self._boxes):
            box = boxes[parameter]
            if box is not None and box.num_values and box not in seen:
                seen[box] = self._held(parameter, holder)
        columns = [
            np.concatenate(
                [getattr(runs, name) for runs in seen.values()] or [np.empty(0, np.int64)]
            )
            for name in ("start", "stop", "rank", "offset")
        ]
        order = np.argsort(columns[0], kind="stable")
        start, stop, rank, offset = (column[order] for column in columns)
        ends = np.concatenate(([first], stop))
        begins = np.concatenate((start, [last]))
        if not np.array_equal(ends, begins):
            raise NoPlace(f"the shards of parameter {parameter} do not make it up once")
        return Runs(start, stop, rank, offset)

    def _owned(self, block: int) -> Runs:
        """Blocks in runs of one rank."""
        starts = np.concatenate([runs.start for runs in self._sources])
        ranks = np.concatenate([runs.rank for runs in self._sources])
        firsts = np.arange(0, self.padded, block, dtype=np.int64)
        owner = ranks[np.searchsorted(starts, firsts, side="right") - 1]
        begins = np.concatenate(([0], np.flatnonzero(np.diff(owner)) + 1))
        ends = np.concatenate((begins[1:], [len(owner)]))
        rank: Ints = owner[begins]
        lengths: Ints = (ends - begins) * block
        offset = np.zeros_like(lengths)
        for each in range(self.num_ranks):
            mine = rank == each
            offset[mine] = np.cumsum(lengths[mine]) - lengths[mine]
        return Runs(begins * block, ends * block, rank, offset)


WINDOW_VALUES = 1 << 20
"""Values that travel between ranks at a time: no more than 4 MiB a rank is packed for it."""


def windows(start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) in pieces that may be packed at once."""
    lows = range(start, stop, WINDOW_VALUES)
    return [(low, min(low + WINDOW_VALUES, stop)) for low in lows]


def _size(shape: tuple[int, ...]) -> int:
    return reduce(operator.mul, shape, 1)


def _runs_of(shape: tuple[int, ...], box: Box) -> tuple[Ints, int]:
    """First values of a box's runs in its parameter, and the length of each."""
    if not shape:
        return np.zeros(1, dtype=np.int64), 1
    axis = len(shape) - 1
    while axis > 0 and box.shape[axis] == shape[axis]:
        axis -= 1
    strides = [_size(shape[dim + 1 :]) for dim in range(len(shape))]
    starts = np.array([box.offset[axis] * strides[axis]], dtype=np.int64)
    for dim in reversed(range(axis)):
        places = (box.offset[dim] + np.arange(box.shape[dim], dtype=np.int64)) * strides[dim]
        starts = np.add.outer(places, starts).ravel()
    return starts, int(box.shape[axis] * strides[axis])

"""Who has which values: from every rank's boxes to own vectors and back, for shards by rows, by
columns, by both, and for copies."""

import numpy as np
import pytest

from swarmtrain.peer.ranks.places import Box, Moves, NoPlace, Places

SHAPES = [(6, 5), (7,), (), (4, 3, 2)]


def own_size(places: Places, rank: int) -> int:
    return places.own_range(rank, 0, places.padded)[1]


def rows(shape: tuple[int, ...], rank: int, size: int, axis: int = 0) -> Box | None:
    """Cut along an axis as torch.chunk does."""
    if not shape:
        return Box((), ()) if rank == 0 else None
    each = -(-shape[axis] // size)
    low, high = min(rank * each, shape[axis]), min((rank + 1) * each, shape[axis])
    if low == high:
        return None
    offset, sizes = [0] * len(shape), list(shape)
    offset[axis], sizes[axis] = low, high - low
    return Box(tuple(offset), tuple(sizes))


def by_rows(size: int) -> list[list[Box | None]]:
    return [[rows(shape, rank, size) for shape in SHAPES] for rank in range(size)]


def by_columns(size: int) -> list[list[Box | None]]:
    return [[rows(shape, rank, size, len(shape) - 1) for shape in SHAPES] for rank in range(size)]


def copies(size: int) -> list[list[Box | None]]:
    return [[Box((0,) * len(shape), shape) for shape in SHAPES] for _ in range(size)]


def half_copies(size: int) -> list[list[Box | None]]:
    """Rows over two, each of them twice."""
    return [[rows(shape, rank % 2, 2) for shape in SHAPES] for rank in range(size)]


WAYS = [by_rows(1), by_rows(2), by_rows(4), by_columns(2), by_columns(3), copies(3), half_copies(4)]


def apply(moves: Moves, sources: list, targets: list) -> None:
    for length, source, taken, target, put in zip(
        moves.length, moves.source, moves.taken_at, moves.target, moves.put_at, strict=True
    ):
        targets[target][put : put + length] = sources[source][taken : taken + length]


def shard(vector: np.ndarray, box: Box | None, shape: tuple[int, ...]) -> np.ndarray:
    if box is None:
        return np.empty(0)
    places = tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
    return vector.reshape(shape)[places].reshape(-1).copy()


@pytest.mark.parametrize("boxes", WAYS)
@pytest.mark.parametrize("block", [1, 4, 16])
def test_values_go_to_their_owners_and_back_to_all_who_hold_them(boxes, block):
    places = Places(SHAPES, boxes, block)
    size = len(boxes)
    vector = np.arange(1, places.num_values + 1, dtype=np.float64)
    own = [np.zeros(own_size(places, rank)) for rank in range(size)]
    for index, shape in enumerate(SHAPES):
        start, stop = places.range_of(index)
        held = [shard(vector[start:stop], boxes[rank][index], shape) for rank in range(size)]
        for moves in places.gathered(index):
            apply(moves, held, own)
    padded = np.zeros(places.padded)
    padded[: places.num_values] = vector
    assert sum(map(len, own)) == places.padded
    for rank in range(size):
        assert len(own[rank]) % block == 0
        _, stop = places.own_range(rank, 0, places.num_values)
        assert own[rank][:stop].all() and not own[rank][stop:].any()
    runs = places.owned
    for start, stop, rank, offset in zip(
        runs.start, runs.stop, runs.rank, runs.offset, strict=True
    ):
        assert np.array_equal(padded[start:stop], own[rank][offset : offset + stop - start])
    for index, shape in enumerate(SHAPES):
        start, stop = places.range_of(index)
        wanted = [shard(vector[start:stop], boxes[rank][index], shape) for rank in range(size)]
        found = [np.zeros_like(one) for one in wanted]
        for moves in places.scattered(index):
            apply(moves, own, found)
        for rank in range(size):
            assert np.array_equal(found[rank], wanted[rank])


@pytest.mark.parametrize("boxes", WAYS)
def test_any_range_is_collected_in_order_and_spread_again(boxes):
    places = Places(SHAPES, boxes, 4)
    size = len(boxes)
    own = [np.arange(own_size(places, rank)) + 1000 * rank for rank in range(size)]
    for start, stop in ((0, places.num_values), (3, 9), (8, 41), (60, 61)):
        whole = [np.zeros(stop - start) if rank == size - 1 else None for rank in range(size)]
        apply(places.collected(start, stop, size - 1), own, whole)
        back = [np.zeros_like(one) for one in own]
        apply(places.spread(start, stop, size - 1), whole, back)
        for rank in range(size):
            low, high = places.own_range(rank, start, stop)
            assert np.array_equal(back[rank][low:high], own[rank][low:high])
            assert np.count_nonzero(back[rank]) == np.count_nonzero(own[rank][low:high])
        assert set(places.owners(start, stop)) == {
            rank for rank in range(size) if np.diff(places.own_range(rank, start, stop))[0]
        }


def test_a_block_belongs_to_the_rank_that_holds_its_first_value():
    places = Places([(4, 3)], [[Box((0, 0), (2, 3))], [Box((2, 0), (2, 3))]], 4)
    assert places.owned.rank.tolist() == [0, 1]
    assert places.owned.start.tolist() == [0, 8]  # 6 and 7 are held by rank 1 and belong to rank 0
    assert (own_size(places, 0), own_size(places, 1)) == (8, 4)


@pytest.mark.parametrize(
    "boxes",
    [
        [[Box((0,), (3,))], [Box((2,), (2,))]],
        [[Box((0,), (1,))], [Box((2,), (2,))]],
        [[None], [None]],
    ],
)
def test_shards_that_overlap_or_leave_something_out_are_refused(boxes):
    with pytest.raises(NoPlace, match="do not make it up once"):
        Places([(4,)], boxes, 2)

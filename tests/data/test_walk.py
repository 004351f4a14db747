"""The way through held pieces: every window once, and done when it was."""

import random
from itertools import pairwise

import pytest

from swarmtrain.data.batches import LeasedStream
from swarmtrain.data.walk import Walk
from swarmtrain_transport.wire.messages import Leased

ONE, TWO = Leased(b"1", 0), Leased(b"2", 3)
SIZES = {b"1": 101, b"2": 57}


def walk(seed: int = 1) -> Walk:
    made = Walk(10, random.Random(seed))
    made.hold((ONE, TWO), SIZES)
    return made


def test_every_window_is_read_once_and_none_overlaps():
    way = walk()
    windows = way.next(10 + 5)
    assert way.done == (ONE, TWO) and not way.held
    for piece, size in SIZES.items():
        starts = sorted(first for name, first in windows if name == piece)
        assert all(later - first == 10 for first, later in pairwise(starts))
        assert len(starts) == (size - 1) // 10 and starts[-1] + 10 < size


def test_the_order_is_drawn_from_the_seed():
    assert walk(1).next(15) == walk(1).next(15) != walk(2).next(15)


def test_nothing_is_done_before_its_last_window():
    way = walk()
    for _ in range(14):
        way.next(1)
    assert len(way.done) == len(way.held) == 1
    assert way.wants_more


def test_the_next_lease_comes_after_the_first_and_what_was_read_stays_read():
    way = walk()
    read = way.next(9)
    three = Leased(b"3", 0)
    way.hold((ONE, TWO, three), {**SIZES, b"3": 31})
    rest = way.next(6)
    assert not set(read) & set(rest) and not any(name == b"3" for name, _ in rest)
    assert way.done == (ONE, TWO) and way.held == (three,)
    way.next(3)
    assert set(way.done) == {ONE, TWO, three}


def test_pieces_that_were_taken_away_are_read_no_more():
    way = walk()
    way.hold((TWO,), SIZES)
    assert {name for name, _ in way.next(5)} == {b"2"} and way.done == (TWO,)


def test_a_piece_in_its_next_turn_is_new():
    way = walk()
    way.next(15)
    way.hold((Leased(b"1", 1),), {b"1": 101})
    assert not way.done and len(way.next(10)) == 10 and way.done == (Leased(b"1", 1),)


def test_training_never_waits_the_way_begins_again_and_counts_nothing():
    way = walk()
    way.next(15)
    again = way.next(15)
    assert len(set(again)) == 15 and way.done == (ONE, TWO) and way.wants_more


def test_a_piece_without_a_window_is_done_at_once():
    way = Walk(10, random.Random(0))
    way.hold((ONE,), {b"1": 10})
    assert way.done == (ONE,) and way.wants_more
    with pytest.raises(ValueError, match="no piece holds a window"):
        way.next(1)


def test_batches_are_the_walks_windows_and_old_text_stands_in_for_none():
    stream = LeasedStream(batch=4, context=10, rng=random.Random(3), width=1)
    assert not stream.has_text
    stream.hold({ONE: bytes(range(101)), TWO: bytes(range(101, 158))})
    seen = [stream.next_batch() for _ in range(3)]
    firsts = {int(x[0]) for batch in seen for x in batch.x_BT}
    assert len(firsts) == 12 and all((b.x_BT + 1 == b.y_BT).all() for b in seen)
    stream.hold({Leased(b"3", 0): b"short"})
    assert stream.has_text and stream.walk.done == (Leased(b"3", 0),)
    assert len(stream.next_batch().x_BT) == 4

"""How many micro-batches are under way: as many as fill their way, whatever its length."""

import heapq

import pytest

from swarmtrain_transport.pipeline.peer.slots import Window


def filled(rate: float, way_s: float, least: int = 6, most: int = 100) -> tuple[int, float]:
    """The window after ten rounds of 200 micro-batches, and how many came back a second in the last
    half of a round.

    Args:
        rate: micro-batches a second that the narrowest place of the way lets through.
        way_s: seconds of the way beside it.
        least, most: bounds of the window.
    """
    window, now_s, free_s = Window(least, most), 0.0, 0.0
    for _ in range(10):
        window.begin_round()
        under_way: list[tuple[float, float]] = []
        ends_s: list[float] = []
        while len(ends_s) < 200:
            while len(under_way) < min(window.size, 200 - len(ends_s)):
                free_s = max(free_s, now_s) + 1 / rate
                heapq.heappush(under_way, (free_s + way_s, now_s))
            now_s, since_s = heapq.heappop(under_way)
            window.back(since_s, now_s)
            ends_s.append(now_s)
    return window.size, 99 / (ends_s[-1] - ends_s[-100])


@pytest.mark.parametrize(("rate", "way_s"), [(4.0, 3.0), (20.0, 0.5), (100.0, 0.2)])
def test_a_long_way_is_filled_and_no_more_than_twice(rate, way_s):
    size, seen = filled(rate, way_s)
    product = rate * way_s + 1
    assert seen >= 0.99 * rate and product <= size <= 2 * product + 2


def test_a_short_way_takes_no_more_than_at_first():
    assert filled(4.0, 0.2)[0] == 6


def test_memory_bounds_what_a_long_way_takes():
    assert filled(100.0, 1.0, most=12)[0] == 12
    assert filled(100.0, 1.0, least=6, most=0)[0] == 6


def test_a_time_that_cannot_be_says_nothing():
    window = Window(2, 9)
    window.back(5.0, 5.0)
    window.back(5.0, 4.0)
    assert window.size == 2

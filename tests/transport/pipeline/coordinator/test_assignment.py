"""Who serves which stages."""

import random
from dataclasses import replace

import pytest

from swarmtrain_transport.limits import PACE_SPREAD
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Server,
    StageNeed,
    choose,
    flops_of,
    hop_bytes_of,
    memory_of,
    rate_of,
    spans_that_fit,
    stage_rates,
    stand_in,
)

EVEN = tuple(
    StageNeed(100.0, 1000, 10, 500 + 5 * (stage > 0), 7 * (stage > 0)) for stage in range(3)
)
FIRST, SECOND, THIRD = (range(stage, stage + 1) for stage in range(3))
ALL = range(3)


def test_costs_of_a_span_are_those_of_its_stages_and_of_its_ends() -> None:
    assert memory_of(EVEN, SECOND) == 1515
    assert memory_of(EVEN, ALL) == 3530
    assert flops_of(EVEN, FIRST) == 400 and flops_of(EVEN, ALL) == 900
    assert [hop_bytes_of(EVEN, span) for span in (FIRST, SECOND, THIRD, ALL)] == [7, 14, 7, 0]


def test_a_peer_is_as_fast_as_its_processor_or_its_link() -> None:
    assert rate_of(EVEN, Server(flops_per_s=800), SECOND) == 2
    assert rate_of(EVEN, Server(flops_per_s=800, link_bytes_per_s=7), SECOND) == 0.5
    assert rate_of(EVEN, Server(flops_per_s=800, link_bytes_per_s=7), ALL) == 800 / 900


def test_joiners_fill_stages_that_nobody_serves_and_then_the_slowest() -> None:
    in_run: list[Server] = []
    given = []
    for _ in range(7):
        choice = choose(EVEN, in_run, Server())
        given.append(choice.span)
        in_run.append(Server(choice.span))
    assert given == [FIRST, SECOND, THIRD, FIRST, SECOND, THIRD, FIRST]
    assert choose(EVEN, [], Server()).why == "nobody serves it yet"
    assert choose(EVEN, in_run, Server()).why == "there the run gains most"


def test_speeds_count_and_who_tells_none_is_the_middle_one() -> None:
    fast, slow = Server(FIRST, 300.0), Server(SECOND, 100.0)
    rates = stage_rates(EVEN, [fast, slow, Server(THIRD)])
    assert rates == [0.75, 0.25, pytest.approx(1 / 3)]  # of two, the lower one is in the middle
    assert choose(EVEN, [fast, slow, Server(THIRD, 900.0)], Server()).span == SECOND


def test_a_boast_counts_for_a_multiple_of_the_middle_one() -> None:
    honest = [Server(span, 100.0) for span in (FIRST, SECOND, THIRD)]
    rates = stage_rates(EVEN, [*honest, Server(SECOND, 1e30)])
    assert rates[1] == (100 + PACE_SPREAD * 100) / 400


def test_memory_that_is_told_allows_several_stages_and_forbids_large_ones() -> None:
    assert spans_that_fit(EVEN, 1514) == [FIRST]
    choice = choose(EVEN, [], Server(memory_bytes=10_000))
    assert (choice.span, choice.why) == (ALL, "all of them fit into its memory")
    assert choose(EVEN, [Server(FIRST)], Server(memory_bytes=2600)).span == range(1, 3)
    assert choose(EVEN, [Server(FIRST)], Server(memory_bytes=1512)).span == FIRST
    # It was refused at the door; here it gets something all the same.
    assert choose(EVEN, [], Server(memory_bytes=1)).span == FIRST


def test_a_wish_is_granted() -> None:
    choice = choose(EVEN, [Server(ALL)] * 3, Server(span=range(1, 3)))
    assert (choice.span, choice.why) == (range(1, 3), "as it asked")


def test_a_stage_that_nobody_serves_gets_whom_the_others_miss_least() -> None:
    slow, fast = Server(FIRST, 1.0), Server(FIRST, 9.0)
    assert stand_in(EVEN, [fast, slow, Server(SECOND, 5.0)], 2, [0, 1, 2]) == 1
    assert stand_in(EVEN, [fast, slow, Server(SECOND, 5.0)], 2, [0, 2]) == 0
    alone = [Server(FIRST, 1.0), Server(SECOND, 5.0)]
    assert stand_in(EVEN, alone, 2, [0, 1]) is None
    small = [replace(one, memory_bytes=1514) for one in (slow, fast)]
    assert stand_in(EVEN, [*small, Server(SECOND)], 2, [0, 1]) is None  # it takes 1515
    # A replica of two stages may go where both have others.
    two = Server(range(2), 1.0)
    assert stand_in(EVEN, [two, Server(FIRST), Server(SECOND)], 2, [0, 1, 2]) in (0, 1, 2)
    assert stand_in(EVEN, [two, Server(FIRST)], 2, [0]) is None


def test_no_other_span_that_fits_makes_the_slowest_stage_faster() -> None:
    rng = random.Random(3)
    for _ in range(200):
        needs = tuple(
            StageNeed(rng.uniform(1, 9), rng.randint(1, 9), 1, 1, rng.randint(1, 9))
            for _ in range(rng.randint(1, 6))
        )
        spans = spans_that_fit(needs, 1 << 30)
        others = [
            Server(rng.choice(spans), rng.uniform(1, 9), rng.choice([0, rng.uniform(1, 9)]))
            for _ in range(rng.randint(0, 8))
        ]
        memory = rng.randint(3, 40)
        joiner = Server(None, rng.uniform(1, 9), rng.choice([0, rng.uniform(1, 9)]), memory)
        choice = choose(needs, others, joiner)
        fitting = spans_that_fit(needs, memory)
        assert choice.span in fitting or not fitting

        found, *all_rates = (
            min(stage_rates(needs, [*others, replace(joiner, span=span)]))
            for span in (choice.span, *fitting)
        )
        assert all(found >= rate * (1 - 1e-8) for rate in all_rates)

"""Routes that leave stages out are legal, even and spread in time, and known from names alone."""

from collections import Counter

import pytest

from swarmtrain_transport.pipeline.wire.paths import Paths, meets, served
from swarmtrain_transport.pipeline.wire.route import Process, Span

SOURCE = Process(b"s" * 32, b"boot 001")
SIZES = [(4, 3), (5, 3), (6, 4), (6, 5), (8, 6), (12, 8), (64, 40)]


def meetings(paths: Paths, count: int = 1000) -> int:
    """Times that one of consecutive micro-batches comes to a stage where another one is."""
    routes = [paths.of(SOURCE, number) for number in range(count)]
    return sum(
        meets(route, routes[place - gap], gap)
        for place, route in enumerate(routes)
        for gap in range(1, min(paths.visit, place + 1))
    )


@pytest.mark.parametrize(("stages", "visit"), SIZES)
def test_a_route_has_the_first_and_the_last_stage_and_so_many_in_their_order(
    stages: int, visit: int
) -> None:
    for number in range(300):
        route = Paths(stages, visit).of(SOURCE, number)
        assert len(set(route)) == visit and list(route) == sorted(route)
        assert route[0] == 0 and route[-1] == stages - 1


@pytest.mark.parametrize(("stages", "visit"), SIZES)
def test_each_stage_between_has_its_share_and_no_more(stages: int, visit: int) -> None:
    paths, count = Paths(stages, visit), 2000
    seen = Counter(stage for number in range(count) for stage in paths.of(SOURCE, number))
    for stage in range(stages):
        assert abs(seen[stage] - paths.share(stage) * count) <= stages


@pytest.mark.parametrize(("stages", "visit"), SIZES)
def test_fewer_meet_than_on_routes_that_are_drawn_at_random(stages: int, visit: int) -> None:
    chance = meetings(Paths(stages, visit, at_random=True))
    assert meetings(Paths(stages, visit)) <= 0.75 * chance


def test_no_two_of_a_source_meet_with_four_of_six() -> None:
    assert meetings(Paths(6, 4)) == 0 and meetings(Paths(6, 4, at_random=True)) > 100


def test_a_slow_stage_is_left_out_at_least_every_third_time_with_four_of_six() -> None:
    routes = [Paths(6, 4).of(SOURCE, number) for number in range(300)]
    for stage in range(1, 5):
        visits = "".join("x" if stage in route else "-" for route in routes)
        assert "xxx" not in visits and "---" not in visits


def test_sources_begin_in_different_places_of_the_table() -> None:
    others = [Process(b"%032d" % index, b"boot 001") for index in range(20)]
    assert len({tuple(Paths(6, 4).of(one, n) for n in range(8)) for one in others}) > 5


def test_without_a_visit_every_route_has_all_stages() -> None:
    assert Paths(3).of(SOURCE, 7) == (0, 1, 2) and Paths(3).num_left_out == 0


def test_a_peer_serves_what_of_a_route_lies_in_its_span() -> None:
    assert served((0, 2, 3, 5), 2, Span(1, 4)) == (2, 3)
    assert served((0, 2, 3, 5), 0, Span(0, 5)) == (0, 2, 3, 5)


def test_a_route_goes_on_no_further_than_it_may_leave_out() -> None:
    paths = Paths(6, 4)
    assert [stage for stage in range(6) if paths.may_follow(Span(0, 0), stage)] == [1, 2, 3]
    assert [stage for stage in range(6) if paths.may_follow(Span(4, 4), stage)] == [5]
    assert [stage for stage in range(3) if Paths(3).may_follow(Span(0, 0), stage)] == [1]

"""Routes follow measured times: shares, turns, newcomers, exclusions, and the same ones again."""

import math
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.pipeline.peer.balance import Balance, MovingAverage

A, B, C, D = PEERS = tuple(bytes([65 + index]) * 32 for index in range(4))


def took(balance: Balance, peer: bytes, seconds: float) -> None:
    """A third of the time is the forward pass."""
    balance.measured(peer, forward_s=seconds / 3, backward_s=seconds * 2 / 3)


def known(speeds: dict[bytes, float], draw: bytes = b"draw") -> Balance:
    """Peers that have been measured often enough to be trusted."""
    balance = Balance(draw)
    for _ in range(limits.ROUTE_ROUNDS_NEW):
        balance.begin_round(speeds)
        for peer, seconds in speeds.items():
            took(balance, peer, seconds)
    balance.begin_round(speeds)
    return balance


def choose(
    balance: Balance, peers: Collection[bytes] = PEERS, excluded: Collection[bytes] = ()
) -> bytes:
    peer = balance.ranked(peers, excluded)[0]
    balance.chosen(peer)
    return peer


def routes(balance: Balance, count: int, peers: Collection[bytes] = PEERS) -> list[bytes]:
    return [choose(balance, peers) for _ in range(count)]


@given(st.lists(st.floats(0.3, 1.0), min_size=1, max_size=4), st.integers(1, 200))
def test_shares_are_inverse_to_times_at_every_moment(times: list[float], count: int) -> None:
    speeds = dict(zip(PEERS, times, strict=False))
    taken = Counter(routes(known(speeds), count, tuple(speeds)))
    whole = sum(1 / seconds for seconds in speeds.values())
    for peer, seconds in speeds.items():
        share = 1 / seconds / whole
        # At most one turn ahead; behind by what the others may be ahead together.
        assert -len(speeds) * share <= taken[peer] - count * share + 1e-6 <= 1 + 2e-6


def test_a_fast_peer_s_turns_lie_between_the_others() -> None:
    order = routes(known({A: 1.0, B: 4.0, C: 4.0}), 60, (A, B, C))
    longest = max(len(run) for run in bytes(65 + (peer != A) for peer in order).split(b"B"))
    assert Counter(order) == {A: 40, B: 10, C: 10} and longest <= 5


def test_who_was_not_measured_takes_as_many_as_the_middle_one() -> None:
    balance = Balance(b"draw")
    balance.begin_round(PEERS)
    for peer, seconds in ((A, 1.0), (B, 2.0), (C, 3.0)):
        took(balance, peer, seconds)
    taken = Counter(routes(balance, 140))
    assert taken[A] > taken[B] > taken[C] and abs(taken[D] - taken[B]) <= 2


def test_a_measurement_of_nothing_draws_a_bounded_share() -> None:
    balance = known({A: 0.0, B: 1.0, C: 1.0})
    taken = Counter(routes(balance, 180, (A, B, C)))
    assert abs(taken[A] - 180 * limits.ROUTE_SPREAD / (limits.ROUTE_SPREAD + 2)) <= 2


def test_the_slowest_is_measured_again() -> None:
    taken = Counter(routes(known({A: 1.0, B: 1.0, C: 1e9}), 40, (A, B, C)))
    assert taken[C] >= 1


def test_times_of_nothing_at_all_are_equal() -> None:
    assert Counter(routes(known({A: 0.0, B: 0.0}), 10, (A, B))) == {A: 5, B: 5}


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_the_caller_s_mistake(seconds: float) -> None:
    with pytest.raises(LocalFault):
        Balance(b"").measured(A, forward_s=seconds)


def test_a_newcomer_gets_no_burst() -> None:
    balance = known({A: 1.0, B: 1.0})
    routes(balance, 100, (A, B))
    taken = Counter(routes(balance, 30, (A, B, C)))
    assert max(taken.values()) <= 11


def test_who_had_no_room_saves_no_turns_up() -> None:
    balance = known({A: 1.0, B: 1.0})
    for _ in range(50):
        balance.chosen(A)  # B comes first, and has no room
    assert Counter(routes(balance, 20, (A, B)))[B] <= 11


def test_a_new_peer_gets_twice_an_equal_share_at_most_however_fast() -> None:
    balance = Balance(b"draw")
    for number in range(1, limits.ROUTE_ROUNDS_NEW + 1):
        balance.begin_round(PEERS)
        for peer in PEERS:
            took(balance, peer, 0.001 if peer == A else 1.0)
        order = routes(balance, 100)
        if number == limits.ROUTE_ROUNDS_NEW:  # measured for the last time that it takes
            assert order.count(A) > 80
            return
        for count in range(1, 101):
            assert order[:count].count(A) <= math.ceil(2 * count / len(PEERS))


def test_a_new_peer_that_always_has_room_does_not_get_beyond_its_share() -> None:
    balance = known({A: 1.0, B: 1.0, C: 1.0})
    taken = 0
    for _ in range(100):
        offered = balance.ranked(PEERS)
        taken += D in offered
        balance.chosen(D if D in offered else offered[0])
    assert taken == 50


def test_whom_a_micro_batch_has_failed_at_is_left_out_while_others_are_there() -> None:
    balance = known(dict.fromkeys(PEERS, 1.0))
    assert set(balance.ranked(PEERS, {A, B})) == {C, D}
    assert set(balance.ranked(PEERS, PEERS)) == set(PEERS)
    assert balance.ranked((), ()) == []


def test_a_new_peer_beyond_its_share_is_better_than_one_that_failed() -> None:
    balance = known({A: 1.0, B: 1.0})
    for _ in range(5):
        balance.chosen(C)
    assert C not in balance.ranked((A, B, C))
    assert balance.ranked((A, B, C), {A, B}) == [C]


def test_a_micro_batch_that_goes_to_another_is_charged_there() -> None:
    balance = known(dict.fromkeys((A, B), 1.0))
    for _ in range(10):
        balance.chosen(A)
        balance.passed_on(A, B)
    assert routes(balance, 1, (A, B)) == [A]


def test_the_same_calls_give_the_same_routes_and_another_sender_others() -> None:
    speeds = dict.fromkeys(PEERS, 1.0)
    first, again, other = (routes(known(speeds, draw), 40) for draw in (b"1", b"1", b"2"))
    assert first == again != other
    assert Counter(first) == Counter(other) == dict.fromkeys(PEERS, 10)


def test_equal_peers_do_not_always_follow_in_the_same_order() -> None:
    order = routes(known(dict.fromkeys(PEERS, 1.0)), 80)
    assert len({tuple(order[start : start + 4]) for start in range(0, 80, 4)}) > 4


def test_who_is_no_member_any_more_is_forgotten() -> None:
    balance = known(dict.fromkeys(PEERS, 1.0))
    balance.begin_round((A, B))
    balance.begin_round(PEERS)
    routes(balance, 2)
    for _ in range(8):
        balance.chosen(C)
    assert C not in balance.ranked(PEERS)  # it is new again


def test_a_moving_average_is_right_from_its_first_value_on() -> None:
    average = MovingAverage()
    assert average.value is None
    average.add(3.0)
    assert average.value == pytest.approx(3.0)
    for _ in range(100):
        average.add(1.0)
    assert average.value == pytest.approx(1.0, rel=1e-3)

"""Ways between peers behind all kinds of routers: found, kept, lost, and nobody's toy."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.meetings import Means, Meetings
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire import messages as m
from tests.transport.coordinator.members.routers import DATA_PORT, House, Streets
from tests.transport.rig import A, B, C, D, E

KINDS = ("open", "cone", "restricted", "symmetric")
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


def houses(*kinds: str) -> list[House]:
    """A house of each kind, with an address of its own."""
    peers = (A, B, C, D, E)
    return [House(peers[i], kind, f"198.51.100.{i + 1}") for i, kind in enumerate(kinds)]


def met(*kinds: str, seconds: float = 30.0, **how: bool) -> Streets:
    streets = Streets(houses(*kinds), **how)
    streets.run(seconds)
    return streets


def standing(streets: Streets, sender: PeerId, receiver: PeerId) -> bytes:
    """Token of the way that stands."""
    pair = streets.machine._pair(sender, receiver)
    assert pair is not None and pair.standing is not None
    return pair.standing.token


def expected(sender: str, receiver: str) -> Way:
    if receiver in ("open", "cone"):
        return Way.DIALLED
    if sender in ("open", "cone"):
        return Way.TURNED
    return Way.RELAYED if "symmetric" in (sender, receiver) else Way.PUNCHED


# ---- ways are found


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_kind_of_pair_is_met_in_the_best_way_and_then_left_alone(
    first: str, second: str
) -> None:
    streets = met(first, second)
    wanted = {(A, B): expected(first, second), (B, A): expected(second, first)}
    assert streets.ways() == wanted
    streets.run(3600.0)
    assert streets.ways() == wanted
    # Each round of tries to punch has two MEETs for each direction; the pause doubles.
    assert len(streets.meets(A)) <= 4 * 10


def test_without_a_mirror_or_a_relay_there_is_no_way_and_the_word_of_the_sender_counts() -> None:
    streets = met("restricted", "restricted", mirror=False, relay=False)
    assert set(streets.ways().values()) == {None}
    assert not streets.machine.misses(A), "nobody has said yet that plain dialling fails"
    streets.machine.unreached(A, (B,), streets.now_s)
    streets.run(1.0)
    assert streets.machine.misses(A) == {B}
    assert not streets.machine.misses(B)


def test_two_in_one_house_meet_there_and_nobody_else_is_told_of_it() -> None:
    pair = [House(A, "restricted", "198.51.100.1", "192.168.1.2"),
            House(B, "symmetric", "198.51.100.1", "192.168.1.3")]  # fmt: skip
    for house in pair:
        house.places = (m.Place("lan", house.inside, DATA_PORT),)
    streets = Streets([*pair, House(C, "open", "203.0.113.7")])
    streets.run(30.0)
    assert streets.ways()[A, B] is streets.ways()[B, A] is Way.DIALLED
    assert {meet.host for meet in streets.meets(A) if meet.peer == B} == {"192.168.1.3"}
    assert not any(meet.host.startswith("192.168.") for meet in streets.meets(C))


def addresses(streets: Streets, peer: PeerId) -> dict[PeerId, str]:
    """Address of each other that a peer was told last, and that it was told none twice."""
    told = [one.at for one in streets.houses[peer].heard if isinstance(one, m.Listens)]
    pairs = [pair for at in told for pair in at.items()]
    assert len(pairs) == len(set(pairs))
    return {other: host for other, (host, port) in pairs}


def test_each_is_told_where_others_listen_and_no_address_that_it_cannot_dial() -> None:
    near = [House(A, "open", "192.168.1.2"), House(B, "open", "192.168.1.3")]
    far = [House(C, "open", "198.51.100.3"), House(D, "restricted", "2001:db8::4")]
    streets = Streets([*near, *far])
    streets.run(5.0)
    assert addresses(streets, A) == {B: "192.168.1.3", C: "198.51.100.3"}
    assert addresses(streets, C) == {}, "neither a private address nor one of a family it lacks"
    assert addresses(streets, D) == {C: "198.51.100.3"}


def test_who_asks_for_peers_to_try_is_none_of_them() -> None:
    streets = met("open", "open", "restricted")
    asked = streets.machine.near(A, streets.houses[A].remote)
    assert [host for _, host, _ in asked] == ["198.51.100.2", "198.51.100.3"]


def test_who_moves_is_told_of_and_who_was_away_hears_all_again() -> None:
    streets = met("open", "open", "open")
    streets.machine.away(B, streets.now_s)
    streets.houses[C].remote = "198.51.100.33"
    streets.enter(streets.houses[C])
    streets.run(1.0)
    assert addresses(streets, A)[C] == "198.51.100.33" != addresses(streets, B)[C]
    streets.houses[B].heard.clear()
    streets.enter(streets.houses[B])
    streets.run(1.0)
    assert addresses(streets, B) == {A: "198.51.100.1", C: "198.51.100.33"}
    streets.machine.left(B, streets.now_s)
    streets.enter(streets.houses[B], b"another")
    streets.run(1.0)
    assert [one.at for one in streets.houses[A].heard if isinstance(one, m.Listens)][-1].keys() == {
        B
    }


def test_a_mapped_port_is_dialled_once_it_is_told() -> None:
    streets = met("symmetric", "symmetric")
    assert set(streets.ways().values()) == {Way.RELAYED}
    relayed = standing(streets, A, B)
    house = streets.houses[B]
    house.kind, house.places = "cone", (m.Place("mapped", house.remote, 4000),)
    streets.machine.places(B, m.Places(house.places), streets.now_s)
    streets.run(10.0)
    assert streets.ways() == {(A, B): Way.DIALLED, (B, A): Way.TURNED}
    assert m.Part(relayed) in streets.houses[A].heard, "what was there goes after the better one"


@pytest.mark.parametrize("reach", [(A,), (A, B)])
def test_ipv6_is_tried_where_both_have_it(reach: Sequence[PeerId]) -> None:
    streets = Streets(houses("restricted", "restricted"))
    for peer in reach:
        place = m.Place("lan", f"2001:db8::{peer[0]}", DATA_PORT)
        streets.machine.places(peer, m.Places((place,)), streets.now_s)
    streets.run(30.0)
    dialled = [meet.host for meet in streets.meets(A) if meet.host.startswith("2001:")]
    assert bool(dialled) == (B in reach)


def test_who_does_not_show_at_the_mirror_is_met_over_a_relay() -> None:
    streets = Streets(houses("restricted", "restricted"))
    streets.houses[B].hides = True
    streets.run(30.0)
    assert set(streets.ways().values()) == {Way.RELAYED}


@pytest.mark.parametrize("other", ["2001:db8::1", "192.168.1.9"])
def test_punching_ends_where_the_two_look_as_if_in_different_networks(other: str) -> None:
    streets = Streets(houses("restricted", "restricted"))
    streets.houses[B].outside = other
    streets.run(2.0)
    assert set(streets.ways().values()) == {Way.RELAYED}, "at once"


# ---- what is known to work, and from before


def test_a_sender_whose_plain_connection_stands_is_left_alone() -> None:
    streets = Streets(houses("open", "restricted"))
    streets.run(0.01)  # the coordinator could not dial B, and A can
    token = next(iter(streets.machine._by_token))
    streets.say(A, token, True, peer=B, way="dialled")
    assert streets.ways()[A, B] is Way.DIALLED
    asked = len(streets.meets(A))
    streets.run(3600.0)
    assert streets.ways()[A, B] is Way.DIALLED
    assert len(streets.meets(A)) <= asked + 1


def test_a_restarted_coordinator_hears_of_what_stands_and_disturbs_nothing() -> None:
    streets = Streets([])
    token = b"t" * 32
    for house in houses("restricted", "restricted"):
        streets.houses[house.peer] = house
        hello = m.Hello(b"boot", "otter", house.peer, house.remote, DATA_PORT, -1, b"", 0)
        streets.machine.came(house.peer, house.remote, hello, 0.0)
        streets.machine.places(house.peer, m.Places(()), 0.0)
        if house.peer == A:
            streets.say(A, token, True, peer=B, way="punched")
    for peer in (A, B):
        streets.machine.dialled(peer, 0.0, is_open=False)
    streets.run(100.0)
    assert streets.ways()[A, B] is Way.PUNCHED
    assert not [meet for meet in streets.meets(A) if meet.sends]
    streets.say(A, token, False, "gone")
    streets.run(5.0)
    assert streets.ways()[A, B] is Way.PUNCHED
    assert token not in streets.machine._by_token


# ---- ways are lost


def test_a_lost_way_is_made_anew_at_once_and_those_that_were_worse_before_those_that_failed() -> (
    None
):
    streets = met("restricted", "restricted", seconds=120.0)
    first = len(streets.meets(A))
    streets.say(A, standing(streets, A, B), False, "reset")
    assert streets.ways()[A, B] is None
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.PUNCHED
    assert {meet.way for meet in streets.meets(A)[first:]} == {"punched"}


def test_a_receiver_whose_end_is_gone_takes_the_way_down_and_its_mere_word_does_not() -> None:
    streets = met("restricted", "restricted", seconds=120.0)
    token = standing(streets, A, B)
    streets.say(B, token, False, "slow")
    assert standing(streets, A, B) == token
    streets.say(B, token, False, m.LOST)
    assert streets.ways()[A, B] is None
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.PUNCHED


def test_who_comes_from_another_address_is_met_by_the_same_kind_of_way_first() -> None:
    streets = met("open", "restricted", seconds=120.0)
    house, before = streets.houses[B], len(streets.meets(A))
    house.remote = "198.51.100.77"
    hello = m.Hello(b"boot", "otter", B, house.remote, DATA_PORT, -1, b"", 1 << 30)
    streets.machine.came(B, house.remote, hello, streets.now_s)
    streets.say(B, standing(streets, A, B), False, m.LOST)
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.TURNED
    assert [meet.way for meet in streets.meets(A)[before:]] == ["turned"]


def test_a_try_whose_word_went_to_a_dead_connection_is_made_again_at_once() -> None:
    streets = met("restricted", "restricted", seconds=120.0)
    streets.houses[B].is_on = False
    streets.say(A, standing(streets, A, B), False, m.LOST)
    streets.run(0.5)
    streets.houses[B].is_on = True
    streets.enter(streets.houses[B])
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.PUNCHED


def test_a_plain_connection_that_is_lost_is_made_up_for_beside_further_dials() -> None:
    streets = met("open", "open")
    assert streets.ways()[A, B] is Way.DIALLED
    streets.houses[B].kind = "restricted"  # its router has forgotten the port that it forwarded
    streets.say(A, b"", False, m.LOST, peer=B, way="dialled")
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.TURNED
    streets.say(A, b"", False, m.LOST, peer=A, way="dialled")
    streets.say(A, b"", False, m.LOST, peer=C, way="dialled")
    assert set(streets.ways()) <= {(A, B), (B, A)}


def test_a_way_that_flaps_is_not_asked_for_without_end() -> None:
    streets = met("restricted", "restricted", relay=False)
    for _ in range(600):
        for token in list(streets.houses[A].ways):
            streets.say(A, token, False, "reset")
        streets.run(1.0)
    assert len([meet for meet in streets.meets(A) if meet.sends]) < 2 * 20


def test_a_sender_that_names_the_receiver_for_long_has_lost_its_way() -> None:
    streets = met("open", "restricted")
    streets.machine.unreached(A, (B,), streets.now_s)
    streets.run(1.0)
    assert len(streets.meets(A)) > 1


def test_what_was_said_while_the_coordinator_was_stopped_takes_no_way_down() -> None:
    streets = met("open", "restricted", seconds=1.0)
    token = standing(streets, A, B)
    streets.machine.pardon(30.0)
    streets.now_s += 30.0
    streets.machine.unreached(A, (B,), streets.now_s)  # said before the way stood
    assert standing(streets, A, B) == token
    streets.now_s += limits.UNREACHED_S
    streets.machine.unreached(A, (B,), streets.now_s)
    assert streets.ways()[A, B] is None


def test_a_receiver_takes_no_way_down_but_another_one_is_looked_for() -> None:
    streets = met("open", "restricted", seconds=100.0)
    token = standing(streets, A, B)
    streets.say(B, token, False, "no")
    assert streets.ways()[A, B] is Way.TURNED
    assert m.Part(token) not in streets.houses[A].heard
    streets.run(200.0)
    assert streets.ways()[A, B] is Way.TURNED
    assert standing(streets, A, B) != token
    for _ in range(600):
        streets.say(B, standing(streets, A, B), False, "no")
        streets.run(1.0)
    assert len(streets.meets(B)) < 20


def test_a_receiver_that_has_moved_is_met_again_before_its_sender_notices() -> None:
    streets = met("restricted", "restricted")
    before = standing(streets, A, B)
    house = streets.houses[B]
    house.remote = "203.0.113.200"
    streets.machine.away(B, streets.now_s)
    streets.enter(house)
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.PUNCHED and standing(streets, A, B) != before


def test_who_comes_back_as_it_was_keeps_its_ways() -> None:
    streets = met("restricted", "symmetric")
    asked = len(streets.meets(A))
    for _ in range(5):
        streets.machine.away(B, streets.now_s)
        streets.run(0.5)
        streets.enter(streets.houses[B])
    assert set(streets.ways().values()) == {Way.RELAYED}
    assert len(streets.meets(A)) == asked


def test_who_was_away_when_its_way_was_given_up_hears_so_once_it_says_that_it_stands() -> None:
    streets = met("restricted", "restricted", seconds=120.0)
    token = standing(streets, A, B)
    streets.machine.away(A, streets.now_s)
    streets.say(B, token, False, m.LOST)
    streets.enter(streets.houses[A])
    streets.run(5.0)
    newer = standing(streets, A, B)
    assert newer != token
    for one in (token, newer):
        streets.say(A, one, True, peer=B, way="punched")
    streets.run(1.0)
    assert m.Part(token) in streets.houses[A].heard, "it would say so for ever, and be believed"
    assert m.Part(newer) not in streets.houses[A].heard
    assert standing(streets, A, B) == newer


def test_another_process_of_a_peer_is_met_anew() -> None:
    streets = met("restricted", "restricted")
    old = standing(streets, A, B)
    streets.machine.away(B, streets.now_s)
    streets.enter(streets.houses[B], b"anew")
    assert old not in streets.machine._by_token
    streets.run(2.0)
    assert m.Part(old) in streets.houses[A].heard
    assert set(streets.ways().values()) == {Way.PUNCHED}


def test_nothing_of_a_peer_is_kept_when_it_leaves() -> None:
    streets = met("restricted", "symmetric", "restricted")
    streets.machine.left(A, streets.now_s)
    streets.run(1.0)
    assert not any(A in key for key in streets.ways())
    assert not any(A in (pair.sender, pair.receiver) for pair in streets.machine._every_pair())
    for peer in (B, C):
        streets.machine.left(peer, streets.now_s)
    assert not streets.machine._by_token and not streets.machine._members


# ---- relays


def with_relays(*kinds: str, rates: Sequence[int] = (10**6, 10**6), **how: Any) -> Streets:
    """Two symmetric ones and relays."""
    streets = Streets(houses("symmetric", "symmetric", *kinds), **how)
    for peer, rate in zip((C, D, E), rates, strict=False):
        if peer in streets.houses:
            streets.houses[peer].relays = True
            streets.machine.carrying(peer, m.Carrying(9000, rate, -1), streets.now_s)
    streets.run(30.0)
    return streets


def relay_of(streets: Streets, sender: PeerId, receiver: PeerId) -> PeerId | None:
    pair = streets.machine._pair(sender, receiver)
    assert pair is not None and pair.standing is not None
    return pair.standing.route.relay


def test_the_fastest_relay_is_chosen_as_far_as_its_word_counts_and_the_coordinator_last() -> None:
    streets = with_relays("open", "open", rates=(10**5, 10**6))
    assert relay_of(streets, A, B) == relay_of(streets, B, A) == D
    # Ten times less, and so on: a boast counts for no more than what a line of 10 Mbit/s has.
    streets = with_relays("open", "open", rates=(10**12, 2 * 10**6))
    assert {relay_of(streets, A, B), relay_of(streets, B, A)} == {C, D}
    assert relay_of(with_relays("restricted"), A, B) is None


def test_a_relay_that_has_nothing_left_today_is_not_asked() -> None:
    streets = Streets(houses("symmetric", "symmetric", "open"))
    streets.houses[C].relays = True
    streets.machine.carrying(C, m.Carrying(9000, 10**6, 0), streets.now_s)
    streets.run(30.0)
    assert relay_of(streets, A, B) is None


def test_a_dead_relay_is_left_within_five_seconds_of_the_report() -> None:
    streets = with_relays("open", "open")
    first = relay_of(streets, A, B)
    assert first is not None
    streets.houses[first].is_on = False
    streets.say(A, standing(streets, A, B), False, "reset")
    streets.run(5.0)
    assert streets.ways()[A, B] is Way.RELAYED
    assert relay_of(streets, A, B) not in (first, None)


def test_a_relay_through_which_nothing_came_in_a_round_is_left() -> None:
    streets = with_relays("open", "open")
    first = relay_of(streets, A, B)
    streets.machine.unheard({(A, B)}, streets.now_s)
    streets.run(5.0)
    assert streets.ways()[A, B] is Way.RELAYED
    assert relay_of(streets, A, B) not in (first, None)


def test_who_hears_nobody_counts_once_against_a_relay_and_takes_down_no_other_way() -> None:
    streets = with_relays("open")
    streets.machine.unheard({(A, B), (E, B), (C, B)}, streets.now_s)
    assert not streets.notes
    assert streets.ways()[C, B] is Way.TURNED


def test_a_relay_that_is_evicted_is_left_though_nobody_has_said_so() -> None:
    streets = with_relays("open")
    assert relay_of(streets, A, B) == C
    streets.houses[C].is_on = False
    streets.machine.left(C, streets.now_s)
    streets.run(1.0)
    assert streets.ways()[A, B] is Way.RELAYED and relay_of(streets, A, B) is None


def test_a_relay_that_does_not_answer_costs_one_try() -> None:
    streets = Streets(houses("symmetric", "symmetric", "open"))
    streets.machine.carrying(C, m.Carrying(9000, 10**6, -1), streets.now_s)  # and never is ready
    streets.run(30.0)
    assert relay_of(streets, A, B) is None
    assert {meet.host for meet in streets.meets(A) if meet.way == "relayed"} == {""}


def test_a_relay_never_carries_what_it_sends_or_gets_itself() -> None:
    streets = met("symmetric", "symmetric", relay=False)
    for peer in (A, B):
        streets.houses[peer].relays = True
        streets.machine.carrying(peer, m.Carrying(9000, 10**6, -1), streets.now_s)
    streets.run(120.0)
    assert set(streets.ways().values()) == {None}
    assert not any(isinstance(one, m.Carry) for one in streets.houses[A].heard)


def test_people_hear_of_a_relay_that_several_senders_have_left() -> None:
    streets = with_relays("open")
    for sender, receiver in ((A, B), (B, A)):
        assert relay_of(streets, sender, receiver) == C
        streets.say(sender, standing(streets, sender, receiver), False, "stalled")
    assert streets.notes == [(C, "relay left", "by 2 peers: stalled")]


def test_a_relay_is_credited_with_what_both_ends_have_moved_and_no_more() -> None:
    streets = with_relays("open")
    token, relays = standing(streets, A, B), streets.machine.relays
    relays.moved(A, 5000)
    relays.moved(B, 3000)

    def say(peer: PeerId, count: int) -> int:
        streets.machine.carried(peer, m.Carried(token, count, is_over=False), streets.now_s)
        return relays.credited.get(C, 0)

    assert say(D, 1000) == 0, "it is not D's to carry"
    assert say(C, 1000) == 1000
    assert say(C, 10**12) == 3000
    relays.moved(A, 6000)
    relays.moved(B, 6000)
    assert say(C, 10**12) == 6000
    assert say(C, 10**12) == 6000


# ---- tokens, and those who want to do harm


def test_a_token_is_taken_once_from_each_side_and_for_its_purpose_alone() -> None:
    streets = Streets(houses("symmetric", "symmetric"))
    (token, *_) = streets.machine._by_token
    sender, receiver = Side.SENDER, Side.RECEIVER
    assert streets.machine.takes(token, sender) is Way.PUNCHED
    first = streets.houses[streets.machine._by_token[token].sender]
    streets.machine.mirrored(token, sender, first.remote, 1, streets.now_s)
    assert streets.machine.takes(token, sender) is None
    assert streets.machine.takes(token, receiver) is Way.PUNCHED
    assert streets.machine.takes(b"?" * 32, sender) is None
    streets.run(5.3)
    relayed = [one for one in streets.machine._by_token.values() if one.route.way is Way.RELAYED]
    token = relayed[0].token
    assert streets.machine.takes(token, sender) in (Way.RELAYED, None)
    assert streets.machine.takes(token, sender) is None


def test_nobody_speaks_for_others() -> None:
    streets = met("restricted", "restricted", "open")
    token = standing(streets, A, B)
    streets.say(C, token, False, "gone")
    streets.say(C, b"?" * 32, False, "gone")
    assert streets.ways()[A, B] is Way.PUNCHED and standing(streets, A, B) == token
    streets.say(B, standing(streets, A, B), True)
    assert streets.ways()[A, B] is Way.PUNCHED
    streets = Streets(houses("restricted", "restricted"))
    (token, *_) = streets.machine._by_token
    streets.say(streets.machine._by_token[token].receiver, token, True)
    assert None in streets.ways().values(), "a receiver's word makes no way"


def test_a_sender_that_lies_costs_its_own_way_alone() -> None:
    streets = met("open", "open", "open", "open")
    streets.machine.unreached(A, (B, C, D), streets.now_s)
    streets.run(60.0)
    others = {key: way for key, way in streets.ways().items() if key[0] != A}
    assert set(others.values()) == {Way.DIALLED}
    assert not any(streets.machine.misses(peer) for peer in (B, C, D))


@pytest.mark.parametrize("lies", ["places", "unreached", "moves", "comes anew"])
def test_how_often_one_makes_others_dial_is_bounded(lies: str) -> None:
    streets = Streets(houses("open", "restricted", "restricted", "restricted", "restricted"))
    numbers = itertools.count()
    for _ in range(1200):
        number = next(numbers)
        match lies:
            case "places":
                hosts = [f"203.0.113.{(number * 7 + i) % 250 + 1}" for i in range(8)]
                places = tuple(m.Place("told", host, 80) for host in hosts)
                streets.machine.places(A, m.Places(places), streets.now_s)
                streets.machine.dialled(A, streets.now_s, is_open=False)
            case "unreached":
                streets.machine.unreached(A, (B, C, D, E)[: number % 5], streets.now_s)
            case "moves":
                streets.houses[A].remote = f"203.0.113.{number % 250 + 1}"
                streets.enter(streets.houses[A])
            case "comes anew":
                streets.enter(streets.houses[A], number.to_bytes(4, "big"))
        streets.run(0.25)
    dialled = [
        meet
        for peer in (B, C, D, E)
        for meet in streets.meets(peer)
        if meet.peer == A and meet.host
    ]
    bound = limits.MEET_DIALS + 300 * limits.MEET_DIALS_PER_S
    assert len(dialled) <= 2 * bound
    assert len(dialled) < 700


def test_where_very_many_take_part_only_those_meet_that_need_it() -> None:
    many = [House(bytes([9, i]) * 16, "symmetric", f"198.51.{i}.1") for i in range(140)]
    streets = Streets([])
    for house in many:
        streets.houses[house.peer] = house
        streets.enter(house)
    first, second = many[0].peer, many[-1].peer
    known = len(streets.ways())
    assert known <= limits.MEET_ALL_MAX**2 and (first, second) not in streets.ways()
    streets.machine.unreached(first, (second,), streets.now_s)
    assert (first, second) in streets.ways()


class Counted(bytes):
    """A key that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_the_ways_of_many_are_told_without_a_look_at_everybody_for_each() -> None:
    count = limits.MEET_ALL_MAX + 20
    keys = [bytes([number + 1]) * 32 for number in range(count)]
    streets = Streets([])
    for number, key in enumerate(keys):
        streets.enter(House(key, "symmetric", f"198.51.{number}.1"))
    for number, key in enumerate(keys):
        streets.machine.unreached(key, (keys[number - 1],), streets.now_s)
    machine = streets.machine
    machine._members = {Counted(key): one for key, one in machine._members.items()}
    Counted.compared = 0
    ways = machine.ways()
    assert len(ways) >= count and Counted.compared < 4 * len(ways)


def test_whatever_happens_the_books_agree() -> None:
    for seed in range(60):
        draw = random.Random(seed)
        kinds = [draw.choice(KINDS) for _ in range(5)]
        streets = Streets(houses(*kinds), mirror=draw.random() < 0.8, relay=draw.random() < 0.5)
        peers = list(streets.houses)
        for _ in range(120):
            peer, other = draw.sample(peers, 2)
            house = streets.houses[peer]
            match draw.randrange(10):
                case 0:
                    streets.machine.away(peer, streets.now_s)
                case 1:
                    streets.machine.left(peer, streets.now_s)
                case 2:
                    house.remote = f"203.0.113.{draw.randrange(1, 9)}"
                    streets.enter(house)
                case 3:
                    streets.enter(house, draw.randbytes(2))
                case 4:
                    streets.machine.unreached(peer, (other,), streets.now_s)
                case 5 if house.ways:
                    streets.say(draw.choice(peers), draw.choice(list(house.ways)), False, "no")
                case 6:
                    house.relays = not house.relays
                    rate = 10**6 if house.relays else 0
                    streets.machine.carrying(peer, m.Carrying(9000, rate, -1), streets.now_s)
                case 7:
                    house.is_on = not house.is_on
                case 8:
                    met = m.Met(draw.randbytes(32), True, "", other, draw.choice([*Way]))
                    streets.machine.met(peer, met, streets.now_s)
                case _:
                    streets.run(draw.random() * 8.0)
            streets.machine.tick(streets.now_s)
            streets.check()
        for house in streets.houses.values():
            house.is_on = True
            streets.enter(house)
        streets.run(4000.0)
        for (sender, receiver), way in streets.ways().items():
            assert way is not None or not streets.has_relay(sender, receiver), (seed, kinds)


# ---- who has but a detour


def test_pairs_without_a_direct_way_are_told_with_the_rate_that_each_may_hope_for() -> None:
    streets = met("symmetric", "symmetric", "open")
    own = streets.machine._means.relay_bytes_per_s
    assert streets.machine.detours(streets.now_s) == {(A, B): own / 2, (B, A): own / 2}
    streets = with_relays("open", rates=(10**6,))
    assert streets.machine.detours(streets.now_s) == {(A, B): 5e5, (B, A): 5e5}
    streets = met("symmetric", "symmetric", "open", relay=False)
    assert streets.machine.detours(streets.now_s) == {(A, B): 0.0, (B, A): 0.0}
    assert not met("restricted", "restricted").machine.detours(30.0)


def addresses_told(streets: Streets, house: House) -> list[PeerId]:
    """Peers whose addresses it has heard since this was last asked."""
    streets.run(1.0)
    told = [peer for one in house.heard if isinstance(one, m.Listens) for peer in one.at]
    house.heard.clear()
    return sorted(told)


def test_each_is_told_an_address_once_and_anew_when_it_is_another_or_another_peers() -> None:
    streets = Streets(houses("open", "open", "open"))
    first, second, third = streets.houses.values()
    assert addresses_told(streets, first) == [second.peer, third.peer]
    assert addresses_told(streets, second) == [first.peer, third.peer]
    streets.enter(second)
    assert not addresses_told(streets, first), "it is as it was"
    assert addresses_told(streets, second) == [first.peer, third.peer], "to a new connection all"
    second.remote = "203.0.113.77"
    streets.enter(second)
    assert addresses_told(streets, first) == [second.peer]
    streets.machine.left(second.peer, streets.now_s)
    fourth = House(D, "open", "203.0.113.78")
    streets.houses[D] = fourth
    streets.enter(fourth)
    assert addresses_told(streets, first) == [D], "whoever has its place in the books"
    assert addresses_told(streets, fourth) == [first.peer, third.peer]


def test_thousands_cost_the_books_no_entry_for_each_two_of_them() -> None:
    many = [House(i.to_bytes(32, "big"), "open", f"198.18.0.{i}") for i in range(250)]
    machine = Meetings(Means(lambda: b"", True, 0), lambda peer, message: None, lambda *what: None)
    for house in many:
        hello = m.Hello(b"boot", "otter", house.peer, house.remote, DATA_PORT, -1, b"", 1 << 30)
        machine.came(house.peer, house.remote, hello, 0.0)
    told = machine._directory._told.values()
    assert len(told) == len(many)
    assert all(len(scopes) == 1 for scopes in told), "one number, however many others there are"

"""Ways as the whole coordinator arranges them: after JOINs, in status, and by words that count."""

import itertools
from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.meetings import Means, Meetings
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire import messages as m
from tests.transport.coordinator.members.routers import DATA_PORT
from tests.transport.hall import Hall, hello_of
from tests.transport.rig import A, B, C, D

REMOTE = {peer: f"198.51.100.{peer[0]}" for peer in (A, B, C, D)}
TOKEN = b"t" * 32


def meeting_hall(*peers: bytes, **how: Any) -> Hall:
    """A coordinator to which these came from an address of their own each."""
    hall = Hall(**how)
    numbers = itertools.count(1)
    machine = hall.machine
    means = Means(lambda: next(numbers).to_bytes(32, "big"), mirror=True, relay_bytes_per_s=1)
    machine.meetings._means = means
    for peer in peers:
        come(hall, peer)
    return hall


def come(hall: Hall, peer: bytes, **changes: Any) -> None:
    hall.sent[peer] = []
    hello = hello_of(peer, **{"host": REMOTE[peer], "port": DATA_PORT, **changes})
    hall.take(hall.machine.connected(peer, hello, hall.now_s, remote=REMOTE[peer]))
    hall.say(peer, m.Places(()))


def refused(hall: Hall, *peers: bytes) -> None:
    """The coordinator cannot open a connection to these."""
    for peer in peers:
        hall.take(hall.machine.dialled(peer, is_open=False, now_s=hall.now_s))


def sent(hall: Hall, peer: bytes, kind: type[Any]) -> list[Any]:
    return [one for one in hall.sent[peer] if isinstance(one, kind)]


def meet(hall: Hall, sender: bytes, receiver: bytes) -> m.Meet:
    """Return the newest MEET to a sender."""
    asked = [one for one in sent(hall, sender, m.Meet) if one.sends and one.peer == receiver]
    return asked[-1]


def test_who_is_welcome_hears_from_where_it_comes() -> None:
    hall = meeting_hall(A)
    assert sent(hall, A, m.Welcome)[0].seen == REMOTE[A]


def test_two_are_told_to_meet_after_both_have_heard_who_the_other_is() -> None:
    hall = meeting_hall(A, B)
    assert not sent(hall, A, m.Meet)
    refused(hall, B)
    assert meet(hall, A, B).way == "turned" and not meet(hall, A, B).host
    kinds = [type(one) for one in hall.sent[A]]
    assert kinds.index(m.Records) < kinds.index(m.Meet)
    (asked,) = sent(hall, B, m.Meet)
    assert (asked.host, asked.port, asked.sends) == (REMOTE[A], DATA_PORT, False)
    hall.say(A, m.Met(asked.token, True))
    ways = [one.ways for one in hall.machine.status(hall.now_s).peers]
    assert ways == [{"otter (02020202)": "turned"}, {"otter (01010101)": "dialled"}]


def test_ways_to_peers_of_one_name_are_told_apart_and_others_have_their_names() -> None:
    hall = meeting_hall(A, B)
    come(hall, C, name="lynx")
    (first, *_) = hall.machine.status(hall.now_s).peers
    assert first.ways == {"otter (02020202)": "dialled", "lynx": "dialled"}


def test_two_that_the_coordinator_cannot_reach_show_it_how_they_look_and_meet_half_way() -> None:
    hall = meeting_hall(A, B)
    refused(hall, A, B)
    token = meet(hall, A, B).token
    assert hall.machine.takes(token, Side.SENDER) is Way.PUNCHED
    for side, peer in ((Side.SENDER, A), (Side.RECEIVER, B)):
        hall.take(hall.machine.mirrored(token, side, REMOTE[peer], 40_000 + peer[0], 1.0))
    assert (meet(hall, A, B).host, meet(hall, A, B).port) == (REMOTE[B], 40_002)
    asked = sent(hall, B, m.Meet)[-1]
    assert (asked.token, asked.host, asked.port, asked.sends) == (token, REMOTE[A], 40_001, False)


def test_an_older_peer_that_tells_no_places_is_left_alone() -> None:
    hall = meeting_hall(A)
    hall.join(B)
    refused(hall, A, B)
    assert not sent(hall, A, m.Meet) + sent(hall, B, m.Meet)
    hall.ack(B)
    assert sent(hall, B, m.Unreached)[-1].by_coordinator


def test_a_router_that_refuses_before_a_peer_has_told_its_places_frightens_nobody() -> None:
    hall = meeting_hall(A)
    hall.join(B)
    refused(hall, B)
    hall.say(B, m.Places(()))
    hall.ack(B)
    assert not sent(hall, B, m.Unreached)


def test_a_peer_behind_a_router_is_not_unreachable_while_ways_are_tried_or_stand() -> None:
    hall = meeting_hall(A, B)
    hall.machine.meetings._means = Means(lambda: TOKEN)  # dials and turns alone
    refused(hall, B)
    hall.ack(A, unreached=(B,))
    assert not sent(hall, B, m.Unreached), "it need not be dialled, and the try goes on"
    hall.say(A, m.Met(TOKEN, True))
    hall.ack(A, unreached=(B,))
    assert hall.machine.lines[B].life.unreached_s is None
    hall.say(A, m.Met(TOKEN, False, "reset"))
    hall.ack(A, unreached=(B,))
    for second in range(20):
        hall.tick(float(second))
        hall.ack(A, unreached=(B,))
        hall.ack(B)
    assert sent(hall, B, m.Unreached)[-1] == m.Unreached(REMOTE[B], DATA_PORT, 1, True)
    assert hall.machine.lines[B].life.unreached_s is not None


def test_who_leaves_is_met_no_longer_and_its_ways_are_given_up() -> None:
    hall = meeting_hall(A, B)
    refused(hall, B)
    token = meet(hall, A, B).token
    hall.say(A, m.Met(token, True))
    hall.say(B, m.Leave())
    assert m.Part(token) in hall.sent[A]
    assert not hall.machine.meetings.ways()


def test_a_closed_control_connection_leaves_ways_as_they_are() -> None:
    hall = meeting_hall(A, B)
    refused(hall, B)
    token = meet(hall, A, B).token
    hall.say(A, m.Met(token, True))
    hall.take(hall.machine.disconnected(B, hall.now_s))
    come(hall, B)
    assert m.Part(token) not in hall.sent[A]
    assert hall.machine.meetings.ways()[A, B] is Way.TURNED


# ---- relays


def relay_hello(peer: bytes) -> m.Hello:
    brings = m.Brings(model=m.RELAY)
    return hello_of(peer, host=REMOTE[peer], port=9000, brings=brings)


def test_a_process_that_only_relays_is_no_member_and_carries() -> None:
    hall = meeting_hall(A, B)
    head = len(hall.records)
    hall.take(hall.machine.connected(D, relay_hello(D), hall.now_s, remote=REMOTE[D]))
    assert len(hall.records) == head and D not in hall.machine.lines
    assert sent(hall, D, m.Welcome) and not sent(hall, D, m.Records)
    hall.say(D, m.Places(()), m.Carrying(9000, 10**6, -1))
    means = hall.machine.meetings._means
    assert means is not None
    hall.machine.meetings._means = Means(means.draw_token)
    refused(hall, A, B)
    (asked,) = sent(hall, D, m.Carry)
    hall.say(D, m.Carried(asked.token, 0, is_over=False))
    assert (meet(hall, A, B).way, meet(hall, A, B).host) == ("relayed", REMOTE[D])
    (told,) = hall.machine.status(hall.now_s).relays
    assert (told.peer, told.ways, told.carried) == (D.hex(), 1, 0)
    with pytest.raises(RemoteFault):
        hall.machine.received(D, m.Ready(1, 1, 0, b"R" * 32), hall.now_s)
    hall.take(hall.machine.disconnected(D, hall.now_s))
    assert not hall.machine.status(hall.now_s).relays


def test_a_members_key_is_no_relays_and_there_are_so_many_at_most() -> None:
    hall = meeting_hall(A)
    with pytest.raises(RemoteFault):
        hall.machine.connected(A, relay_hello(A), hall.now_s)
    for number in range(limits.RELAYS_MAX + 1):
        peer = bytes([7, number]) * 16
        hello = hello_of(peer, brings=m.Brings(model=m.RELAY))
        hall.sent[peer] = []
        hall.take(hall.machine.connected(peer, hello, hall.now_s))
    assert sent(hall, peer, m.Refused)[0].code == "SWT-E701"


# ---- bad input


@pytest.mark.parametrize(
    "place",
    [
        m.Place("lan", "otter.example", 1), m.Place("lan", "fe80::1%eth0", 1),
        m.Place("lan", "224.0.0.1", 1), m.Place("lan", "0.0.0.0", 1),
        m.Place("lan", "::ffff:10.0.0.1", 1), m.Place("lan", "192.0.2.1", 0),
        m.Place("lan", "192.0.2.1", 65_536), m.Place("dream", "192.0.2.1", 1),
    ],
    ids=lambda place: f"{place.kind}-{place.host}-{place.port}",
)  # fmt: skip
def test_an_address_that_cannot_be_dialled_is_refused(place: m.Place) -> None:
    with pytest.raises(RemoteFault) as caught:
        meeting_hall(A).say(A, m.Places((place,)))
    assert caught.value.reason == "ways"


@pytest.mark.parametrize(
    "message",
    [
        m.Places((m.Place("lan", "192.0.2.1", 1),) * (limits.PLACES_MAX + 1)),
        m.Met(b"short", True), m.Met(TOKEN, True, "", B, "flown"),
        m.Met(TOKEN, True, "", b"", "turned"),
        m.Carrying(0, 1, -1), m.Carrying(1, -1, -1), m.Carrying(1, 1, -2),
        m.Carried(TOKEN, -1, False),
    ],
    ids=repr,
)  # fmt: skip
def test_words_on_ways_that_cannot_be_are_refused(message: m.PeerMessage) -> None:
    with pytest.raises(RemoteFault):
        meeting_hall(A).say(A, message)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "fd00::1"])
def test_an_address_of_one_house_is_told_to_nobody_outside(host: str) -> None:
    hall = meeting_hall(A, B)
    hall.say(B, m.Places((m.Place("told", host, 22),)))
    refused(hall, A, B)
    hall.alive(60.0, A, B)
    assert host not in {one.host for peer in (A, B) for one in sent(hall, peer, m.Meet)}


def test_nothing_is_arranged_by_a_coordinator_that_has_no_means() -> None:
    machine = Meetings(None, lambda peer, message: pytest.fail("sent"), lambda *what: None)
    for peer in (A, B):
        machine.came(peer, REMOTE[peer], hello_of(peer), 0.0)
        machine.places(peer, m.Places(()), 0.0)
        machine.dialled(peer, 0.0, is_open=False)
    machine.unreached(A, (B,), 0.0)
    machine.tick(1e6)
    assert machine.misses(A) == {B}

"""Who is told where whom can be dialled, once on each connection and again when it changes."""

import random

from swarmtrain_transport.coordinator.members.directory import Directory
from swarmtrain_transport.coordinator.members.whereabouts import Whereabouts
from swarmtrain_transport.wire.messages import Place

PLACES = (
    ("203.0.113.1", "203.0.113.1"),
    ("203.0.113.2", "203.0.113.2"),
    ("2001:db8::1", "2001:db8::1"),
    ("2001:db8:0:1::2", "198.51.100.3"),
    ("192.168.1.2", "203.0.113.1"),
    ("192.168.1.3", "203.0.113.2"),
    ("192.168.1.4", "192.168.1.4"),
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1", "203.0.113.9"),
)
"""Addresses that peers tell, and those that they come from."""


def test_each_hears_of_exactly_those_that_it_can_dial_whatever_happens() -> None:
    for seed in range(6):
        draw, directory = random.Random(seed), Directory()
        at, known = dict[bytes, Whereabouts](), dict[bytes, dict[bytes, tuple[str, int]]]()
        for step in range(150):
            peer = bytes([draw.randrange(12)]) * 32
            match draw.randrange(5):
                case 0:
                    directory.leave(peer)
                    at.pop(peer, None)
                    known.pop(peer, None)
                    for one in known.values():
                        one.pop(peer, None)
                case 1 if peer in at:
                    directory.connected(peer)
                    known[peer] = {}
                case 2 if peer in at:
                    at[peer].places = (Place("told", "2001:db8::7", 1),)
                case 3 | 4:
                    host, remote = draw.choice(PLACES)
                    at[peer] = Whereabouts(remote, host, 1000 + step)
                    directory.enter(peer, at[peer])
                    directory.connected(peer)
                    known[peer] = {}
            for asker, own in known.items():
                for news in directory.news(asker, at[asker]):
                    own.update(news.at)
                assert not directory.news(asker, at[asker]), "it has heard all"
                others = {other: one for other, one in at.items() if other != asker}
                for other, one in others.items():
                    if at[asker].can_dial(one, one.host):
                        assert own[other] == (one.host, one.port), seed


def test_many_who_have_heard_the_same_are_told_by_the_same_message() -> None:
    directory = Directory()
    at = {bytes([n]) * 32: Whereabouts(f"203.0.113.{n}", f"203.0.113.{n}", 9) for n in range(1, 60)}
    for peer, one in at.items():
        directory.enter(peer, one)
    askers = [b"x" * 32, b"y" * 32]
    outside = Whereabouts("198.51.100.1", "198.51.100.1", 9)
    assert directory.news(askers[0], outside)[0] is directory.news(askers[1], outside)[0]
    late = b"z" * 32
    directory.enter(late, outside)
    told = [directory.news(asker, outside) for asker in askers]
    assert told[0][0] is told[1][0] and told[0][0].at == {late: ("198.51.100.1", 9)}

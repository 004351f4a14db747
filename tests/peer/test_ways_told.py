"""Words on ways: said once, plainly, and of who is not reached only when all was tried."""

import pytest

from swarmtrain.peer.network.ways_told import SOUGHT_S, WaysTold
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Way

NAMES = {b"a": "ana", b"b": "ben", b"c": "cleo"}
A, B, C = map(PeerId, NAMES)


def told() -> WaysTold:
    return WaysTold(lambda peer: NAMES[peer])


def test_nothing_is_said_while_all_are_dialled_or_sought_or_there_is_nobody() -> None:
    words = told()
    assert not words.look({A: None, B: None}, 0.0)
    assert not words.look({A: Way.DIALLED, B: None}, 2.0)
    assert not words.look({A: Way.DIALLED, B: Way.DIALLED}, 10.0)
    assert not words.look({}, 12.0)
    assert words.in_short({}) == ""


def test_ways_that_are_not_usual_are_told_once_each_with_its_term() -> None:
    words = told()
    ways = {C: Way.RELAYED, A: Way.DIALLED, B: Way.PUNCHED}
    assert words.look(ways, 0.0) == [
        "Sends to ana directly; to ben through both routers (punched); "
        "to cleo over a relay (relayed)."
    ]
    assert not words.look(ways, 2.0)
    assert words.in_short(ways) == "ana dialled; ben punched; cleo relayed"
    assert words.look({A: Way.DIALLED, B: Way.DIALLED}, 4.0) == ["Sends to ana, ben directly."]


def test_a_way_that_is_made_anew_within_seconds_is_not_mentioned() -> None:
    words = told()
    assert words.look({A: Way.RELAYED}, 0.0)
    assert not words.look({A: None}, 2.0)
    assert not words.look({A: Way.RELAYED}, 8.0)
    assert not words.look({}, 10.0), "the last other peer has left"


def test_who_is_not_reached_is_named_once_all_was_tried() -> None:
    words = told()
    assert not words.look({A: None, B: Way.TURNED}, 1.0)
    assert not words.look({A: None, B: Way.TURNED}, 1.0 + SOUGHT_S / 2)
    first, second = words.look({A: None, B: Way.TURNED}, 1.0 + SOUGHT_S)
    assert first == "Sends to ben over connections that come from there (turned)."
    assert second.startswith("No way to ana was found so far; ")
    assert not words.look({A: None, B: Way.TURNED}, 3.0 + SOUGHT_S)
    assert words.in_short({A: None, B: Way.TURNED}) == "ben turned; ana not reached"


@pytest.mark.parametrize("way", Way)
def test_each_kind_of_way_has_words(way: Way) -> None:
    assert len(told().look({A: way, B: Way.RELAYED}, 0.0)) == 1

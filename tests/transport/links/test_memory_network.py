"""Abilities that only the memory network has: schedule, cut, drop and kill, without a clock."""

from collections.abc import Callable

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.memory_link import MemoryNetwork
from tests.transport.links.link_rig import Recorder, Station, identity_of, introduce, part


def memory_pair(network: MemoryNetwork) -> tuple[Station, Station]:
    stations = []
    for name in ("ada", "ben"):
        identity, recorder = identity_of(name), Recorder()
        address = Address(identity.peer_id, identity.curve_key, "192.0.2.1", 0)
        stations.append(Station(identity, network.open(address, recorder), recorder))
    introduce(*stations)
    return stations[0], stations[1]


def test_a_scheduler_decides_when_each_frame_arrives_and_whether() -> None:
    pending: list[tuple[bytes, bytes, Callable[[], None]]] = []
    network = MemoryNetwork(lambda *frame: pending.append(frame))
    ada, ben = memory_pair(network)
    for number in range(3):
        ada.link.send(ben.id, part(number))
    assert [(source, target) for source, target, _ in pending] == [(ada.id, ben.id)] * 3
    assert ben.heard.frames == []
    pending[0][2]()
    pending[2][2]()
    assert ben.heard.chunks_from(ada.id) == [0, 2]


def test_a_scheduler_that_reorders_or_repeats_is_told_so() -> None:
    pending: list[Callable[[], None]] = []
    network = MemoryNetwork(lambda source, target, deliver: pending.append(deliver))
    ada, ben = memory_pair(network)
    ada.link.send(ben.id, part(0))
    ada.link.send(ben.id, part(1))
    pending[1]()
    for wrong in pending:
        with pytest.raises(LocalFault):
            wrong()
    assert ben.heard.chunks_from(ada.id) == [1]


def test_frames_withheld_by_the_scheduler_do_not_fill_the_queue_for_ever() -> None:
    pending: list[Callable[[], None]] = []
    network = MemoryNetwork(lambda source, target, deliver: pending.append(deliver))
    ada, ben = memory_pair(network)
    for _ in range(3):
        while ada.link.send(ben.id, part(0)):
            pass
        assert len(pending) == limits.LINK_SEND_QUEUE_FRAMES
        pending[-1]()
        pending.clear()
    assert len(ben.heard.frames) == 3


def test_a_cut_loses_one_direction_only_until_it_is_healed() -> None:
    network = MemoryNetwork()
    ada, ben = memory_pair(network)
    ada.link.send(ben.id, part(1))
    network.cut(ada.id, ben.id)
    ada.link.send(ben.id, part(2))
    ben.link.send(ada.id, part(3))
    network.pump()
    network.heal(ada.id, ben.id)
    network.pump()
    ada.link.send(ben.id, part(4))
    network.pump()
    assert ben.heard.chunks_from(ada.id) == [4]
    assert ada.heard.chunks_from(ben.id) == [3]


def test_a_dropped_connection_loses_what_is_under_way_and_nothing_else() -> None:
    network = MemoryNetwork()
    ada, ben = memory_pair(network)
    ada.link.send(ben.id, part(1))
    network.drop(ada.id, ben.id)
    ada.link.send(ben.id, part(2))
    network.pump()
    assert ben.heard.chunks_from(ada.id) == [2]


def test_a_killed_peer_takes_its_frames_with_it_and_its_port_is_free() -> None:
    network = MemoryNetwork()
    ada, ben = memory_pair(network)
    ada.link.send(ben.id, part(1))
    ben.link.send(ada.id, part(2))
    network.kill(ben.id)
    network.pump()
    assert ada.heard.frames == [] and ben.heard.frames == []
    network.open(ben.address, ben.heard)
    with pytest.raises(LocalFault):
        network.open(ben.address, ben.heard)


def test_pumping_a_few_frames_leaves_the_others_waiting() -> None:
    network = MemoryNetwork()
    ada, ben = memory_pair(network)
    for number in range(5):
        ada.link.send(ben.id, part(number))
    assert network.pump(max_frames=2) == 2
    assert ben.heard.chunks_from(ada.id) == [0, 1]
    assert network.pump() == 3

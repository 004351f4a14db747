"""Connections are there while they are needed: from the first frame on, until nothing is sent."""

import asyncio
import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.dialler import Dialler
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.tcp import can_tell
from swarmtrain_transport.links.ways import Way
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.messages import Met
from tests.transport.links.link_rig import (
    Scenario,
    Station,
    World,
    ZmqWorld,
    introduce,
    noise,
    part,
    reach,
    run_in,
)
from tests.transport.links.test_zmq_width import connections_to

LARGE = limits.ZERO_COPY_BYTES


def run(scenario: Scenario) -> None:
    run_in(ZmqWorld, scenario)


def link_of(station: Station) -> ZmqLink:
    assert isinstance(station.link, ZmqLink)
    return station.link


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever has arrived makes a connection idle, and it is looked at often."""
    if not can_tell():
        pytest.skip("where the system does not tell what has arrived nothing is closed")
    monkeypatch.setattr(limits, "LINK_IDLE_S", 0.0)
    monkeypatch.setattr(limits, "LINK_LOOK_S", 0.01)
    yield


def keep(monkeypatch: pytest.MonkeyPatch, *, is_kept: bool) -> None:
    """From now on whatever is idle is kept, or is closed at the next look."""
    monkeypatch.setattr(limits, "LINK_IDLE_S", 3600.0 if is_kept else 0.0)


def handshakes(station: Station) -> list[bytes]:
    """Keys that are asked about from now on, one for each handshake."""
    allowed, keys = link_of(station)._reception.allowed, list[bytes]()
    answer = allowed.zap_reply

    def counted(request: list[bytes]) -> object:
        keys.append(request[-1])
        return answer(request)

    allowed.zap_reply = counted  # type: ignore[method-assign, assignment]
    return keys


def test_whoever_is_allowed_costs_no_connection_before_the_first_frame() -> None:
    async def scenario(world: World) -> None:
        stations = [await world.add(f"peer {number}") for number in range(8)]
        before = psutil.Process().num_fds() if os.name == "posix" else 0
        introduce(*stations)
        link = link_of(stations[0])
        assert (psutil.Process().num_fds() if os.name == "posix" else 0) == before
        assert not any(connections_to(station) for station in stations)
        assert link.ways() == {} and link.unreached(0.0) == ()
        await reach(world, stations[0], stations[1])
        assert link.ways() == {stations[1].id: Way.DIALLED}
        assert [connections_to(station) for station in stations] == [0, 1] + 6 * [0]

    run(scenario)


def test_a_way_may_be_asked_for_before_there_is_a_frame() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        introduce(ada, ben)
        asked = handshakes(ben)
        link_of(ada).warm((ben.id, b"?" * 32))
        await world.repeat(lambda: None, lambda: link_of(ada).ways() == {ben.id: Way.DIALLED})
        await reach(world, ada, ben)
        assert len(asked) == 1

    run(scenario)


@pytest.mark.usefixtures("soon_idle")
def test_an_idle_connection_is_closed_and_one_handshake_brings_it_back() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        introduce(ada, ben)
        asked = handshakes(ben)
        for number in range(1, 4):
            assert ada.link.send(ben.id, part(number))
            await world.until(lambda number=number: len(ben.heard.frames) == number)
            await world.repeat(lambda: None, lambda: connections_to(ben) == 0)
            await world.repeat(lambda: None, lambda: not link_of(ben)._proxy._connections)
            assert link_of(ada).ways() == {}
            assert link_of(ada).unreached(0.0) == ()
            assert len(asked) == number
        assert ben.heard.chunks_from(ada.id) == [1, 2, 3]
        assert not ben.heard.faults and not ada.heard.faults

    run(scenario)


@pytest.mark.usefixtures("soon_idle")
def test_no_frame_is_lost_with_a_connection_that_is_closed() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        introduce(ada, ben)
        count = 120
        for number in range(count):
            assert ada.link.send(ben.id, part(number, noise(LARGE * (number % 5))))
            if number % 7 == 0:  # between these it may be found idle, or nearly so
                await world.until(lambda number=number: len(ben.heard.frames) > number)
        await world.until(lambda: len(ben.heard.frames) == count)
        assert ben.heard.chunks_from(ada.id) == list(range(count))

    run(scenario)


@pytest.mark.usefixtures("soon_idle")
def test_what_is_known_of_the_way_outlives_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        ben.link.allow(ada.address)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))  # and does not listen
            told = Address(ben.id, ben.address.curve_key, "127.0.0.1", silent.getsockname()[1])
            link = link_of(ada)
            link.allow(told)
            told_of: list[bytes] = []
            link.redialled = told_of.append
            link.redial(ben.id, "127.0.0.1", ben.address.port)
            assert told_of == [ben.id], "who counts flows begins with one again, too"
            await reach(world, ada, ben)
            link.widen(ben.id, 3)
            for _ in range(2):
                keep(monkeypatch, is_kept=True)
                await reach(world, ada, ben)
                await world.repeat(link.moved, lambda: connections_to(ben) == 3)
                keep(monkeypatch, is_kept=False)
                await world.repeat(lambda: None, lambda: connections_to(ben) == 0)

    run(scenario)


@pytest.mark.usefixtures("soon_idle")
def test_a_peer_that_cannot_be_reached_is_dialled_on_and_named() -> None:
    async def scenario(world: World) -> None:
        ada, ben, cid = [await world.add(name) for name in ("ada", "ben", "cid")]
        introduce(ada, ben)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))  # and does not listen
            port = silent.getsockname()[1]
            ada.link.allow(Address(cid.id, cid.address.curve_key, "127.0.0.1", port))
            assert ada.link.send(cid.id, part(1))
            for _ in range(3):
                await reach(world, ada, ben)
                await world.repeat(lambda: None, lambda: connections_to(ben) == 0)
            assert link_of(ada).unreached(0.0) == (cid.id,)

    run(scenario)


@pytest.mark.usefixtures("soon_idle")
def test_a_connection_that_was_idle_is_not_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        introduce(ada, ben)
        link, told = link_of(ada), list[Met]()
        dialler = Dialler(asyncio.get_running_loop(), link, lambda: None, told.append)
        for _ in range(3):
            keep(monkeypatch, is_kept=True)
            await reach(world, ada, ben)
            dialler.look()
            assert dialler._dialled == {ben.id}
            keep(monkeypatch, is_kept=False)
            await world.repeat(lambda: None, lambda: connections_to(ben) == 0)
            dialler.look()
        keep(monkeypatch, is_kept=True)
        await reach(world, ada, ben)
        dialler.look()
        keep(monkeypatch, is_kept=False)
        await world.repeat(lambda: None, lambda: link.ways() == {})
        link.warm((ben.id,))  # dialled again before anybody has looked
        assert link.ways() == {ben.id: None}
        dialler.look()
        assert not told

    run(scenario)


def test_connections_are_bounded_and_the_one_that_was_used_longest_ago_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_WAYS_MAX", 3)

    async def scenario(world: World) -> None:
        stations = [await world.add(f"peer {number}") for number in range(6)]
        introduce(*stations)
        ada, others = stations[0], stations[1:]
        for other in (*others, others[0]):
            await reach(world, ada, other)
            assert len(link_of(ada).ways()) <= 3
        assert set(link_of(ada).ways()) == {others[0].id, others[3].id, others[4].id}
        await world.repeat(
            lambda: None, lambda: [connections_to(one) for one in others] == [1, 0, 0, 1, 1]
        )

    run(scenario)

"""Several connections to one peer: what is large goes by all of them, what is small by one."""

import os
import socket

import psutil
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.tcp import can_tell
from swarmtrain_transport.links.zmq_link import ZmqLink
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

LARGE = limits.ZERO_COPY_BYTES


def run(scenario: Scenario) -> None:
    run_in(ZmqWorld, scenario)


async def two_of_them(world: World, width: int) -> tuple[Station, Station, ZmqLink]:
    """Ada reaches ben by so many connections."""
    ada, ben = await world.add("ada"), await world.add("ben")
    introduce(ada, ben)
    await reach(world, ada, ben)
    assert isinstance(ada.link, ZmqLink)
    ada.link.widen(ben.id, width)
    ben.heard.frames.clear()
    return ada, ben, ada.link


def large_and_small(station: Station, source: Station) -> list[int]:
    """Numbers of what was heard, but for what `reach` repeats."""
    return [number for number in station.heard.chunks_from(source.id) if number]


def connections_to(station: Station) -> int:
    """Established TCP connections of this process to where the station listens."""
    port = station.address.port
    there = [one for one in psutil.Process().net_connections("tcp") if one.raddr]
    return sum(one.status == "ESTABLISHED" and one.raddr.port == port for one in there)


def test_everything_arrives_once_and_what_is_small_in_order() -> None:
    async def scenario(world: World) -> None:
        ada, ben, link = await two_of_them(world, 4)
        for number in range(1, 121):
            size = 100 if number % 2 else LARGE + number
            assert link.send(ben.id, part(number, noise(size)))
        await world.until(lambda: len(large_and_small(ben, ada)) >= 120)
        heard = large_and_small(ben, ada)
        assert sorted(heard) == list(range(1, 121))
        assert [n for n in heard if n % 2] == list(range(1, 121, 2))
        assert connections_to(ben) == 4

    run(scenario)


def test_fewer_than_there_are_changes_nothing_and_strangers_are_ignored() -> None:
    async def scenario(world: World) -> None:
        ada, ben, link = await two_of_them(world, 3)
        for width in (1, 3, 0):
            link.widen(ben.id, width)
        link.widen(b"?" * 32, 4)
        for number in range(1, 31):
            assert link.send(ben.id, part(number, noise(LARGE)))
        await world.until(lambda: len(large_and_small(ben, ada)) >= 30)
        assert connections_to(ben) == 3

    run(scenario)


@pytest.mark.skipif(not can_tell(), reason="this system does not tell what arrived")
def test_what_the_connections_have_moved_is_added_up() -> None:
    async def scenario(world: World) -> None:
        _, ben, link = await two_of_them(world, 2)
        before, sent = link.moved(), [0]

        def send() -> None:
            for _ in range(8):
                sent[0] += link.send(ben.id, part(1, noise(LARGE)))

        def are_both_used() -> bool:
            paths = link.paths()[ben.id]
            return len(paths) == 2 and all(path.acked > 4 * LARGE for path in paths)

        await world.repeat(send, are_both_used)
        num_bytes = sent[0] * LARGE
        assert before is not None
        await world.repeat(
            lambda: link.send(ben.id, part(2, b"")),
            lambda: (link.acknowledged() or {}).get(ben.id, 0) >= before.up + num_bytes,
        )
        after = link.moved()
        assert after is not None
        assert num_bytes <= after.up - before.up < 1.2 * num_bytes
        assert all(0 < path.least_rtt_s < 1 for path in link.paths()[ben.id])

    run(scenario)


def test_a_peer_that_is_revoked_loses_all_its_connections() -> None:
    async def scenario(world: World) -> None:
        ada, ben, link = await two_of_them(world, 4)
        for number in range(1, 9):
            assert link.send(ben.id, part(number, noise(LARGE)))
        await world.until(lambda: len(large_and_small(ben, ada)) >= 8)
        link.revoke(ben.id)
        assert not link.send(ben.id, part(1, b""))
        assert link.paths() == {} and link.acknowledged() in ({}, None)
        link.allow(ben.address)
        ben.heard.frames.clear()
        await reach(world, ada, ben)
        assert len(link.paths().get(ben.id, [])) <= 1

    run(scenario)


@pytest.mark.skipif(not can_tell(), reason="only Linux tells")
@pytest.mark.parametrize(
    ("control", "yields"), [(b"bbr", False), (b"cubic", True), (b"reno", True)]
)
def test_what_a_flow_takes_for_a_full_link_is_asked_of_the_kernel(control: bytes, *, yields: bool):
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        introduce(ada, ben)
        await reach(world, ada, ben)
        assert isinstance(ada.link, ZmqLink)
        ((descriptor, _),) = ada.link._routes[ben.id].connections()
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
            except OSError:
                pytest.skip(f"this kernel has no {control.decode()}")
        (path,) = ada.link.paths()[ben.id]
        assert path.yields_to_loss == yields

    run(scenario)

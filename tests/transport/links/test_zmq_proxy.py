"""Bounds of a peer's memory and descriptors that the proxy before libzmq lets others hold."""

import asyncio
import errno
import functools
import os
import socket
from pathlib import Path

import pytest
import zmq

from swarmtrain_transport import limits
from swarmtrain_transport.links import zmq_link
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.zmq_proxy import Local, is_ours
from tests.transport.links.link_rig import (
    DEADLINE_S,
    Recorder,
    Scenario,
    Station,
    World,
    ZmqWorld,
    honest,
    identity_of,
    introduce,
    noise,
    reach,
    run_in,
)
from tests.transport.links.zmq_stranger import Stranger, stranger

MOST = 100_000


def run(scenario: Scenario) -> None:
    run_in(ZmqWorld, scenario)


async def enter(member: Stranger, ben: Station, name: str = "cy") -> None:
    """An admitted peer's keys, and a connection that stands."""
    cy = identity_of(name)
    ben.link.allow(Address(cy.peer_id, cy.curve_key, "127.0.0.1", 1))
    member.use_keys(cy, ben.identity.curve_key)
    member.connect(ben.address)
    await member.until(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_a_message_that_does_not_end_is_cut_off_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_MAX", MOST)

    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        await reach(world, ada, ben)
        async with stranger() as member:
            await enter(member, ben)
            member.send(noise(10 * MOST))
            await member.until(zmq.EVENT_DISCONNECTED)
            await world.until(lambda: ben.link.stats.refused == {"flood": 1})
        await reach(world, ada, ben)

    run(scenario)


def test_only_what_came_since_the_last_message_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_MAX", MOST)

    async def scenario(world: World) -> None:
        _, ben = await honest(world)
        async with stranger() as member:
            await enter(member, ben)
            for number in range(5):
                member.send(noise(MOST * 9 // 10))
                await world.until(
                    lambda: ben.link.stats.refused.get("frame", 0) > number  # noqa: B023
                )
        assert ben.link.stats.refused == {"frame": 5}

    run(scenario)


def test_many_connections_share_what_all_may_hold_but_one_frame_always_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_ALL", 30 * MOST)

    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        await reach(world, ada, ben)
        monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 5 * MOST)
        async with stranger() as one, stranger() as other:
            await enter(one, ben)
            one.send(noise(14 * MOST))
            await world.until(lambda: ben.link.stats.refused == {"frame": 1})
            await enter(other, ben, "di")
            other.send(noise(9 * MOST))
            await world.until(lambda: ben.link.stats.refused == {"frame": 2})
            one.send(noise(14 * MOST))
            await one.until(zmq.EVENT_DISCONNECTED)
            await world.until(lambda: ben.link.stats.refused == {"frame": 2, "flood": 1})

    run(scenario)


def test_strangers_take_no_more_than_their_share_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_UNHEARD_MAX", 3)

    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        await reach(world, ada, ben)
        ends = [await asyncio.open_connection(ben.address.host, ben.address.port) for _ in range(5)]
        async with asyncio.timeout(DEADLINE_S):
            for reader, _ in ends[:2]:
                await reader.read()
        await reach(world, ada, ben)
        for _, writer in ends:
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_a_member_takes_no_more_than_its_share_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_CONNECTIONS_MAX", 1)

    async def scenario(world: World) -> None:
        _, ben = await honest(world)
        async with stranger() as one, stranger() as other:
            for number, member in enumerate((one, other), 1):
                await enter(member, ben)
                member.send(b"x")
                await world.until(
                    lambda: ben.link.stats.refused.get("frame", 0) == number  # noqa: B023
                )
            await one.until(zmq.EVENT_DISCONNECTED)
        assert ben.link.stats.refused == {"frame": 2}

    run(scenario)


def test_of_all_members_those_are_heard_on_who_have_spoken_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LINK_HEARD_MAX", 2)

    async def scenario(world: World) -> None:
        ada, ben, cid, dan = [await world.add(name) for name in ("ada", "ben", "cid", "dan")]
        introduce(ada, ben, cid, dan)
        for one in (ada, ben, ada, cid):  # ben is silent for longest
            await reach(world, one, dan)
        assert isinstance(dan.link, zmq_link.ZmqLink)
        await world.repeat(
            lambda: None,
            lambda: (
                {one.key for one in dan.link._proxy._connections.values() if not one.is_cut}
                >= {ada.identity.curve_key, cid.identity.curve_key}
            ),
        )
        for one in (ben, ada, cid):
            await reach(world, one, dan)  # who was cut off comes back by itself
            assert sum(not one.is_cut for one in dan.link._proxy._connections.values()) <= 3

    run(scenario)


def test_with_no_descriptor_left_those_who_come_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, refused = socket.socket.accept, asyncio.Event()

    def accept_later(listener: socket.socket) -> object:
        if refused.is_set():
            return accept(listener)
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        monkeypatch.setattr(socket.socket, "accept", accept_later)
        introduce(ada, ben)
        ada.link.warm((ben.id,))
        await asyncio.wait_for(refused.wait(), DEADLINE_S)
        await reach(world, ada, ben)

    run(scenario)


def test_where_names_are_files_none_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(zmq_link, "Local", functools.partial(Local, is_abstract=False))

    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        await reach(world, ada, ben)
        assert len(list(tmp_path.iterdir())) == 2

    run(scenario)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="only there are local sockets")
def test_the_local_socket_is_for_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert is_ours([f":1000:1000:{os.getpid()}".encode()])
    assert not is_ours([f":1000:1000:{os.getpid() + 1}".encode()])
    assert not is_ours([b"127.0.0.1"]) and not is_ours([])

    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        monkeypatch.setattr(zmq_link, "is_ours", lambda address: False)
        introduce(ada, ben)
        ada.link.warm((ben.id,))
        await world.until(lambda: ben.link.stats.refused.get("key", 0) > 0)

    run(scenario)


def test_a_link_that_was_closed_has_closed_its_connections() -> None:
    async def scenario(world: World) -> None:
        link = await zmq_link.ZmqLink.open(identity_of("brief"), "127.0.0.1", 0, Recorder())
        reader, writer = await asyncio.open_connection("127.0.0.1", link.address.port)
        link.close()
        async with asyncio.timeout(DEADLINE_S):
            await reader.read()
        writer.close()
        await writer.wait_closed()

    run(scenario)

"""Hostile or foreign sockets against the real data lane: they can do nothing, and it is counted.

"Cannot connect" is proved by the stranger's own monitor, which tells how its handshake ended, and
by an honest frame afterwards.
"""

import asyncio

import pytest
import zmq
import zmq.asyncio

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import pack
from tests.transport.links.link_rig import (
    DEADLINE_S,
    Scenario,
    Station,
    World,
    ZmqWorld,
    honest,
    identity_of,
    noise,
    part,
    reach,
    run_in,
)
from tests.transport.links.zmq_stranger import stranger

ENDED = zmq.EVENT_DISCONNECTED
SHOOK_HANDS = zmq.EVENT_HANDSHAKE_SUCCEEDED


def run(scenario: Scenario) -> None:
    run_in(ZmqWorld, scenario)


async def only_ada_is_heard(world: World, ada: Station, ben: Station) -> None:
    await reach(world, ada, ben)
    assert {peer for peer, _ in ben.heard.frames} == {ada.id}
    assert {frame.chunk for _, frame in ben.heard.frames} == {0}


def wire(number: int) -> tuple[bytes, bytes]:
    header, body = pack(part(number, b"stranger"))
    return header, bytes(body)


def test_a_client_that_expects_another_servers_key_cannot_connect() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        async with stranger() as mallory:
            # Even an allowed key gets nowhere: the server cannot open what is sealed for another.
            mallory.use_keys(ada.identity, identity_of("elsewhere").curve_key)
            mallory.connect(ben.address)
            mallory.send(*wire(1))
            await mallory.until(ENDED)
            await mallory.until(ENDED)
            assert SHOOK_HANDS not in mallory.events
        await only_ada_is_heard(world, ada, ben)

    run(scenario)


def test_a_plaintext_client_gets_nothing_through() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        async with stranger() as mallory:
            mallory.connect(ben.address)
            mallory.send(*wire(1))
            await mallory.until(ENDED)
            assert SHOOK_HANDS not in mallory.events
        await only_ada_is_heard(world, ada, ben)

    run(scenario)


def test_a_password_client_gets_nothing_through() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        async with stranger() as mallory:
            mallory.socket.setsockopt(zmq.PLAIN_USERNAME, ada.id.hex().encode())
            mallory.socket.setsockopt(zmq.PLAIN_PASSWORD, ada.identity.curve_key.hex().encode())
            mallory.connect(ben.address)
            mallory.send(*wire(1))
            await mallory.until(ENDED)
            assert SHOOK_HANDS not in mallory.events
        await only_ada_is_heard(world, ada, ben)

    run(scenario)


def test_an_unknown_key_is_refused_at_the_handshake_and_told_so() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        async with stranger() as mallory:
            mallory.use_keys(identity_of("mallory"), ben.identity.curve_key)
            mallory.connect(ben.address)
            mallory.send(*wire(1))
            await mallory.until(ENDED)
            assert zmq.EVENT_HANDSHAKE_FAILED_AUTH in mallory.events
            assert SHOOK_HANDS not in mallory.events
        assert ben.link.stats.refused == {"key": 1}
        await only_ada_is_heard(world, ada, ben)

    run(scenario)


def test_a_routing_id_that_names_somebody_else_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        cy = identity_of("cy")
        ben.link.allow(Address(cy.peer_id, cy.curve_key, "127.0.0.1", 1))
        async with stranger() as posing:
            posing.use_keys(cy, ben.identity.curve_key)
            posing.socket.setsockopt(zmq.ROUTING_ID, ada.id)
            posing.connect(ben.address)
            posing.send(*wire(1))
            await world.until(lambda: len(ben.heard.frames) == 1)
        assert ben.heard.frames[0][0] == cy.peer_id

    run(scenario)


def test_a_key_revoked_in_mid_connection_is_refused_and_its_connection_is_closed() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        cy = identity_of("cy")
        ben.link.allow(Address(cy.peer_id, cy.curve_key, "127.0.0.1", 1))
        async with stranger() as member:
            member.use_keys(cy, ben.identity.curve_key)
            member.connect(ben.address)
            await member.until(SHOOK_HANDS)
            member.send(*wire(1))
            await world.until(lambda: ben.heard.chunks_from(cy.peer_id) == [1])
            ben.link.revoke(cy.peer_id)
            for number in range(2, 8):
                member.send(*wire(number))
            await member.until(ENDED)
            # It comes back by itself and is turned away at the handshake.
            await member.until(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        assert ben.heard.chunks_from(cy.peer_id) == [1]
        assert ben.link.stats.refused["key"] >= 2
        await reach(world, ada, ben)

    run(scenario)


def test_a_connection_of_a_replaced_key_is_refused_though_its_peer_is_allowed() -> None:
    async def scenario(world: World) -> None:
        _, ben = await honest(world)
        old, new = identity_of("cy before"), identity_of("cy after")
        ben.link.allow(Address(old.peer_id, old.curve_key, "127.0.0.1", 1))
        async with stranger() as member:
            member.use_keys(old, ben.identity.curve_key)
            member.connect(ben.address)
            await member.until(SHOOK_HANDS)
            ben.link.allow(Address(old.peer_id, new.curve_key, "127.0.0.1", 1))
            member.send(*wire(1))
            await member.until(ENDED)
        assert ben.heard.frames == []

    run(scenario)


def test_a_message_over_the_limit_ends_its_connection_and_the_link_goes_on() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        cy = identity_of("cy")
        ben.link.allow(Address(cy.peer_id, cy.curve_key, "127.0.0.1", 1))
        async with stranger() as member:
            member.use_keys(cy, ben.identity.curve_key)
            member.connect(ben.address)
            await member.until(SHOOK_HANDS)
            member.send(wire(1)[0], noise(limits.FRAME_BYTES_MAX + 2 * limits.FRAME_SLACK_BYTES))
            await member.until(ENDED)
        await only_ada_is_heard(world, ada, ben)

    run(scenario)


@pytest.mark.parametrize("parts", [(b"",), (b"one",), (b"x" * 48, b"y", b"z"), (b"",) * 20])
def test_messages_with_another_number_of_parts_are_reported_by_name(
    parts: tuple[bytes, ...],
) -> None:
    async def scenario(world: World) -> None:
        _, ben = await honest(world)
        cy = identity_of("cy")
        ben.link.allow(Address(cy.peer_id, cy.curve_key, "127.0.0.1", 1))
        async with stranger() as member:
            member.use_keys(cy, ben.identity.curve_key)
            member.connect(ben.address)
            member.send(*parts)
            member.send(*wire(2))
            await world.until(lambda: ben.heard.chunks_from(cy.peer_id) == [2])
        assert [(p, f.reason) for p, f in ben.heard.faults] == [(cy.peer_id, "frame")]

    run(scenario)


def test_a_listener_that_is_no_zmq_at_all_is_left_and_the_real_one_is_reached_later() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        greeted = asyncio.Event()

        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 4)
            greeted.set()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ada.link.allow(Address(ben.id, ben.identity.curve_key, "127.0.0.1", port))
        ada.link.warm((ben.id,))
        async with asyncio.timeout(DEADLINE_S):
            await greeted.wait()
        server.close()
        await server.wait_closed()
        # The very same address now belongs to the real peer: nobody calls allow() again.
        real = await ZmqLink.open(ben.identity, "127.0.0.1", port, ben.heard)
        try:
            real.allow(ada.address)
            await reach(world, ada, ben)
        finally:
            real.close()

    run(scenario)


def test_frames_queued_while_a_connection_fails_arrive_when_the_peer_comes() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        hung_up = asyncio.Semaphore(0)

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            await writer.wait_closed()
            hung_up.release()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ada.link.allow(Address(ben.id, ben.identity.curve_key, "127.0.0.1", port))
        for number in range(30):
            assert ada.link.send(ben.id, part(number))
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                await hung_up.acquire()
        server.close()
        await server.wait_closed()
        real = await ZmqLink.open(ben.identity, "127.0.0.1", port, ben.heard)
        try:
            real.allow(ada.address)
            await world.until(lambda: len(ben.heard.frames) == 30)
        finally:
            real.close()
        assert ben.heard.chunks_from(ada.id) == list(range(30))

    run(scenario)

"""What hostile or foreign sockets can do to the real data lane: nothing, and it is counted.

The strangers here are bare zmq sockets with a monitor. "Cannot connect" is proved by the
stranger's own monitor, which tells how its handshake ended, and by an honest frame afterwards.
"""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import psutil
import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport import limits
from swarmtrain_transport.allow_list import ZAP_DOMAIN, AllowList
from swarmtrain_transport.errors import ListenFailed, PortInUse, RemoteFault
from swarmtrain_transport.frames import Frame, FrameKind, pack
from swarmtrain_transport.identity import Identity
from swarmtrain_transport.link import Address
from swarmtrain_transport.reception import Reception
from swarmtrain_transport.zmq_link import ZmqLink
from tests.transport.link_rig import (
    Recorder,
    Station,
    World,
    ZmqWorld,
    identity_of,
    introduce,
    noise,
    part,
    run_in,
)

ENDED = zmq.EVENT_DISCONNECTED
SHOOK_HANDS = zmq.EVENT_HANDSHAKE_SUCCEEDED
DEADLINE_S = 20.0


class Stranger:
    """A DEALER that keeps to none of our rules, and what its monitor says."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context(context).socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.monitor: zmq.asyncio.Socket = context.socket(zmq.PAIR)
        self.events: list[int] = []
        self.socket.monitor("inproc://stranger", zmq.EVENT_ALL)
        self.monitor.connect("inproc://stranger")

    def use_keys(self, identity: Identity, server_key: bytes) -> None:
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve_secret)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve_key)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)

    def connect(self, address: Address) -> None:
        self.socket.connect(f"tcp://{address.host}:{address.port}")

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts, zmq.NOBLOCK)

    async def until(self, event: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.events or self.events[-1] != event:
                parts = await self.monitor.recv_multipart()
                self.events.append(parse_monitor_message(parts)["event"])

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close(linger=0)
        self.monitor.close(linger=0)


@asynccontextmanager
async def stranger() -> AsyncIterator[Stranger]:
    context = zmq.asyncio.Context()
    someone = Stranger(context)
    try:
        yield someone
    finally:
        someone.close()
        context.destroy(linger=0)


def run(scenario: Callable[[World], Coroutine[None, None, None]]) -> None:
    run_in(ZmqWorld, scenario)


async def honest(world: World) -> tuple[Station, Station]:
    ada, ben = await world.add("ada"), await world.add("ben")
    introduce(ada, ben)
    return ada, ben


async def reach(world: World, source: Station, target: Station) -> None:
    count = len(target.heard.chunks_from(source.id))
    await world.repeat(
        lambda: source.link.send(target.id, part(0)),
        lambda: len(target.heard.chunks_from(source.id)) > count,
    )


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


def test_a_link_does_not_talk_to_a_listener_with_another_key_than_announced() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        impostor = await world.add("impostor")
        impostor.link.allow(ada.address)
        claimed = Address(ben.id, ben.identity.curve_key, "127.0.0.1", impostor.address.port)
        ada.link.allow(claimed)
        ada.link.send(ben.id, part(1))
        await reach(world, ben, ada)
        ada.link.allow(ben.address)
        await reach(world, ada, ben)
        assert impostor.heard.frames == []
        assert impostor.link.stats.frames_received == 0

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


def test_a_route_may_be_closed_at_any_moment_of_its_connection() -> None:
    # Found as a deadlock: libzmq's I/O thread reported a disconnection to a monitor that nobody
    # read any more, and kept the lock that closing the socket waits for.
    async def scenario(world: World) -> None:
        ada, refusing = await world.add("ada"), await world.add("refusing")
        for turn in range(150):
            ada.link.allow(refusing.address)
            ada.link.send(refusing.id, part(turn))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            ada.link.revoke(refusing.id)

    run(scenario)


def test_a_handler_that_raises_is_reported_to_the_loop_and_later_frames_still_come() -> None:
    class Fragile(Recorder):
        def on_frame(self, peer: bytes, frame: Frame) -> None:
            super().on_frame(peer, frame)
            if frame.kind is FrameKind.GET:
                raise ValueError("a bug of the handler")

    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        fragile, identity = Fragile(), identity_of("fragile")
        link = await ZmqLink.open(identity, "127.0.0.1", 0, fragile)
        try:
            link.allow(ada.address)
            ada.link.allow(link.address)
            ada.link.send(identity.peer_id, Frame(FrameKind.GET, 7))
            for number in range(40):
                ada.link.send(identity.peer_id, part(number))
            async with asyncio.timeout(DEADLINE_S):
                while len(fragile.frames) < 41:
                    await fragile.heard.wait()
                    fragile.heard.clear()
        finally:
            link.close()
        assert [type(error) for error in reported] == [ValueError]

    run(scenario)


# ---- opening and closing


def test_a_port_in_use_is_told_with_host_and_port() -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        with pytest.raises(PortInUse) as caught:
            await ZmqLink.open(identity_of("ben"), "127.0.0.1", ada.address.port, Recorder())
        assert (caught.value.host, caught.value.port) == ("127.0.0.1", ada.address.port)
        assert "127.0.0.1" in str(caught.value) and str(ada.address.port) in str(caught.value)

    run(scenario)


@pytest.mark.parametrize("host", ["192.0.2.77", "no-such-name.invalid", "a..b", "\0"])
def test_a_host_that_is_not_this_machines_is_told(host: str) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ListenFailed) as caught:
            await ZmqLink.open(identity_of("ben"), host, 0, Recorder())
        assert not isinstance(caught.value, PortInUse)

    run(scenario)


def test_a_name_may_be_listened_on() -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        link = await ZmqLink.open(identity_of("ben"), "localhost", 0, Recorder())
        try:
            assert link.address.host == "localhost"
            assert link.address.port > 0
            link.allow(ada.address)
        finally:
            link.close()

    run(scenario)


@pytest.mark.skipif(not socket.has_ipv6, reason="Python was built without IPv6")
def test_links_meet_over_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")

    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        heard, identity = Recorder(), identity_of("six")
        link = await ZmqLink.open(identity, "::1", 0, heard)
        try:
            link.allow(ada.address)
            ada.link.allow(link.address)
            await world.repeat(
                lambda: ada.link.send(identity.peer_id, part(1)), lambda: bool(heard.frames)
            )
        finally:
            link.close()

    run(scenario)


def test_closing_leaves_no_descriptor_task_timer_or_thread_behind() -> None:
    async def live_once() -> None:
        world = ZmqWorld()
        ada, ben = await honest(world)
        refusing = await world.add("refusing")
        ada.link.allow(refusing.address)
        await world.until(lambda: refusing.link.stats.refused.get("key", 0) > 0)
        await world.repeat(
            lambda: ada.link.send(ben.id, part(1, noise(limits.ZERO_COPY_BYTES))),
            lambda: bool(ben.heard.frames),
        )
        world.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def count() -> tuple[int, int, int]:
        gc.collect()
        process = psutil.Process()
        return process.num_fds(), process.num_threads(), threading.active_count()

    # The first life starts pyzmq's one collector thread of the process, which stays.
    asyncio.run(live_once())
    before = count()
    for _ in range(3):
        asyncio.run(live_once())
    assert count() == before


def test_a_link_that_cannot_open_leaves_nothing_behind() -> None:
    async def fail(port: int) -> None:
        with pytest.raises(PortInUse):
            await ZmqLink.open(identity_of("ben"), "127.0.0.1", port, Recorder())

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asyncio.run(fail(port))
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        asyncio.run(fail(port))
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


# ---- the rules without sockets


def allowing(*names: str) -> AllowList:
    listed = AllowList(b"self")
    for name in names:
        one = identity_of(name)
        listed.admit(Address(one.peer_id, one.curve_key, "127.0.0.1", 4000))
    return listed


def request_of(name: str, **changes: bytes) -> list[bytes]:
    fields = {
        "version": b"1.0",
        "request": b"1",
        "domain": ZAP_DOMAIN,
        "address": b"127.0.0.1",
        "routing": b"",
        "mechanism": b"CURVE",
        "key": identity_of(name).curve_key,
    }
    return list((fields | changes).values())


def test_zap_answers_an_allowed_key_with_that_key_as_user_id() -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada"))
    key = identity_of("ada").curve_key.hex().encode()
    assert reply == [b"1.0", b"1", b"200", b"", key, b""]
    assert refusal is None


@pytest.mark.parametrize(
    "changes",
    [
        {"version": b"2.0"},
        {"domain": b""},
        {"domain": b"*"},
        {"domain": b"global"},
        {"mechanism": b"NULL"},
        {"mechanism": b"PLAIN"},
        {"key": b""},
        {"key": bytes(32)},
        {"key": identity_of("mallory").curve_key},
        {"more": b"field"},
    ],
)
def test_zap_refuses_whatever_else_it_is_asked(changes: dict[str, bytes]) -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada", **changes))
    assert reply[2] == b"400" and reply[4] == b""
    assert refusal is not None and refusal.reason == "key"


@pytest.mark.parametrize("length", range(7))
def test_zap_refuses_a_question_that_is_cut_off(length: int) -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada")[:length])
    assert reply[2] == b"400" and refusal is not None


def test_a_flood_of_unknown_keys_is_counted_in_full_and_reported_in_part() -> None:
    heard = Recorder()
    reception = Reception(b"self", heard)
    for _ in range(1000):
        reception.refuse_handshake(RemoteFault("key", "unknown"), now_s=5.25)
    assert reception.stats.refused == {"key": 1000}
    assert len(heard.faults) == limits.UNKNOWN_HANDSHAKES_PER_S
    reception.refuse_handshake(RemoteFault("key", "unknown"), now_s=6.0)
    assert len(heard.faults) == limits.UNKNOWN_HANDSHAKES_PER_S + 1

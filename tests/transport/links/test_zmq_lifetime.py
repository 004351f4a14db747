"""Opening, failing and closing the real data lane: typed errors, and nothing is left behind."""

import asyncio
import functools
import gc
import math
import os
import socket
import sys
import threading
from dataclasses import replace

import psutil
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import ListenFailed, PortInUse
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.tcp import acknowledged, can_tell, pace, path_of, suit_to_path
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import Frame, FrameKind
from tests.transport.links.link_rig import (
    DEADLINE_S,
    Recorder,
    Scenario,
    World,
    ZmqWorld,
    honest,
    identity_of,
    noise,
    part,
    run_in,
)


def run(scenario: Scenario) -> None:
    run_in(ZmqWorld, scenario)


def test_a_port_in_use_is_told_with_host_and_port() -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        with pytest.raises(PortInUse) as caught:
            await ZmqLink.open(identity_of("ben"), "127.0.0.1", ada.address.port, Recorder())
        assert (caught.value.host, caught.value.port) == ("127.0.0.1", ada.address.port)
        assert "127.0.0.1" in str(caught.value) and str(ada.address.port) in str(caught.value)

    run(scenario)


@pytest.mark.parametrize("host", ["192.0.2.77", "a..b", "\0"])
def test_a_host_that_is_not_this_machines_is_told(host: str) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ListenFailed) as caught:
            await ZmqLink.open(identity_of("ben"), host, 0, Recorder())
        assert not isinstance(caught.value, PortInUse)

    run(scenario)


def test_listening_on_no_particular_host_is_listening_on_all_of_this_machine() -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        heard, identity = Recorder(), identity_of("open")
        link = await ZmqLink.open(identity, "", 0, heard)
        try:
            link.allow(ada.address)
            ada.link.allow(
                Address(identity.peer_id, identity.curve_key, "127.0.0.1", link.address.port)
            )
            await world.repeat(
                lambda: ada.link.send(identity.peer_id, part(1)), lambda: bool(heard.frames)
            )
        finally:
            link.close()

    run(scenario)


def test_a_name_may_be_listened_on_and_its_address_is_dialled() -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        heard, identity = Recorder(), identity_of("named")
        link = await ZmqLink.open(identity, "localhost", 0, heard)
        try:
            assert link.address.host == "localhost"
            link.allow(ada.address)
            ada.link.allow(replace(link.address, host="127.0.0.1"))
            await world.repeat(
                lambda: ada.link.send(identity.peer_id, part(1)), lambda: bool(heard.frames)
            )
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
        ada.link.warm((refusing.id,))
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_tcp_tells_what_was_moved_and_forgets_nothing_of_a_connection_that_is_gone() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        ada.link.allow(ben.address)
        ben.link.allow(ada.address)
        body = noise(1 << 20)
        await world.repeat(
            lambda: ada.link.send(ben.id, part(1, body)),
            lambda: ada.link.moved().up >= len(body) and bool(ben.heard.frames),
        )
        sent, heard = ada.link.moved(), ben.link.moved()
        assert sent.up >= len(body) and heard.down >= len(body)
        assert sent.down < len(body) and heard.up < len(body)
        ada.link.revoke(ben.id)
        assert ada.link.moved().up >= sent.up

    run(scenario)


class _Gate(TokenBucket):
    """Shut until the test opens it."""

    def __init__(self) -> None:
        super().__init__(1 << 20, 0.0)
        self.may_pass = False
        self.asked = asyncio.Event()
        self.spent = 0

    def is_open(self, now_s: float) -> bool:
        self.asked.set()
        return self.may_pass

    def spend(self, num_bytes: int) -> None:
        self.spent += num_bytes


def test_nothing_is_taken_in_while_the_cap_is_spent() -> None:
    async def scenario(world: World) -> None:
        ada, gate, heard = await world.add("ada"), _Gate(), Recorder()
        identity = identity_of("capped")
        link = await ZmqLink.open(identity, "127.0.0.1", 0, heard, gate)
        try:
            link.allow(ada.address)
            ada.link.allow(link.address)
            await asyncio.wait_for(gate.asked.wait(), DEADLINE_S)
            body = noise(100_000)
            await world.repeat(
                lambda: ada.link.send(identity.peer_id, part(1, body)),
                lambda: (
                    (ada.link.moved() or link.moved()) is None or ada.link.moved().up >= len(body)
                ),
            )
            assert heard.frames == []
            gate.may_pass = True
            await world.repeat(
                lambda: ada.link.send(identity.peer_id, part(2)), lambda: bool(heard.frames)
            )
            assert heard.frames[0][1].body == body and gate.spent >= len(body)
        finally:
            link.close()

    run(scenario)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets us choose")
def test_a_near_peer_is_sent_to_with_cubic_where_the_kernel_has_it() -> None:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            pytest.skip("this kernel has no cubic")

    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        ada.link.send(ben.id, part(1))
        await world.until(lambda: ben.heard.chunks_from(ada.id) == [1])
        ((descriptor, _),) = ada.link._routes[ben.id].connections()
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert name.rstrip(b"\0") == b"cubic"

    run(scenario)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets us choose")
def test_a_far_peer_is_sent_to_with_bbr_where_the_kernel_lets_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loopback passes for a far way: nothing is near, and everything has moved enough."""
    monkeypatch.setattr(limits, "NEAR_RTT_S", 0.0)
    monkeypatch.setattr(limits, "FLOW_RTT_MIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            before = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert not suit_to_path(connection.fileno(), port)  # it has moved nothing
            monkeypatch.setattr(limits, "FAR_BYTES", 0)
            assert suit_to_path(connection.fileno(), port)
            name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            except OSError:
                assert name == before
            else:
                assert name.rstrip(b"\0") == b"bbr"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux paces")
@pytest.mark.parametrize("control", [b"bbr", b"reno"])
def test_only_who_goes_by_the_measured_rate_is_paced(control: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
            except OSError:
                pytest.skip(f"this kernel has no {control.decode()}")
            for told, kept in ((1e6, 10**6), (math.inf, 2**64 - 1)):
                assert pace(connection.fileno(), port, told) == (control == b"bbr")
                found = connection.getsockopt(socket.SOL_SOCKET, 47, 8)  # SO_MAX_PACING_RATE
                assert int.from_bytes(found, sys.byteorder) == (
                    kept if control == b"bbr" else 2**64 - 1
                )


def test_a_descriptor_that_is_closed_or_something_else_tells_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connection = socket.create_connection(("127.0.0.1", port))
        number = connection.fileno()
        if can_tell():
            assert acknowledged(number, port) is not None
        connection.close()
        for ask in (acknowledged, path_of, suit_to_path, functools.partial(pace, bytes_per_s=9.0)):
            assert not ask(number, port)
            with open(os.devnull) as file:  # the number may belong to a file by now
                assert not ask(file.fileno(), port)

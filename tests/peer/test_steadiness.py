"""Sleep and lost addresses: dead connections end at once, and the peer goes on."""

import asyncio
import socket
from pathlib import Path

import pytest

from swarmtrain.peer.network import control, steadiness
from swarmtrain.peer.network.steadiness import (
    SLEPT_S,
    Change,
    Lookout,
    addresses,
    outlive,
    watch,
)
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.links.tcp import own_host
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.messages import Welcome
from tests.coordinator.rig import SECRET, Listener, client_of, connected, run, serving
from tests.transport.links.link_rig import ZmqWorld, introduce, part, reach, run_in

ALICE = Identity.create()
HOME, CAFE = frozenset({"127.0.0.1", "192.0.2.7"}), frozenset({"127.0.0.1", "198.51.100.9"})


def test_a_look_tells_sleep_and_addresses_that_came_and_went() -> None:
    lookout = Lookout(100.0, HOME)
    assert not lookout.look(100.0 + SLEPT_S / 2, HOME)
    assert not lookout.look(0.0, HOME)  # a clock that was set back
    assert lookout.look(3600.0, HOME) == Change(3600.0)
    assert lookout.look(3600.0, CAFE) == Change(0.0, frozenset({"192.0.2.7"}), True)
    assert lookout.look(3600.0, frozenset()) == Change(0.0, CAFE)
    assert lookout.look(3600.0, HOME) == Change(has_more=True)


def test_it_looks_as_long_as_it_runs_and_tells_changes_alone() -> None:
    async def scene() -> None:
        told: list[Change] = []
        looks = iter([HOME, HOME, CAFE, CAFE, HOME])

        async def pause(seconds: float) -> None:
            assert seconds == steadiness.LOOK_S

        with pytest.raises(RuntimeError):  # no more looks
            await watch(told.append, slept_s=lambda: 0.0, here=lambda: next(looks), pause=pause)
        assert [one.gone for one in told] == [HOME - CAFE, CAFE - HOME]

    run(scene())


def test_this_machine_has_addresses() -> None:
    assert "127.0.0.1" in addresses()
    assert abs(steadiness._slept_s() - steadiness._slept_s()) < SLEPT_S


@pytest.mark.parametrize("gone", [None, frozenset({"127.0.0.1"})])
def test_a_dead_control_lane_is_made_anew_without_a_pause(
    tmp_path: Path, gone: frozenset[str] | None
) -> None:
    async def scene() -> None:
        async def never(seconds: float) -> None:
            await asyncio.Event().wait()

        async with serving(tmp_path) as rig:
            async with connected(rig.invite(), ALICE, pause=never) as (client, listener):
                client.renew(frozenset({"192.0.2.7"}))
                assert client.is_up
                client.renew(gone)
                await listener.hears("down")
                assert await listener.hears("up") == ("up", False)
                await listener.hears(Welcome)
            assert rig.store.invites()[0].uses == 1

    run(scene())


def test_a_line_is_given_up_when_another_one_would_stand_and_not_before() -> None:
    async def scene() -> None:
        looks = iter([False, True, True, True, False, True, True])
        dials = iter([OSError, TimeoutError, None, None])

        async def dial() -> None:
            if fault := next(dials):
                raise fault

        async def pause(seconds: float) -> None:
            assert seconds == steadiness.LINE_LOOK_S

        await outlive(lambda: next(looks), dial, pause=pause)
        # The network was away for two looks; with the third an answer came.
        assert not list(looks) and not list(dials)

    run(scene())


def test_a_control_lane_that_a_router_has_forgotten_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        told: list[bool] = []
        monkeypatch.setattr(steadiness, "LINE_LOOK_S", 0.0)
        monkeypatch.setattr(control, "is_stuck", lambda descriptor, port: not told)
        async with serving(tmp_path) as rig:
            lane = connected(rig.invite(), ALICE, forgotten=lambda: told.append(True))
            async with lane as (_, listener):
                await listener.hears("down")
                assert await listener.hears("up") == ("up", False)
                await listener.hears(Welcome)
            assert told == [True]

    run(scene())


def test_a_pause_ends_when_there_may_be_a_network_again(tmp_path: Path) -> None:
    async def scene() -> None:
        paused = asyncio.Event()

        async def never(seconds: float) -> None:
            paused.set()
            await asyncio.Event().wait()

        invite = Invite("127.0.0.1", 9, "demo", bytes(32), SECRET)
        client = client_of(invite, ALICE, Listener(), pause=never, waits=True)
        running = asyncio.create_task(client.run())
        for _ in range(3):
            await paused.wait()
            paused.clear()
            client.renew(frozenset())
        await paused.wait()
        await client.close()
        await running

    run(scene())


def test_an_ipv4_address_is_known_by_its_own_words_on_a_listener_of_both_families() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        with socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as near:
            far, _ = listener.accept()
            with far:
                assert far.getsockname()[0] == "::ffff:127.0.0.1"
                assert own_host(far) == own_host(near) == "127.0.0.1"
        assert own_host(far) == ""


@pytest.mark.parametrize("gone", [None, frozenset({"127.0.0.1"})])
def test_dead_links_are_made_anew_both_ways(gone: frozenset[str] | None) -> None:
    async def scene(world: ZmqWorld) -> None:
        first, second = await world.add("first"), await world.add("second")
        assert isinstance(first.link, ZmqLink)
        introduce(first, second)
        await reach(world, first, second)
        await reach(world, second, first)
        before = [route.connections() for route in first.link._routes.values()]
        first.link.renew(frozenset({"192.0.2.7"}))
        assert [route.connections() for route in first.link._routes.values()] == before
        first.link.renew(gone)
        assert all(route.way is None for route in first.link._routes.values())
        await reach(world, first, second)
        await reach(world, second, first)
        assert first.link.send(second.id, part(1))

    run_in(ZmqWorld, scene)

"""The shell: a router on a port of loopback, over true sockets."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from swarmtrain.port_mapping import mapper as shell
from swarmtrain.port_mapping.answers import Refused
from swarmtrain.port_mapping.gateway import Gateway
from swarmtrain.port_mapping.mapper import NO_ROUTER, Mapper, families
from swarmtrain_transport.wire.messages import Place
from tests.port_mapping.fake_router import PUBLIC, FakeRouter, Listening

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def home(router: FakeRouter | None, host: str = LOOPBACK):
    """A mapper that knows the router; with None nobody listens at the router's port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Listening(router or FakeRouter(speaks=())), local_addr=(host, 0)
    )
    port = transport.get_extra_info("sockname")[1]
    if router is None:
        transport.close()
        await asyncio.sleep(0)
    told: list[tuple[Place, ...]] = []
    # Nobody is searched for by multicast in a test.
    gateway = Gateway(host, host, port=port, ssdp=(LOOPBACK, port))

    async def gateways() -> list[Gateway]:
        return [gateway]

    mapper = Mapper(
        9000, lambda: told.append(mapper.places()), gateways=gateways,
        own_host=lambda version: host,
    )  # fmt: skip
    mapper.start()
    try:
        yield mapper, told
    finally:
        await mapper.close()
        transport.close()


def test_a_port_is_mapped_told_and_given_back():
    router = FakeRouter(port=9001)

    async def scene() -> None:
        async with asyncio.timeout(10), home(router) as (mapper, told):
            await mapper.decided()
            assert mapper.places() == (Place("mapped", PUBLIC, 9001),)
            assert told == [mapper.places()] and mapper.why == ""
            assert router.mapped == {9000: 9001}
            mapper.reached(PUBLIC, 9002, is_open=False)
            assert told == [mapper.places()]
            await mapper.close()
            await asyncio.sleep(0.05)
            assert not router.mapped and mapper.places() == ()

    asyncio.run(scene())


def test_an_address_of_ipv6_is_mapped_by_pcp():
    async def scene() -> None:
        async with asyncio.timeout(10), home(FakeRouter(host="2001:db8::5"), "::1") as (mapper, _):
            await mapper.decided()
            assert mapper.places() == (Place("mapped", "2001:db8::5", 9000),)

    asyncio.run(scene())


def test_who_gets_in_nowhere_has_the_next_way_tried():
    router = FakeRouter()

    async def scene() -> None:
        async with asyncio.timeout(10), home(router) as (mapper, told):
            await mapper.decided()
            mapper.reached(PUBLIC, 9000, is_open=False)
            while not mapper.places():
                await asyncio.sleep(0.01)
            assert "nat-pmp" in router.asked and len(told) == 1

    asyncio.run(scene())


def test_with_nobody_at_the_routers_port_all_is_decided_at_once(monkeypatch):
    monkeypatch.setattr(shell, "Upnp", NoUpnp)

    async def scene() -> None:
        async with asyncio.timeout(10), home(None) as (mapper, told):
            await mapper.decided()
            assert told == [()] and "IPv4 by PCP, NAT-PMP: " in mapper.why
            assert mapper.why.endswith("the router does not speak it; UPnP: no answer")

    asyncio.run(scene())


class NoUpnp:
    def __init__(self, *_: object) -> None: ...

    async def map_port(self, before: object) -> Refused:
        return Refused("no answer")


def test_another_address_of_this_machine_begins_anew(monkeypatch):
    monkeypatch.setattr(shell, "LOOK_S", 0.01)
    router = FakeRouter()

    async def scene() -> None:
        async with asyncio.timeout(10), home(router) as (mapper, told):
            await mapper.decided()
            router.host = "203.0.113.9"
            mapper._own_host = lambda version: "127.0.0.2"
            while len(told) < 2:
                await asyncio.sleep(0.01)
            assert told == [(Place("mapped", PUBLIC, 9000),), mapper.places()]
            assert mapper.places() == (Place("mapped", "203.0.113.9", 9000),)

    asyncio.run(scene())


def test_a_system_that_names_no_router_is_told_in_words():
    async def scene() -> None:
        async def none() -> list[Gateway]:
            return []

        mapper = Mapper(9000, gateways=none)
        mapper.start()
        await mapper.decided()
        assert mapper.why == NO_ROUTER
        await mapper.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("host", "versions"),
    [("0.0.0.0", (4,)), ("::", (4, 6)), ("2001:db8::1", (6,)), ("10.0.0.1", (4,))],
)
def test_a_port_listens_in_the_families_of_its_host(host, versions):
    assert families(host, ("", "::")) == versions

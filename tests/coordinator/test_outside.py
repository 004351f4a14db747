"""The address in invites: given, mapped, or this machine's own."""

import asyncio

import pytest

from swarmtrain.coordinator import outside
from swarmtrain.coordinator.outside import Outside
from swarmtrain_transport.wire.messages import Place

MAPPED = Place("mapped", "203.0.113.7", 9000)


class FakeMapper:
    """A router that answers when the test says so."""

    def __init__(self, port, on_change, *, versions):
        self.port, self.on_change, self.versions = port, on_change, versions
        self.found: tuple[Place, ...] = ()
        self.answered = asyncio.Event()
        self.is_closed = False

    def start(self) -> None: ...

    async def decided(self) -> None:
        await self.answered.wait()

    def places(self) -> tuple[Place, ...]:
        return self.found

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("", 0, ("203.0.113.7", 9000)),
        ("train.example", 0, ("train.example", 9000)),
        ("train.example", 443, ("train.example", 443)),
    ],
)
def test_what_was_given_goes_before_what_the_router_says(monkeypatch, host, port, address):
    monkeypatch.setattr(outside, "Mapper", FakeMapper)

    async def scene() -> None:
        said: list[str] = []
        place = Outside("0.0.0.0", host, port, said.append, maps=True)
        place.begin(8400)
        place._mapper.found = (MAPPED,)
        place._mapper.answered.set()
        await place.settle(asyncio.Event())
        assert place.address == address and place._mapper.versions == (4,)
        place._mapper.found = ()
        place._mapper.on_change()
        place._mapper.found = (Place("mapped", "203.0.113.8", 9001),)
        place._mapper.on_change()
        assert len(said) == (1 if host and port else 2)
        assert address == place.address or f"name {address[0]} port {address[1]}" in said[1]
        await place.close()
        assert place._mapper.is_closed

    asyncio.run(scene())


def test_without_a_router_the_own_address_stands(monkeypatch):
    monkeypatch.setattr(outside, "Mapper", FakeMapper)

    async def scene() -> None:
        place = Outside("192.0.2.5", "", 0, print, maps=False)
        place.begin(8400)
        await place.settle(asyncio.Event())
        assert place.address == ("192.0.2.5", 8400)
        assert Outside("192.0.2.5", "", 9, print, maps=False).address == ("192.0.2.5", 9)
        await place.close()

    asyncio.run(scene())


def test_who_stops_waits_for_no_router(monkeypatch):
    monkeypatch.setattr(outside, "Mapper", FakeMapper)

    async def scene() -> None:
        place, stop = Outside("", "", 0, lambda text: None, maps=True), asyncio.Event()
        place.begin(8400)
        assert place._mapper.versions == (4, 6)
        stop.set()
        async with asyncio.timeout(5):
            await place.settle(stop)
        await place.close()

    asyncio.run(scene())

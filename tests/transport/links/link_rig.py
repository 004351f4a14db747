"""Both links behind one face, so that one suite can ask the same of each.

A world makes stations (an identity, a link and a recorder) and waits for what they hear. The
memory world pumps its network; the socket world sleeps until a recorder hears something. Waiting
is always for a condition, with a deadline that only a failing test reaches.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.memory_link import MemoryLink, MemoryNetwork
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import Frame, FrameKind

DEADLINE_S = 20.0
RETRY_S = 0.05


def identity_of(name: str) -> Identity:
    """The same keys for the same name, so failures repeat."""
    rng = random.Random(f"link test {name}")
    return Identity.create(rng.randbytes)


def part(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.PART, run_tag=7, plan_id=1, chunk=number, body=body)


def noise(num_bytes: int, seed: int = 0) -> bytes:
    """Bytes that lz4 cannot shrink."""
    return random.Random(seed).randbytes(num_bytes)


class Recorder:
    """A handler that keeps everything, and says when there is more."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, Frame]] = []
        self.faults: list[tuple[bytes | None, RemoteFault]] = []
        self.heard = asyncio.Event()

    def on_frame(self, peer: bytes, frame: Frame) -> None:
        self.frames.append((peer, frame))
        self.heard.set()

    def on_fault(self, peer: bytes | None, fault: RemoteFault) -> None:
        self.faults.append((peer, fault))
        self.heard.set()

    def chunks_from(self, peer: bytes) -> list[int]:
        return [frame.chunk for sender, frame in self.frames if sender == peer]

    def digests(self) -> list[bytes]:
        return [hashlib.sha256(frame.body).digest() for _, frame in self.frames]


@dataclass
class Station:
    identity: Identity
    link: MemoryLink | ZmqLink
    heard: Recorder = field(repr=False)

    @property
    def id(self) -> bytes:
        return self.identity.peer_id

    @property
    def address(self) -> Address:
        return self.link.address


class World(Protocol):
    async def add(self, name: str) -> Station: ...
    async def until(self, condition: Callable[[], bool]) -> None: ...
    async def repeat(self, action: Callable[[], object], until: Callable[[], bool]) -> None: ...
    def send_raw(self, source: Station, target: Station, header: bytes, body: bytes) -> None: ...
    def close(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self._stations: list[Station] = []

    async def add(self, name: str) -> Station:
        identity, recorder = identity_of(name), Recorder()
        address = Address(identity.peer_id, identity.curve_key, "127.0.0.1", 0)
        station = Station(identity, self.network.open(address, recorder), recorder)
        self._stations.append(station)
        return station

    async def until(self, condition: Callable[[], bool]) -> None:
        self.network.pump()
        assert condition(), "nothing is under way any more and it has not come true"

    async def repeat(self, action: Callable[[], object], until: Callable[[], bool]) -> None:
        action()
        await self.until(until)

    def send_raw(self, source: Station, target: Station, header: bytes, body: bytes) -> None:
        assert isinstance(source.link, MemoryLink)
        self.network._transmit(source.link, target.address, header, body)

    def close(self) -> None:
        for station in self._stations:
            station.link.close()


class ZmqWorld:
    def __init__(self) -> None:
        self._stations: list[Station] = []

    async def add(self, name: str) -> Station:
        identity, recorder = identity_of(name), Recorder()
        link = await ZmqLink.open(identity, "127.0.0.1", 0, recorder)
        station = Station(identity, link, recorder)
        self._stations.append(station)
        return station

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self._hear()

    async def repeat(self, action: Callable[[], object], until: Callable[[], bool]) -> None:
        """Repeat, as a machine's nudges do: frames may be lost while a connection is being made."""
        async with asyncio.timeout(DEADLINE_S):
            while not until():
                action()
                try:
                    async with asyncio.timeout(RETRY_S):
                        await self._hear()
                except TimeoutError:
                    continue

    async def _hear(self) -> None:
        events = [station.heard.heard for station in self._stations]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for event in events:
            event.clear()

    def send_raw(self, source: Station, target: Station, header: bytes, body: bytes) -> None:
        assert isinstance(source.link, ZmqLink)
        source.link.warm((target.id,))
        source.link._routes[target.id].route_for(0, is_large=False).socket.send_multipart(
            [header, body]
        )

    def close(self) -> None:
        for station in self._stations:
            station.link.close()


Scenario = Callable[[World], Coroutine[None, None, None]]


def run_in(make: Callable[[], World], scenario: Scenario) -> None:
    """One scenario in a fresh world, which is closed whatever happens."""

    async def main() -> None:
        world = make()
        try:
            await scenario(world)
        finally:
            world.close()

    asyncio.run(main())


def introduce(*stations: Station) -> None:
    """Everybody allows everybody else."""
    for one in stations:
        for other in stations:
            if one is not other:
                one.link.allow(other.address)


async def honest(world: World) -> tuple[Station, Station]:
    """Ada and Ben, who allow each other."""
    ada, ben = await world.add("ada"), await world.add("ben")
    introduce(ada, ben)
    return ada, ben


async def reach(world: World, source: Station, target: Station) -> None:
    """Send until one more frame is heard: frames may be lost while a connection is made."""
    count = len(target.heard.chunks_from(source.id))
    await world.repeat(
        lambda: source.link.send(target.id, part(0)),
        lambda: len(target.heard.chunks_from(source.id)) > count,
    )

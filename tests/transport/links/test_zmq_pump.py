"""A pump passes on what it reads, whole and in order, however slow either side is."""

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmtrain_transport.links.zmq_pump import BufferPool, Pump
from tests.transport.links.link_rig import DEADLINE_S, noise

WHOLE = noise(3_000_000)


class Pair:
    """Two connections with a pump from the one to the other."""

    def __init__(self) -> None:
        self.near, self.source = socket.socketpair()
        self.sink, self.far = socket.socketpair()
        for one in (self.near, self.source, self.sink, self.far):
            one.setblocking(False)
        self.pool = BufferPool()
        self.took = 0
        self.ended = asyncio.Event()
        self.broke = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.pump = Pump(
            loop, self.pool, self.source, self.sink, self._count, self._end, self.broke.set
        )

    def _count(self, count: int) -> None:
        self.took += count

    def _end(self) -> None:
        self.pump.stop()
        self.ended.set()

    def close(self) -> None:
        self.pump.stop()
        self.pool.close()
        for one in (self.near, self.source, self.sink, self.far):
            one.close()


@pytest.fixture
def made() -> Iterator[list[Pair]]:
    pairs: list[Pair] = []
    yield pairs
    assert all(pair.sink.fileno() == -1 for pair in pairs)


@pytest.mark.parametrize("piece", [len(WHOLE), 50_000, 3_000])
def test_all_of_it_arrives_in_order(piece: int, made: list[Pair]) -> None:
    async def main() -> None:
        pair, loop, got = Pair(), asyncio.get_running_loop(), bytearray()
        made.append(pair)

        async def feed() -> None:
            for at in range(0, len(WHOLE), piece):
                await loop.sock_sendall(pair.near, WHOLE[at : at + piece])
            pair.near.close()

        try:
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
                group.create_task(feed())
                while len(got) < len(WHOLE):
                    got += await loop.sock_recv(pair.far, 100_000)
                await pair.ended.wait()
            assert bytes(got) == WHOLE and pair.took == len(WHOLE)
        finally:
            pair.close()

    asyncio.run(main())


def test_a_source_is_read_no_further_than_the_sink_takes(made: list[Pair]) -> None:
    async def main() -> None:
        pair, loop = Pair(), asyncio.get_running_loop()
        made.append(pair)
        try:
            feeding = asyncio.ensure_future(loop.sock_sendall(pair.near, WHOLE))
            for _ in range(200):
                await asyncio.sleep(0)
            held = pair.took
            assert 0 < held < len(WHOLE) and not feeding.done()
            pair.pump.drop()  # nobody wants it any more: all is read, nothing passed on
            await asyncio.wait_for(feeding, DEADLINE_S)
            async with asyncio.timeout(DEADLINE_S):
                while pair.took < len(WHOLE):
                    await asyncio.sleep(0)
        finally:
            pair.close()

    asyncio.run(main())


def test_a_sink_that_is_gone_is_told(made: list[Pair]) -> None:
    async def main() -> None:
        pair, loop = Pair(), asyncio.get_running_loop()
        made.append(pair)
        try:
            pair.far.close()
            await loop.sock_sendall(pair.near, b"x")
            await asyncio.wait_for(pair.broke.wait(), DEADLINE_S)
        finally:
            pair.close()

    asyncio.run(main())


def test_small_pieces_are_gathered_only_where_many_come() -> None:
    clock = SimpleNamespace(now_s=100.0, add_reader=lambda *_: None, time=lambda: clock.now_s)
    nothing: Any = None
    pump = Pump(cast("Any", clock), BufferPool(), *[nothing] * 5)

    def rest(after_s: float, count: int) -> float:
        clock.now_s += after_s
        return pump._time_to_rest(count)

    assert rest(5.0, 4096) == 0.0  # the first after a pause
    assert rest(0.0002, 100) == 0.0  # a small answer to a small question
    assert rest(0.0003, 4096) == pytest.approx(0.0048, rel=0.01)  # 100 Mbit/s
    assert rest(0.001, 1500) == 0.005  # 12 Mbit/s
    assert rest(0.00005, 8192) == 0.0  # 1 Gbit/s: soon enough

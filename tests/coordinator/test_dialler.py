"""The coordinator's own try of a peer's address: of no use to who scans or floods."""

import asyncio

from swarmtrain.coordinator.door import dialler
from swarmtrain.coordinator.door.dialler import DIAL_AGAIN_S, DIALLED_KEPT, Dialler, Place

A, B = b"a" * 32, b"b" * 32
HOME = Place(b"boot", "192.0.2.7", 8401)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_only_the_address_that_a_peer_comes_from_is_tried() -> None:
    tries = Dialler(Clock())
    assert not tries.wants(A, HOME, "192.0.2.8")
    assert tries.wants(A, HOME, "192.0.2.7")


def test_a_process_is_tried_once_at_an_address_and_a_key_once_a_minute() -> None:
    clock = Clock()
    tries = Dialler(clock)
    assert tries.wants(A, HOME, HOME.host)
    clock.now_s += 10 * DIAL_AGAIN_S
    assert not tries.wants(A, HOME, HOME.host)
    for port in range(1, 200):
        tries.wants(A, HOME._replace(port=port), HOME.host)
    clock.now_s += DIAL_AGAIN_S - 1.0
    assert not tries.wants(A, HOME._replace(port=22), HOME.host)
    assert tries.wants(B, HOME._replace(port=22), HOME.host)
    clock.now_s += 1.0
    assert tries.wants(A, HOME._replace(port=23), HOME.host)


def test_keys_without_end_are_not_remembered() -> None:
    tries = Dialler(Clock())
    for number in range(10 * DIALLED_KEPT):
        tries.wants(number.to_bytes(32, "big"), HOME, HOME.host)
    assert len(tries._tried) == DIALLED_KEPT


def test_a_port_that_answers_is_reached_and_one_that_does_not_is_not(monkeypatch) -> None:
    monkeypatch.setattr(dialler, "DIAL_S", 0.05)
    heard = []

    async def scenario() -> None:
        def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(reader)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        place = Place(b"boot", "127.0.0.1", server.sockets[0].getsockname()[1])
        tries = Dialler(asyncio.get_running_loop().time)
        assert await tries.reaches(place)
        server.close()
        await server.wait_closed()
        assert not await tries.reaches(place)

        async def never(host: str, port: int) -> None:
            await asyncio.Event().wait()

        assert not await Dialler(asyncio.get_running_loop().time, never).reaches(place)

    asyncio.run(scenario())


def test_few_are_tried_at_once(monkeypatch) -> None:
    async def scenario() -> None:
        done = asyncio.Event()

        async def hangs(host: str, port: int) -> None:
            await done.wait()

        tries = Dialler(asyncio.get_running_loop().time, hangs)
        under_way = []
        for number in range(3 * dialler.DIALS_AT_ONCE):
            place = HOME._replace(port=1 + number)
            if tries.wants(number.to_bytes(32, "big"), place, HOME.host):
                under_way.append(asyncio.create_task(tries.reaches(place)))
                await asyncio.sleep(0)
        assert len(under_way) == dialler.DIALS_AT_ONCE
        done.set()
        assert all(await asyncio.gather(*under_way))

    asyncio.run(scenario())

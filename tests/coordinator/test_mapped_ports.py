"""Mapped ports are tried for those who tell them, at their own address and seldom."""

import asyncio
from collections.abc import Callable

import pytest

from swarmtrain.coordinator.door import mapped
from swarmtrain.coordinator.door.dialler import DIAL_AGAIN_S, DIALLED_KEPT, DIALS_AT_ONCE, Dialler
from swarmtrain.coordinator.door.mapped import LOOK_AGAIN_S, MappedPorts
from swarmtrain_transport.wire.messages import Place, Tried

A, HOME = b"a" * 32, "203.0.113.7"
MAPPED = Place("mapped", HOME, 9000)


class Scene:
    """Tries under a clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.is_open, self.dialled = 1000.0, True, list[float]()
        self.told = list[Tried]()
        self.slept = asyncio.sleep
        monkeypatch.setattr(mapped.asyncio, "sleep", self._sleep)
        self.dialler = Dialler(lambda: self.now_s, self._open)
        self.ports = MappedPorts(self.dialler, lambda: self.now_s)
        self.ports.came(A, HOME, self.told.append)

    async def _sleep(self, seconds: float) -> None:
        await self.slept(0)
        self.now_s += max(0.0, seconds)

    async def _open(self, host: str, port: int) -> None:
        self.dialled.append(self.now_s)
        if not self.is_open:
            raise ConnectionRefusedError

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not is_so():
                await self.slept(0)


def test_who_tells_a_mapped_port_hears_whether_it_is_open(monkeypatch) -> None:
    async def scene() -> None:
        home = Scene(monkeypatch)
        home.ports.heard(A, (Place("lan", HOME, 1), MAPPED))
        await home.until(lambda: len(home.told) == 1)
        home.is_open = False
        await home.until(lambda: len(home.told) == 3)
        home.ports.gone(A)
        assert home.told == [Tried(HOME, 9000, is_open=one) for one in (True, False, False)]
        first, second, third = home.dialled[:3]
        assert (second - first, third - second) == (LOOK_AGAIN_S, DIAL_AGAIN_S)

    asyncio.run(scene())


@pytest.mark.parametrize("place", [Place("mapped", "203.0.113.8", 9000), Place("told", HOME, 9000)])
def test_nobody_else_is_dialled(monkeypatch, place) -> None:
    async def scene() -> None:
        home = Scene(monkeypatch)
        home.ports.heard(A, (place,))
        home.ports.heard(b"b" * 32, (MAPPED,))
        assert not home.ports._trying

    asyncio.run(scene())


def test_other_ports_again_and_again_are_dialled_once_a_minute(monkeypatch) -> None:
    async def scene() -> None:
        home = Scene(monkeypatch)
        for port in range(1, 50):
            count = len(home.dialled)
            home.ports.came(A, HOME, home.told.append)  # also by other connections
            home.ports.heard(A, (MAPPED, Place("mapped", HOME, 1)))
            home.ports.heard(A, (Place("mapped", HOME, port),))
            await home.until(lambda count=count: len(home.dialled) > count)
        pauses = [b - a for a, b in zip(home.dialled, home.dialled[1:], strict=False)]
        assert min(pauses) >= DIAL_AGAIN_S
        home.ports.gone(A)

    asyncio.run(scene())


def test_tries_are_few_at_once_and_keys_are_not_kept_without_end(monkeypatch) -> None:
    async def scene() -> None:
        home = Scene(monkeypatch)
        home.dialler._under_way = DIALS_AT_ONCE
        home.ports.heard(A, (MAPPED,))
        await home.until(lambda: home.now_s > 1010.0)
        assert not home.dialled
        home.dialler._under_way = 0
        await home.until(lambda: bool(home.dialled))
        home.ports.gone(A)
        for number in range(DIALLED_KEPT + 9):
            peer = number.to_bytes(32, "big")
            home.ports.came(peer, HOME, home.told.append)
            home.ports.heard(peer, (MAPPED,))
            count = len(home.dialled)
            await home.until(lambda count=count: len(home.dialled) > count)
            home.ports.gone(peer)
        assert len(home.ports._tried_s) == DIALLED_KEPT

    asyncio.run(scene())

"""States that a run's page can be in, made by the coordinator's machine, and a server for it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from swarmtrain.page.history import History, Round
from swarmtrain.page.server import Guard, Page
from swarmtrain.page.view import Viewed
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.pipeline.wire.orders import Counted, Made, Settled, marks
from swarmtrain_transport.pipeline.wire.route import Process
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Record
from tests.transport.coordinator.stages.test_stage_rounds import StagedHall
from tests.transport.hall import Hall, root_of
from tests.transport.rig import BOOT, LAYOUT, A, B, C, D, E

PEERS = tuple(bytes([0x20 + number]) * 32 for number in range(64))
NAMES = ("brave-otter", "calm-lynx", "quick-ibex", "wise-crane")


class Scene:
    """A run as its page reads it."""

    micro_tokens = hop_bytes = 0

    def __init__(self, hall: Hall, losses: dict[int, float] | None = None) -> None:
        self.hall = hall
        self.known = hall.machine.first.chronicle.losses
        self.known.update(losses or {})

    def losses(self) -> dict[int, float]:
        return self.known

    def begins(self) -> None:
        return None

    def status(self) -> CoordinatorStatus:
        return self.hall.machine.status(self.hall.now_s)

    def num_records(self) -> int:
        return len(self.hall.records)

    def records(self, first: int) -> Iterator[Record]:
        return iter(self.hall.records[first:])


class Anybody:
    """Everybody may look."""

    is_public = True

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def enter(self, secret: str, address: str, now_s: float) -> str | None:
        return str(next(self._numbers))

    def judge(self, cookie: str) -> bytes | None:
        return cookie.encode()


def begun(peers: tuple[bytes, ...] = (A, B, C), **terms: Any) -> Hall:
    """A run that these peers have begun."""
    hall = Hall(**{"start_peers": len(peers), "rounds": 40, **terms})
    for peer, number in zip(peers, itertools.count()):
        name = NAMES[number % len(NAMES)] + (f"-{number}" if number >= len(NAMES) else "")
        hall.join(peer, name=name)
    hall.say(peers[0], m.Offer(root_of(0), 24, LAYOUT))
    for peer in peers:
        hall.say(peer, m.Applied(0, root_of(0)))
        hall.ack(peer, loss=2.5, tokens_per_s=1800.0, bytes_out=40_000_000, bytes_in=38_000_000)
    return hall


def trained(count: int = 8, peers: tuple[bytes, ...] = (A, B, C), **terms: Any) -> Hall:
    """A run that has made some rounds, the last of which has begun."""
    hall = begun(peers, **terms)
    for op in range(1, count + 1):
        for number, peer in enumerate(peers):
            hall.alive(hall.now_s + 0.7 + 0.4 * (number % 3), *peers)
            hall.ready(op, peer)
        hall.alive(hall.now_s + 0.5, *peers)
        hall.exchange(*peers)
        for peer in peers:
            hall.say(peer, m.Applied(op, root_of(op)))
            hall.ack(
                peer, loss=4.0 - 0.2 * op, tokens_per_s=1800.0, bytes_out=op * 40_000_000,
                bytes_in=op * 38_000_000, phase="training",
            )  # fmt: skip
    return hall


LOSSES = {op: 5.5 * 0.9**op + 1.2 for op in range(9)}


def waiting() -> Scene:
    hall = Hall(start_peers=3, rounds=40)
    hall.join(A, name=NAMES[0])
    return Scene(hall)


def skipped() -> Scene:
    hall = trained(8, deadline_floor_s=10.0, deadline_cap_s=10.0)
    hall.ready(9, A, B, C)
    hall.alive(hall.now_s + 21.0, A, B, C)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(9, root_of(8)))
    return Scene(hall, LOSSES)


def disputed() -> Scene:
    hall = trained(8)
    hall.ready(9, A, B, C)
    hall.exchange(A, B, C)
    for number, peer in enumerate((A, B, C)):
        hall.say(peer, m.Applied(9, bytes([number]) * 32))
    return Scene(hall, LOSSES)


def finished() -> Scene:
    return Scene(trained(8, rounds=8), LOSSES)


def many() -> Scene:
    hall = begun(PEERS)
    hall.alive(hall.now_s + 3.0, *PEERS)
    return Scene(hall, {0: LOSSES[0]})


SEATS = {A: (0,), B: (0,), C: (1,), D: (1, 2), E: (2,)}
COUNTED = {A: ((0, 3),), B: ((0, 1),), C: ((1, 3),), D: ((1, 1), (2, 1)), E: ((2, 3),)}
"""Stages of each peer, and how many micro-batches it has counted in which."""


def staged() -> Scene:
    hall = StagedHall(stages=3)
    for number, (peer, stages) in enumerate(SEATS.items()):
        hall.begin(peer, *stages, name=NAMES[number] if number < 4 else "able-wren")
        hall.ack(peer, loss=2.5, tokens_per_s=900.0, bytes_out=90_000_000, bytes_in=90_000_000)
    hall.drain(A, B)
    for peer, counted in COUNTED.items():
        told = tuple(
            Counted(Process(peer if not stage else A, BOOT), stage, marks({*range(1, 1 + count)}))
            for stage, count in counted
        )
        made = Made(marks({*range(1, 5)} if peer == A else {1} if peer == B else set()), {})
        hall.report(peer, Settled(0, told, made))
    scene = Scene(hall, {0: LOSSES[0]})
    scene.micro_tokens, scene.hop_bytes = 1024, 2_600_000
    return scene


STATES: dict[str, tuple[Callable[[], Scene], str]] = {
    "empty": (lambda: Scene(Hall(start_peers=3, rounds=40)), "Nobody is here yet"),
    "waiting": (waiting, "Waiting, round 1 of 40, 1 peer"),
    "training": (lambda: Scene(trained(), LOSSES), "Training, round 9 of 40, 3 peers"),
    "skipped": (skipped, "Training, round 10 of 40, 3 peers"),
    "disputed": (disputed, "Stopped: peers hold different states"),
    "finished": (finished, "Finished after 8 rounds"),
    "stages": (staged, "Training, round 1 of 100, 5 peers"),
    "many": (many, "Training, round 1 of 40, 64 peers"),
}
"""Each state's scene, and the words above its page."""


@asynccontextmanager
async def served(
    scene: Scene, rounds: int = 0, guard: Guard | None = None
) -> AsyncIterator[tuple[str, web.AppRunner]]:
    """Serve a scene's page on loopback, with so many earlier rounds; its address."""
    loop = asyncio.get_running_loop()
    history = History(163_840, 40, scene.micro_tokens)
    scene.known.update({op: 1.2 + 5.5 / (1 + op / 100) for op in range(1, rounds + 1)})
    history.rounds += [
        Round(number, "merged", 64, 0, 60.0 * number, 10_000_000 * number, 10**9 * number)
        for number in range(1, rounds + 1)
    ]
    facts = Viewed(step_tokens=2048, value_bytes=1.02, hop_bytes=scene.hop_bytes)
    page = Page(scene, history, facts, guard or Anybody(), loop.time, lambda: 1_800_000_000.0)
    app = web.Application()
    page.add_to(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/", runner
    finally:
        await page.close()
        await runner.cleanup()

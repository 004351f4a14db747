"""A coordinator's shell around a machine of the test's own, on a real loopback socket."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmtrain.coordinator.app import CoordinatorApp
from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.coordinator.disk.certificate import KeyFiles, RunKeys, load_or_create
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.admission import Door, add_invite
from swarmtrain.coordinator.door.listener import Porch
from swarmtrain.coordinator.shell import Keep, Shell
from swarmtrain.peer.network.control import ControlClient
from swarmtrain_transport.actions import Append, CoordinatorAction, SendToPeer
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.wire.messages import Hello, Welcome
from swarmtrain_transport.wire.records import GENESIS_HASH, Body, Join, Record, Run, make_record

WALL_S = 1_800_000_000.0
SECRET = bytes(range(16))
RUN_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1")
DEADLINE_S = 20.0

Actions = tuple[CoordinatorAction, ...]


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; the deadline only ends a test that would hang."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def scripted(directory: Path, handler: Any) -> AsyncIterator[tuple[Invite, RunKeys]]:
    """A server that says what the test wants, behind the right certificate."""
    keys = load_or_create(KeyFiles(directory), may_create=True, wall_s=WALL_S)
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=keys.server_context()).start()
    try:
        yield Invite("127.0.0.1", runner.addresses[0][1], "demo", keys.cert_sha256, SECRET), keys
    finally:
        await runner.cleanup()


def run_body() -> Run:
    return Run("demo", RUN_KEY.public_key().public_bytes_raw(), bytes(32), 1)


def join_body(peer: bytes, invite_id: str = "") -> Join:
    return Join(peer, b"boot", "name", bytes(32), invite_id)


def hello_of(identity: Identity, host: str = "127.0.0.1", name: str = "otter") -> Hello:
    return Hello(bytes(8), name, identity.curve_key, host, 4242, -1, b"", 1 << 20)


class Chain:
    """Makes the next legal record."""

    def __init__(self, term: int, records: tuple[Record, ...] = ()) -> None:
        self.term = term
        self.length = len(records)
        self.head = records[-1].hash if records else GENESIS_HASH

    def next(self, body: Body) -> Record:
        record = make_record(self.length, self.head, self.term, body, RUN_KEY.sign)
        self.length += 1
        self.head = record.hash
        return record


class FakeMachine:
    """Writes down what it hears, and answers with what the test put into `answer`."""

    def __init__(self, term: int) -> None:
        self.chain = Chain(term)
        self.heard: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.members: set[bytes] = set()
        self.banned: set[bytes] = set()
        self.next_wakeup_s: float | None = None
        self.is_finished = False
        self.place: Any = None
        self.elsewhere: set[bytes] = set()
        self.asked: set[bytes] = set()
        self.places: list[tuple[str, str, int]] = []
        self.term = term
        self.answer: Callable[[bytes, Any], Actions] = lambda peer, message: ()
        self.on_tick: Callable[[], Actions] = lambda: ()

    def start(self, now_s: float) -> Actions:
        return (Append(self.chain.next(run_body())),)

    def connected(
        self, peer: bytes, hello: Hello, now_s: float, *, invite_id: str, remote: str
    ) -> Actions:
        self.heard.put_nowait(("connected", peer, hello, invite_id))
        welcome = SendToPeer(peer, Welcome(self.term, "demo", bytes(32), b"", 0))
        if peer in self.members:
            return (welcome,)
        self.members.add(peer)
        return (Append(self.chain.next(join_body(peer, invite_id))), welcome)

    def received(self, peer: bytes, message: Any, now_s: float) -> Actions:
        self.heard.put_nowait(("received", peer, message))
        return self.answer(peer, message)

    def disconnected(self, peer: bytes, now_s: float) -> Actions:
        self.heard.put_nowait(("disconnected", peer))
        return ()

    def dialled(self, peer: bytes, *, is_open: bool, now_s: float) -> Actions:
        return ()

    def near(self, peer: bytes, remote: str) -> list[tuple[str, str, int]]:
        return self.places

    def tick(self, now_s: float) -> Actions:
        self.next_wakeup_s = None
        self.heard.put_nowait(("tick", now_s))
        return self.on_tick()

    def reads(self, place: Any) -> None:
        self.place = place

    def is_elsewhere(self, peer: bytes, boot: bytes, now_s: float) -> bool:
        return peer in self.elsewhere

    def is_member(self, peer: bytes) -> bool:
        return peer in self.members

    def awaits_history(self, peer: bytes) -> bool:
        return peer in self.asked

    def status(self, now_s: float) -> msgspec.Struct:
        return run_body()

    def outlook(self, now_s: float) -> msgspec.Struct:
        return run_body()

    async def hears(self, kind: str) -> tuple[Any, ...]:
        """The next event of this kind; others before it are passed over."""
        while True:
            event = await self.heard.get()
            if event[0] == kind:
                return event


@dataclass
class Rig:
    """A served coordinator."""

    store: Store
    keys: RunKeys
    machine: FakeMachine
    shell: Shell
    app: CoordinatorApp
    porch: Porch
    port: int

    def invite(self, secret: bytes = SECRET) -> Invite:
        return Invite("127.0.0.1", self.port, "demo", self.keys.cert_sha256, secret)


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    port: int = 0,
    peers_max: int = 8,
    uses_max: int = 0,
    text: Any = None,
    keep: Callable[[Store], Keep] = lambda store: store.append,
) -> AsyncIterator[Rig]:
    store = Store.open(directory)
    records = store.records()
    keys = load_or_create(KeyFiles(directory), may_create=not records, wall_s=WALL_S)
    machine = FakeMachine(store.term)
    machine.chain = Chain(store.term, records)
    loop = asyncio.get_running_loop()
    shell = Shell(
        machine, keep(store), store.adopt, roster=lambda: machine.members, clock=loop.time
    )
    door = Door(
        store, keys.cert_sha256, peers_max=peers_max, others_in=shell.others_in,
        is_banned=lambda peer: peer in machine.banned,
        wall_clock=lambda: WALL_S,
    )  # fmt: skip
    texts = CorpusService(text, seed=1, lease_pieces_max=4)
    app = CoordinatorApp(shell, door, texts, keys.cert_sha256)
    runner = app.runner()
    await runner.setup()
    assert runner.server is not None
    porch = Porch(runner.server, keys.server_context())
    real_port = await porch.open("127.0.0.1", port)
    if not records:
        add_invite(store, SECRET, uses_max=uses_max, expires_at=0.0, wall_s=WALL_S)
        shell.start()
    app.is_ready = True
    try:
        yield Rig(store, keys, machine, shell, app, porch, real_port)
    finally:
        shell.stop()
        await porch.close()
        await runner.cleanup()
        store.close()


@dataclass
class Listener:
    """Notes what a client is told, in order."""

    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def on_up(self, *, is_first: bool) -> None:
        self.events.put_nowait(("up", is_first))

    def on_down(self) -> None:
        self.events.put_nowait(("down",))

    def on_message(self, message: Any) -> None:
        self.events.put_nowait(message)

    async def hears(self, kind: Any) -> Any:
        """The next message of this type, or ("up", ...) and ("down",) by name."""
        while True:
            event = await self.events.get()
            name = event[0] if isinstance(event, tuple) else type(event)
            if name == kind:
                return event


def client_of(
    invite: Invite,
    identity: Identity,
    listener: Any,
    *,
    hello: Hello | None = None,
    pause: Callable[[float], Awaitable[None]] = no_pause,
    prepare: Callable[[], Awaitable[None]] | None = None,
    waits: bool = False,
    **more: Any,
) -> ControlClient:
    newest = hello if hello is not None else hello_of(identity)
    return ControlClient(
        invite, identity, lambda: newest, listener, rng=random.Random(1), pause=pause,
        prepare=prepare, waits=waits, **more,
    )  # fmt: skip


@asynccontextmanager
async def connected(
    invite: Invite, identity: Identity, **options: Any
) -> AsyncIterator[tuple[ControlClient, Listener]]:
    """A client that is up; closed at the end."""
    listener = Listener()
    client = client_of(invite, identity, listener, **options)
    running = asyncio.create_task(client.run())
    try:
        waiting = asyncio.create_task(listener.hears(Welcome))
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            running.result()
        yield client, listener
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)

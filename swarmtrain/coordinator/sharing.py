"""Coordinators that share a database: one leads, the others stand by and take over by themselves.

To lose the database, or the lead, is the end of a life: connections close, and this process stands
by until it leads again, from the last durable record, as after a restart. So there is no other
recovery than the one that a single coordinator has.
"""

import asyncio
import contextlib
import fcntl
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.corpus_service import Text
from swarmtrain.coordinator.disk.certificate import load_or_create
from swarmtrain.coordinator.disk.postgres import HOLD_S, PostgresDatabase
from swarmtrain.coordinator.disk.run_directory import Tell, check_same_run
from swarmtrain.coordinator.disk.sealed_keys import SealedKeys
from swarmtrain.coordinator.disk.store import LOCK_FILE, SCHEMA, Replay, Store, checked_schema
from swarmtrain.coordinator.disk.store_errors import (
    StoreDamaged,
    StoreFailed,
    StoreLocked,
    StoreLost,
    locked,
    translated,
)
from swarmtrain.coordinator.lead import Address, Lead
from swarmtrain.coordinator.text_source import is_another, other_text
from swarmtrain.foundation.errors import misuse
from swarmtrain.status import StatusServer
from swarmtrain.why.story import story_of
from swarmtrain_transport.coordinator.ledger_writer import Replayed
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.errors import RemoteFault

LOOK_S = 0.25
"""Pause between two tries to lead."""

RETRY_S = 2.0
"""Pause before a database that was lost is tried again."""

CHECK_S = 5.0
"""Pause between two looks for a run that has not begun."""

NOTE_S = 600.0
"""Pause between two notes of where a coordinator is found."""


class Standing(msgspec.Struct):
    """The answer to `swarmtrain status` of a coordinator that does not lead."""

    run: str
    store: str
    role: str = "stands by for another coordinator, which leads"


FOLLOW_RECORDS = 400
"""Records of the leader's that are read between two tries to lead: about 0.1 s of work."""


class Following:
    """The leader's log as a coordinator that stands by has read it, so that it need not read it
    when it takes over: a record is 0.2 ms of work, and a long run has hundred thousands."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._store, self._replay = Store(database, 0), Replay(database)
        self._replayed: Replayed | None = Replayed(verify, self._store)

    def follow(self, records: int | None = FOLLOW_RECORDS) -> None:
        """Read on, so many records at most; no more once they do not follow on each other, or
        their tables were set aside for another run: what is wrong, if it is, is said when the log
        is read anew."""
        if self._replayed is not None:
            try:
                self._replayed.add(itertools.islice(self._replay.more(), records))
            except (StoreDamaged, StoreFailed, RemoteFault):
                self._replayed = None

    def whole(self) -> Replayed | None:
        """Return all of the log, now that nobody else writes to it. None to read it anew, also
        where another run has begun under the name."""
        self.follow(None)
        if self._replayed is None:
            return None
        ledger = self._replayed.ledger
        is_whole = (ledger.head_index, ledger.head_hash) == self._store.newest()
        return self._replayed if is_whole else None


@dataclass(slots=True)
class Shared:
    """The part of one coordinator among those of a run.

    Attributes:
        state_dir: exists; answers `swarmtrain status`.
        secret: seals the run's keys.
        address: host and port by which peers find this one, None while only its life can tell.
        tell: hears what the organiser must know, in sentences.
        text: reads the run's text, once; None where there is none.
    """

    state_dir: Path
    url: str
    secret: bytes = field(repr=False)
    config: RunConfig
    address: Address | None
    tell: Tell
    wall_clock: Callable[[], float]
    text: Callable[[], Text | None]
    opened: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    """Keys of before, by their sealed bytes: to open one takes long."""

    async def in_turn(
        self, serve: Callable[[Lead], Awaitable[str]], stop: asyncio.Event, *, is_new: bool = False
    ) -> str:
        """Stand by, lead, and so on until `stop` is set or the run is finished.

        Args:
            serve: one life of the coordinator; returns the run's result, "" for none.
            is_new: set aside what the database has of a run of this name, first.

        Raises:
            StoreLost: the database does not answer at the start.
            StoreLocked: `is_new`, and another coordinator leads; or one has the state directory.
            UserError: another run's file or keys, or what ends a life.
        """
        with self._own_directory():
            return await self._in_turn(serve, stop, is_new)

    @contextlib.contextmanager
    def _own_directory(self) -> Iterator[None]:
        path = self.state_dir / LOCK_FILE
        with translated(path), path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise locked(self.state_dir) from exc
            yield

    async def _in_turn(
        self, serve: Callable[[Lead], Awaitable[str]], stop: asyncio.Event, is_new: bool
    ) -> str:
        database: PostgresDatabase | None = await self._connected()
        if is_new and database is not None:
            self._set_aside(database)
        await asyncio.to_thread(self.text)  # takes long, and needs no lead
        while database is not None:
            with contextlib.closing(database):
                following = Following(database)
                try:
                    if not await self._stand_by(database, stop, following):
                        return ""
                    return await self._live(database, serve, following)
                except StoreLost as lost:
                    self.tell(f"{lost.what} {lost.meaning}")
            database = await self._back(stop)
        return ""

    async def _connected(self) -> PostgresDatabase:
        return await asyncio.to_thread(PostgresDatabase, self.url, self.config.run.name)

    async def _back(self, stop: asyncio.Event) -> PostgresDatabase | None:
        """Wait for a database that was there before, or for `stop`."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_S)
            with contextlib.suppress(StoreLost):
                return await self._connected()
        return None

    def _set_aside(self, database: PostgresDatabase) -> None:
        try:
            _check_leads(database)
        except StoreLocked:
            database.close()
            raise
        if name := database.set_aside():
            self.tell(f'Another run begins. The tables of the one before are in schema "{name}".')

    async def _stand_by(
        self, database: PostgresDatabase, stop: asyncio.Event, following: Following
    ) -> bool:
        """Wait until this coordinator leads; False if it shall stop before that."""
        if database.leads():
            return True
        self.tell("Another coordinator leads. This one stands by, and takes over from it.")
        answers = StatusServer(
            self.state_dir, lambda: Standing(self.config.run.name, database.name),
            lambda number, group: story_of(Store(database, 0).replay(), number, group).fields(),
            _refuse,
        )  # fmt: skip
        await answers.open()
        try:
            return await self._until_gone(database, stop, following)
        finally:
            await answers.close()

    async def _until_gone(
        self, database: PostgresDatabase, stop: asyncio.Event, following: Following
    ) -> bool:
        """Wait until nobody leads, so this coordinator does; False if it shall stop before."""
        loop = asyncio.get_running_loop()
        next_note_s, is_checked = loop.time(), False
        while not database.leads():
            is_time = loop.time() >= next_note_s
            if is_time and checked_schema(database, database.schema()) == SCHEMA:
                store = Store(database, 0)
                is_checked = is_checked or self._check(store)
                next_note_s = loop.time() + (NOTE_S if is_checked else CHECK_S)
                self._note(store)
            if is_checked:
                following.follow()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)
                return False
        return True

    def _check(self, store: Store) -> bool:
        """Find out now, not when it matters, if run file, passphrase and text are the run's; False
        while there is no run yet."""
        first = next(store.replay(), None)
        if first is not None:
            keys = load_or_create(self._keys(store), may_create=False, wall_s=0.0)
            check_same_run(first, self.config, keys)
            text = self.text()
            if text is not None and is_another(store, text):
                raise other_text()
        return first is not None

    def _keys(self, store: Store) -> SealedKeys:
        return SealedKeys(store, self.secret, self.opened)

    def _note(self, store: Store) -> None:
        if self.address is not None:
            store.note_coordinator(*self.address, self.wall_clock())

    async def _live(
        self,
        database: PostgresDatabase,
        serve: Callable[[Lead], Awaitable[str]],
        following: Following,
    ) -> str:
        """Lead for one life."""
        if warning := database.warning():
            self.tell(f"Warning: {warning}")
        with contextlib.closing(Store.begin(database)) as store:
            if store.term > 1:
                self.tell(f"This coordinator leads now, in term {store.term}.")
            lead = Lead(
                store, self._keys(store),
                lambda: store.coordinators(self.wall_clock()), self._found_at,
                following.whole(),
            )  # fmt: skip
            life = asyncio.ensure_future(serve(lead))
            holding = asyncio.create_task(self._hold(database, store))
            try:
                await asyncio.wait([life, holding], return_when=asyncio.FIRST_COMPLETED)
                if not life.done():
                    holding.result()  # raises: it has no other end
                return await life
            finally:
                for task in (life, holding):
                    task.cancel()
                await asyncio.gather(life, holding, return_exceptions=True)

    def _found_at(self, address: Address) -> None:
        self.address = address

    async def _hold(self, database: PostgresDatabase, store: Store) -> None:
        """Keep the lead, and the note of where this coordinator is."""
        loop = asyncio.get_running_loop()
        next_note_s, noted = loop.time(), None
        while True:
            if loop.time() >= next_note_s or self.address != noted:
                next_note_s, noted = loop.time() + NOTE_S, self.address
                self._note(store)
            await asyncio.sleep(HOLD_S)
            database.hold()


def check_nobody_leads(url: str, run: str) -> None:
    """Find out before anything is changed if another run may begin in the place of this one.

    Raises:
        StoreLocked: SWT-E404, a coordinator leads it.
        StoreError: the database.
    """
    with contextlib.closing(PostgresDatabase(url, run)) as database:
        _check_leads(database)


def _check_leads(database: PostgresDatabase) -> None:
    if not database.leads():
        raise StoreLocked(
            "SWT-E404",
            f"Another coordinator leads {database.name}.",
            "Its run would lose its tables.",
            "Stop all coordinators of the run, then begin another one.",
        )


async def _refuse(order: bytes) -> None:
    raise misuse(
        "The coordinator that was asked stands by: another one leads the run.",
        "Give the order on the machine of the one that leads.",
    )

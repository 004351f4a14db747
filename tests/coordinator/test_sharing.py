"""Coordinators that share a database, in one process: who leads, and what the others do."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from swarmtrain.config.settings import DataSection, RunConfig, RunSection
from swarmtrain.coordinator import sharing
from swarmtrain.coordinator.disk.postgres import PostgresDatabase
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.disk.store_errors import StoreLocked, StoreLost, StoreOfLaterVersion
from swarmtrain.coordinator.lead import Lead
from swarmtrain.coordinator.service import serve
from swarmtrain.coordinator.sharing import Following, Shared
from swarmtrain.data.corpus import build_corpus
from swarmtrain.foundation.errors import UserError
from swarmtrain.status import ask, order
from swarmtrain_transport.coordinator.ledger_writer import Replayed
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.wire.messages import Records, Welcome
from tests.coordinator.postgres_rig import Server, server
from tests.coordinator.rig import Chain, Listener, client_of, join_body, run, run_body
from tests.peer.test_control import free_port

pytestmark = pytest.mark.timeout(120)

ALICE = Identity.create()
SECRET = b"a secret that all coordinators have"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as one:
        yield one


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LOOK_S", 0.02)
    monkeypatch.setattr(sharing, "RETRY_S", 0.05)
    monkeypatch.setattr(sharing, "HOLD_S", 0.05)
    monkeypatch.setattr(sharing, "CHECK_S", 0.05)


def config_of(run_name: str) -> RunConfig:
    return RunConfig(run=RunSection(name=run_name, rounds=3), data=DataSection(source="own"))


class Life:
    """One coordinator of a run, from its start on."""

    def __init__(
        self, postgres: Server, config: RunConfig, folder: Path, secret: bytes = SECRET,
        text: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.stop, self.told = asyncio.Event(), asyncio.Queue[str]()
        self.invites: asyncio.Queue[Invite] = asyncio.Queue()
        self.address = "127.0.0.1", free_port()
        shared = Shared(
            folder, postgres.url(), secret, config, self.address, self.told.put_nowait,
            lambda: 1.0e9, lambda: text,
        )  # fmt: skip

        async def life(lead: Lead) -> str:
            return await serve(
                config, folder, *self.address, "", on_ready=self.invites.put_nowait,
                stop=self.stop, tell=self.told.put_nowait, lead=lead, read_text=lambda: text,
            )  # fmt: skip

        self.task = asyncio.create_task(shared.in_turn(life, self.stop, **options))

    async def hears(self, words: str) -> str:
        """The next sentence that has these words."""
        while words not in (said := await self._unless_over(self.told.get())):
            pass
        return str(said)

    async def leads(self) -> Invite:
        found: Invite = await self._unless_over(self.invites.get())
        return found

    async def _unless_over(self, waiting: Any) -> Any:
        wait = asyncio.ensure_future(waiting)
        await asyncio.wait([wait, self.task], return_when=asyncio.FIRST_COMPLETED)
        if wait.done():
            return wait.result()
        wait.cancel()
        return self.task.result()


@asynccontextmanager
async def coordinators(*lives: Life) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for life in lives:
            life.stop.set()
        await asyncio.gather(*(life.task for life in lives), return_exceptions=True)


async def until(is_so: Any) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def test_another_takes_over_with_the_same_keys_and_peers_come_to_it_by_themselves(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_before: list[int] = []
    whole = Following.whole

    def noted(following: Following) -> Replayed | None:
        assert following._replayed is not None
        read_before.append(len(following._replayed.ledger))
        return whole(following)

    monkeypatch.setattr(Following, "whole", noted)

    async def scene() -> None:
        config = config_of("takeover")
        first = Life(postgres, config, tmp_path / "a")
        invite = await first.leads()
        assert invite.addresses == (first.address,)
        listener = Listener()
        client = client_of(invite, ALICE, listener)
        running = asyncio.create_task(client.run())
        assert (await listener.hears(Welcome)).term == 1
        await listener.hears(Records)
        second = Life(postgres, config, tmp_path / "b")
        async with coordinators(first, second):
            await second.hears("stands by")
            # The peer hears of it, although its invite is older.
            await until(lambda: client._invite.addresses == (first.address, second.address))
            told = await asyncio.to_thread(ask, tmp_path / "b")
            assert "stands by" in told["role"] and "PostgreSQL" in told["store"]
            with pytest.raises(UserError, match="another one leads") as refused:
                await asyncio.to_thread(order, tmp_path / "b", {"order": "invite-ls"})
            assert refused.value.code == "SWT-E610"
            assert (await asyncio.to_thread(ask, tmp_path / "b", "/why/1"))["story"] == []
            first.stop.set()
            assert await first.task == ""
            assert "term 2" in await second.hears("leads now")
            again = await second.leads()
            assert again == invite.at(second.address, first.address)
            assert (await listener.hears(Welcome)).term == 2
            assert read_before == [0, 2]  # RUN and JOIN, while the first one led
            assert client.address == second.address
            assert (await asyncio.to_thread(ask, tmp_path / "b"))["term"] == 2
            await client.close()
            await running

    run(scene())


def test_who_lost_the_lead_stands_by_and_leads_again(postgres: Server, tmp_path: Path) -> None:
    """The server ends the session of a leader that sleeps; here, as an administrator does."""

    async def scene() -> None:
        config = config_of("sleeper")
        first = Life(postgres, config, tmp_path / "a")
        async with coordinators(first):
            await first.leads()
            second = Life(postgres, config, tmp_path / "b")
            async with coordinators(second):
                await second.hears("stands by")
                ended = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                with psycopg.connect(postgres.url(), autocommit=True) as other:
                    other.execute(ended)
                await first.hears("was lost")
                await second.leads()
                await first.hears("stands by")
            assert "term 3" in await first.hears("leads now")

    run(scene())


def test_a_database_that_crashes_is_waited_for(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        life = Life(postgres, config_of("crash"), tmp_path / "a")
        async with coordinators(life):
            invite = await life.leads()
            postgres.stop()
            try:
                await life.hears("was lost")
            finally:
                postgres.start()
            assert await life.leads() == invite

    run(scene())


FULL = """
CREATE FUNCTION "swarmtrain full".refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
END $$;
CREATE TRIGGER refuse BEFORE UPDATE OR INSERT ON "swarmtrain full".meta
FOR EACH ROW EXECUTE FUNCTION "swarmtrain full".refuse();
CREATE TRIGGER refuse BEFORE INSERT ON "swarmtrain full".log
FOR EACH ROW EXECUTE FUNCTION "swarmtrain full".refuse()
"""
"""Makes the server answer as one whose disk is full."""


def test_a_full_disk_of_the_database_is_waited_for(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        life = Life(postgres, config_of("full"), tmp_path / "a")
        async with coordinators(life):
            invite = await life.leads()
            with psycopg.connect(postgres.url(), autocommit=True) as other:
                other.execute(FULL)
                listener = Listener()
                client = client_of(invite, ALICE, listener, waits=True)
                running = asyncio.create_task(client.run())  # its JOIN finds no room
                assert "No space left" in await life.hears("was lost")
                assert "No space left" in await life.hears("was lost"), "nor does the next term"
                other.execute('DROP FUNCTION "swarmtrain full".refuse() CASCADE')
            await life.leads()
            await listener.hears(Records)
            await client.close()
            await running

    run(scene())


def test_who_shall_stop_while_the_database_is_away_stops(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        life = Life(postgres, config_of("away"), tmp_path / "a")
        async with coordinators(life):
            await life.leads()
            postgres.stop()
            try:
                await life.hears("was lost")
                life.stop.set()
                assert await life.task == ""
            finally:
                postgres.start()

    run(scene())


def test_a_database_that_was_never_there_is_an_error(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        postgres.stop()
        try:
            life = Life(postgres, config_of("never"), tmp_path / "a")
            with pytest.raises(StoreLost) as caught:
                await life.task
            assert caught.value.code == "SWT-E413"
        finally:
            postgres.start()

    run(scene())


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("other-file", {"config": True}, "SWT-E606"),
        ("other-secret", {"secret": b"another secret of some length"}, "SWT-E415"),
        ("new-run", {"is_new": True}, "SWT-E404"),
        ("other-text", {"text": build_corpus(1 << 15, validation_pieces=1)}, "SWT-E823"),
    ],
)
def test_who_does_not_fit_is_told_so_when_it_starts_and_not_when_it_should_lead(
    postgres: Server, tmp_path: Path, name: str, change: dict[str, Any], code: str
) -> None:
    async def scene() -> None:
        config = config_of(name)
        text = build_corpus(1 << 16, validation_pieces=1) if "text" in change else None
        first = Life(postgres, config, tmp_path / "a", text=text)
        async with coordinators(first):
            invite = await first.leads()
            listener = Listener()
            client = client_of(invite, ALICE, listener)
            running = asyncio.create_task(client.run())
            await listener.hears(Records)  # so the run has begun
            other = config
            if change.pop("config", False):
                other = msgspec.structs.replace(config, run=RunSection(name=name, rounds=4))
            second = Life(postgres, other, tmp_path / "b", **change)
            with pytest.raises(UserError) as caught:
                await second.task
            assert caught.value.code == code
            await client.close()
            await running

    run(scene())


def test_who_stands_by_for_a_later_version_is_told_so_at_once(
    postgres: Server, tmp_path: Path
) -> None:
    async def scene() -> None:
        config = config_of("later")
        first = Life(postgres, config, tmp_path / "a")
        async with coordinators(first):
            await first.leads()
            with psycopg.connect(postgres.url(), autocommit=True) as other:
                other.execute("UPDATE \"swarmtrain later\".meta SET value = 9 WHERE key = 'schema'")
            with pytest.raises(StoreOfLaterVersion):
                await Life(postgres, config, tmp_path / "b").task

    run(scene())


def test_whether_another_run_may_begin_is_known_before_anything_is_moved(
    postgres: Server, tmp_path: Path
) -> None:
    async def scene() -> None:
        first = Life(postgres, config_of("led"), tmp_path / "a")
        async with coordinators(first):
            await first.leads()
            with pytest.raises(StoreLocked, match="leads"):
                sharing.check_nobody_leads(postgres.url(), "led")

        def nobody_leads() -> bool:
            try:
                sharing.check_nobody_leads(postgres.url(), "led")
            except StoreLocked:  # the server hears of the end of a session a moment later
                return False
            return True

        await until(nobody_leads)

    run(scene())


def test_a_state_directory_belongs_to_one_coordinator(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        config = config_of("directory")
        first = Life(postgres, config, tmp_path / "a")
        async with coordinators(first):
            await first.leads()
            with pytest.raises(StoreLocked, match="in use"):
                await Life(postgres, config, tmp_path / "a").task

    run(scene())


def test_the_log_of_a_run_that_was_set_aside_is_not_taken_for_the_next_one_s(
    postgres: Server,
) -> None:
    first = PostgresDatabase(postgres.url(), "followed")
    assert first.leads()
    store = Store.begin(first)
    chain = Chain(store.term)
    for body in (run_body(), join_body(b"a" * 32)):
        store.append(chain.next(body))
    following = Following(PostgresDatabase(postgres.url(), "followed"))
    following.follow()
    first.set_aside()
    first.close()
    second = PostgresDatabase(postgres.url(), "followed")
    while not second.leads():
        pass
    store = Store.begin(second)
    store.append(Chain(store.term).next(run_body()))
    assert following.whole() is None
    found = Following(second).whole()
    assert found is not None and len(found.ledger) == 1
    second.close()


def test_a_new_run_leaves_the_tables_of_the_one_before(postgres: Server, tmp_path: Path) -> None:
    async def scene() -> None:
        config = config_of("anew")
        first = Life(postgres, config, tmp_path / "a")
        async with coordinators(first):
            invite = await first.leads()
        second = Life(postgres, config, tmp_path / "a", is_new=True)
        async with coordinators(second):
            assert "swarmtrain anew before 1" in await second.hears("Another run begins")
            assert (await second.leads()).cert_sha256 != invite.cert_sha256

    run(scene())


def test_who_stands_by_outlasts_a_run_whose_tables_are_set_aside(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        config, looks, follow = config_of("outlasted"), asyncio.Event(), Following.follow

        def looked(self: Following, records: int | None = sharing.FOLLOW_RECORDS) -> None:
            follow(self, records)
            looks.set()

        monkeypatch.setattr(Following, "follow", looked)
        first = Life(postgres, config, tmp_path / "a")
        async with coordinators(first):
            invite = await first.leads()
        database = PostgresDatabase(postgres.url(), "outlasted")
        await until(database.leads)
        looks.clear()  # the first has read its log as it began to lead
        other = Life(postgres, config, tmp_path / "b")
        async with coordinators(other):
            await looks.wait()
            database.set_aside()  # as --new-run does, which then reads the run's text
            looks.clear()
            ends = [other.task, asyncio.create_task(looks.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert not other.task.done(), other.task.exception()
            database.close()
            assert (await other.leads()).cert_sha256 != invite.cert_sha256

    run(scene())

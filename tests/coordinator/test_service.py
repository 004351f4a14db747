import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import AdmissionSection, DataSection, RunConfig, RunSection
from swarmtrain.coordinator import service, text_source
from swarmtrain.coordinator.disk.certificate import RUN_KEY_FILE
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.disk.store_errors import StoreFull, StoreLocked
from swarmtrain.coordinator.outside import reachable_host
from swarmtrain.coordinator.service import serve
from swarmtrain.data.corpus import CorpusMissing
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.control import DoorRefused
from swarmtrain.status import NotRunning, ask
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.ledger import snapshots
from swarmtrain_transport.wire.messages import (
    LeaseGrant,
    LeaseRequest,
    Leave,
    Place,
    Places,
    Records,
    Tried,
    Welcome,
)
from tests.coordinator.rig import Listener, client_of, connected, run
from tests.coordinator.test_store import environment

ALICE, BOB = Identity.create(), Identity.create()
CONFIG = RunConfig(run=RunSection(name="tests", rounds=3), data=DataSection(source="own"))


class Life:
    """One life of a coordinator."""

    def __init__(self, task: "asyncio.Task[None]", stop: asyncio.Event, invite: Invite) -> None:
        self.task, self.stop, self.invite = task, stop, invite


@asynccontextmanager
async def living(
    directory: Path, config: RunConfig = CONFIG, port: int = 0, **options: Any
) -> AsyncIterator[Life]:
    stop = asyncio.Event()
    ready: asyncio.Future[Invite] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(
            config,
            directory,
            "127.0.0.1",
            port,
            "",
            on_ready=ready.set_result,
            stop=stop,
            **options,
        )
    )
    waits: list[asyncio.Future[Any]] = [task, ready]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield Life(task, stop, ready.result())
    finally:
        stop.set()
        await task


async def fails(directory: Path, config: RunConfig = CONFIG, port: int = 0) -> UserError:
    with pytest.raises(UserError) as caught:
        async with living(directory, config, port):
            pass
    return caught.value


def test_a_run_begins_lets_a_peer_in_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            assert life.invite.run == "tests" and life.invite.is_loopback
            async with connected(life.invite, ALICE) as (_, listener):
                records = await listener.hears(Records)
                assert records.first_index == 0 and len(records.records) == 2
        # The second life: same invite, next term, and the peer is known without it.
        async with living(tmp_path, port=life.invite.port) as again:
            assert str(again.invite) == str(life.invite)
            blank = Invite(
                "127.0.0.1", life.invite.port, "tests", life.invite.cert_sha256, b"-" * 16
            )
            listener = Listener()
            client = client_of(blank, ALICE, listener)
            running = asyncio.create_task(client.run())
            welcome = await listener.hears(Welcome)
            assert welcome.term == 2
            assert config_file.from_canonical(welcome.run) == CONFIG
            await client.close()
            await running

    run(scene())


@pytest.mark.parametrize(
    ("admission", "code"),
    [
        (AdmissionSection(invite_uses=1), "SWT-E311"),
        (AdmissionSection(peers_max=1), "SWT-E701"),
    ],
)
def test_who_waits_for_a_restarted_coordinator_takes_a_place_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admission: AdmissionSection, code: str
) -> None:
    """A coordinator lets nobody new in until it has heard its roster. Two with an invite for one
    would both be let in then, and the store must refuse the second JOIN, which ends the
    coordinator."""
    monkeypatch.setattr(limits, "SUSPECT_S", 0.5)
    config = msgspec.structs.replace(CONFIG, admission=admission)

    async def scene() -> None:
        async with living(tmp_path, config):
            pass
        async with living(tmp_path, config) as life:
            listeners = [Listener(), Listener()]
            clients = [
                client_of(life.invite, who, listener)
                for who, listener in zip((ALICE, BOB), listeners, strict=True)
            ]
            running = [asyncio.create_task(client.run()) for client in clients]
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(DoorRefused) as caught:
                done.pop().result()
            assert caught.value.code == code
            await listeners[0 if running[1].done() else 1].hears(Welcome)
            assert not life.task.done()
            for client in clients:
                await client.close()
            await asyncio.gather(*running, return_exceptions=True)

    run(scene())


def test_status_is_answered_over_the_local_socket(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life, connected(life.invite, ALICE):
            answer = await asyncio.to_thread(ask, tmp_path)
            assert (answer["run"], answer["term"], answer["committed"]) == ("tests", 1, 0)
            assert [peer["peer"] for peer in answer["peers"]] == [ALICE.peer_id.hex()]
        with pytest.raises(NotRunning):
            ask(tmp_path)

    run(scene())


def test_a_peer_that_leaves_is_recorded_as_gone_on_purpose(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            async with connected(life.invite, BOB) as (_, listener):
                async with connected(life.invite, ALICE) as (client, _):
                    client.send(Leave())
                while True:
                    status = await asyncio.to_thread(ask, tmp_path)
                    if [event["event"] for event in status["events"]][-1] == "left":
                        break
                    await listener.hears(Records)
            async with connected(life.invite, ALICE):
                pass

    run(scene())


def test_a_changed_run_file_is_refused_and_names_what_to_do(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path):
            pass
        changed = msgspec.structs.replace(CONFIG, run=RunSection(name="tests", rounds=4))
        error = await fails(tmp_path, changed)
        assert (error.code, error.exit_status) == ("SWT-E606", 78)
        assert "--state-dir" in error.remedy
        async with living(tmp_path):
            pass

    run(scene())


def test_a_port_in_use_is_named_and_the_state_is_left_usable(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path / "one") as life:
            error = await fails(tmp_path / "two", port=life.invite.port)
            assert (error.code, error.exit_status) == ("SWT-E201", 78)
            assert str(life.invite.port) in error.what
        async with living(tmp_path / "two", port=life.invite.port):
            pass

    run(scene())


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    async def scene() -> None:
        with pytest.raises(UserError) as caught:
            await serve(
                CONFIG, tmp_path, "192.0.2.1", 0, "", on_ready=lambda invite: None,
                stop=asyncio.Event(),
            )  # fmt: skip
        assert caught.value.code == "SWT-E202"

    run(scene())


def test_two_coordinators_on_one_directory_cannot_be(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            assert isinstance(await fails(tmp_path), StoreLocked)
            async with connected(life.invite, ALICE):
                assert (await asyncio.to_thread(ask, tmp_path))["run"] == "tests"

    run(scene())


def test_a_full_disk_ends_the_coordinator_with_its_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Store] = []
    open_store = Store.open

    def remembered(directory: Path) -> Store:
        stores.append(open_store(directory))
        return stores[-1]

    monkeypatch.setattr(service.Store, "open", remembered)

    async def scene() -> None:
        with pytest.raises(StoreFull) as caught:
            async with living(tmp_path) as life:
                # Room for the first peer's record, but for no long row of them.
                stores[-1]._db.connection.execute("PRAGMA max_page_count = 1")
                for _ in range(200):
                    who = Identity.create()
                    async with connected(life.invite, who) as (client, _):
                        client.send(Leave("x" * 200))
                    if life.task.done():
                        break
                await life.task
        assert (caught.value.code, caught.value.exit_status) == ("SWT-E402", 73)
        monkeypatch.undo()
        async with living(tmp_path) as life, connected(life.invite, ALICE):
            pass

    run(scene())


def test_lost_keys_are_not_replaced(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path):
            pass
        kept = (tmp_path / RUN_KEY_FILE).read_bytes()
        (tmp_path / RUN_KEY_FILE).unlink()
        assert (await fails(tmp_path)).code == "SWT-E805"
        async with living(tmp_path / "other"):
            pass
        (tmp_path / RUN_KEY_FILE).write_bytes((tmp_path / "other" / RUN_KEY_FILE).read_bytes())
        assert "another key" in (await fails(tmp_path)).what
        (tmp_path / RUN_KEY_FILE).write_bytes(kept)
        async with living(tmp_path):
            pass

    run(scene())


def test_a_log_whose_images_have_another_form_is_of_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 1)

    async def scene() -> None:
        async with living(tmp_path) as life, connected(life.invite, ALICE) as (_, listener):
            await listener.hears(Records)
        made = snapshots.image_of
        monkeypatch.setattr(snapshots, "image_of", lambda *fold: made(*fold) + b"later")
        assert (await fails(tmp_path)).code == "SWT-E810"

    run(scene())


def test_a_machine_without_sources_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **options: object) -> None:
        raise CorpusMissing("no source files")

    monkeypatch.setattr(text_source, "build_corpus", none)

    async def scene() -> None:
        error = await fails(tmp_path, RunConfig(run=RunSection(name="tests")))
        assert (error.code, error.exit_status) == ("SWT-E801", 66)

    run(scene())


def test_a_run_that_is_finished_ends_by_itself_when_nobody_is_in(tmp_path: Path) -> None:
    async def scene() -> None:
        done = msgspec.structs.replace(CONFIG, run=RunSection(name="tests", rounds=0))
        said: list[str] = []
        for _ in range(2):
            result = await serve(
                done, tmp_path, "127.0.0.1", 0, "", on_ready=lambda invite: pytest.fail("invites"),
                stop=asyncio.Event(), tell=said.append,
            )  # fmt: skip
            assert result.startswith("0 rounds")
        assert said == [f"The run is finished: {result}."] * 2
        last = ask(tmp_path)
        assert (last["process"], last["phase"]) == ("has ended", "finished")
        assert last["result"] == result

    run(scene())


def test_losses_are_known_after_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.keep_losses({0: 5.5, 1: 4.5})
    store.keep_losses({1: 4.5, 2: 3.5})
    assert store.losses() == {1: 4.5, 2: 3.5}
    store.close()

    async def scene() -> None:
        async with living(tmp_path):
            assert (await asyncio.to_thread(ask, tmp_path))["losses"] == {"1": 4.5, "2": 3.5}

    run(scene())


def test_the_built_in_text_is_leased_and_fetched(tmp_path: Path) -> None:
    async def scene() -> None:
        config = RunConfig(run=RunSection(name="tests"))
        async with (
            living(tmp_path, config) as life,
            connected(life.invite, ALICE) as (client, listener),
        ):
            client.send(LeaseRequest(2))
            grant = await listener.hears(LeaseGrant)
            assert len(grant.train) == 2 and 1 <= len(grant.validation) <= 8
            for piece in (*(one.piece for one in grant.train), *grant.validation):
                assert 0 < len(await client.fetch_piece(piece)) <= config.data.piece_bytes

    run(scene())


def test_a_pass_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    config = RunConfig(run=RunSection(name="tests"))

    async def scene() -> None:
        async with (
            living(tmp_path, config) as life,
            connected(life.invite, ALICE) as (client, listener),
        ):
            client.send(LeaseRequest(3))
            first = (await listener.hears(LeaseGrant)).train
            client.send(LeaseRequest(1, held=first[2:], done=first[:2]))
            second = (await listener.hears(LeaseGrant)).train
            assert second[0] == first[2] and not set(second) & set(first[:2])
            told = (await asyncio.to_thread(ask, tmp_path))["text"]
            assert (told["pass"], told["used"]) == (1, 2)
        async with (
            living(tmp_path, config, port=life.invite.port) as life,
            connected(life.invite, ALICE) as (client, listener),
        ):
            client.send(LeaseRequest(1, held=second, done=first[:2]))
            third = (await listener.hears(LeaseGrant)).train
            assert set(second) < set(third) and not set(third) & set(first[:2])
            assert (await asyncio.to_thread(ask, tmp_path))["text"] == told

    run(scene())


def test_nothing_is_left_open_or_running(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life, connected(life.invite, ALICE):
            pass
        assert asyncio.all_tasks() == {asyncio.current_task()} | waiting
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(f"https://127.0.0.1:{life.invite.port}/livez")

    waiting: set[Any] = set()

    async def outer() -> None:
        waiting.update(asyncio.all_tasks())
        await asyncio.create_task(scene())

    run(outer())


def test_the_host_of_an_invite_can_be_reached() -> None:
    assert reachable_host("192.0.2.5") == "192.0.2.5"
    assert reachable_host("0.0.0.0") not in ("", "0.0.0.0")


def test_the_coordinator_never_loads_torch_or_numpy() -> None:
    code = (
        "import sys, swarmtrain.coordinator.service\n"
        "print(sorted({'torch', 'numpy', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), text=True, capture_output=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_a_member_hears_whether_its_mapped_port_is_open(tmp_path: Path) -> None:
    async def scene() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with living(tmp_path) as life, connected(life.invite, ALICE) as (client, listener):
            client.send(Places((Place("mapped", "127.0.0.1", port),)))
            assert await listener.hears(Tried) == Tried("127.0.0.1", port, is_open=True)
        server.close()
        await server.wait_closed()

    run(scene())

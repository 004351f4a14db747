"""A state directory of which a part is gone, and the coordinator that is started on it."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import AdmissionSection, RunSection
from swarmtrain.coordinator.disk.certificate import FRESH_KEY_FILE, RUN_KEY_FILE, TLS_FILE
from swarmtrain.coordinator.disk.run_directory import set_aside
from swarmtrain.coordinator.disk.store import SIDE_FILES, Store
from swarmtrain.coordinator.disk.store_errors import StoreFull
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.control import DoorRefused, WrongKey
from swarmtrain.status import ask
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.wire.messages import Hello, History, Records, Tell, Welcome
from swarmtrain_transport.wire.records import Join, Record, bodies_of, record_from_bytes
from tests.coordinator.rig import Listener, client_of, connected, hello_of, run
from tests.coordinator.test_service import CONFIG, fails, living

ALICE, BOB, EVE = (Identity.create() for _ in range(3))


def lose_ledger(directory: Path) -> None:
    for name in SIDE_FILES:
        (directory / name).unlink(missing_ok=True)


async def begun(directory: Path, *peers: Identity) -> tuple[Invite, list[Record]]:
    """A life in which these come in one after another; the invite, and the last one's ledger."""
    records: list[Record] = []
    async with living(directory) as life:
        for peer in peers:
            async with connected(life.invite, peer) as (_, listener):
                told = await listener.hears(Records)
                records = [record_from_bytes(raw) for raw in told.records]
    return life.invite, records


def with_copy(peer: Identity, records: list[Record]) -> Hello:
    newest = records[-1]
    joins = [record for record, body in zip(records, bodies_of(records), strict=True)
             if isinstance(body, Join) and body.peer == peer.peer_id]  # fmt: skip
    return msgspec.structs.replace(
        hello_of(peer), head_index=newest.index, head_hash=newest.hash,
        joined=joins[-1].to_bytes() if joins else b"",
    )  # fmt: skip


async def refusal(invite: Invite, peer: Identity, hello: Hello | None = None) -> DoorRefused:
    with pytest.raises(DoorRefused) as caught:
        async with connected(invite, peer, hello=hello):
            pass
    return caught.value


async def brings(invite: Invite, peer: Identity, records: list[Record]) -> Listener:
    """The peer comes, is asked, tells what it has, and hears the answer."""
    listener = Listener()
    client = client_of(invite, peer, listener, hello=with_copy(peer, records))
    running = asyncio.create_task(client.run())
    try:
        asked = await listener.hears(Tell)
        told = tuple(record.to_bytes() for record in records[asked.first_index :])
        client.send(History(asked.first_index, told))
        waiting = asyncio.create_task(listener.hears(Welcome))
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if running.done():
            running.result()
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)
    return listener


def test_keys_without_a_log_wait_for_a_copy_and_the_run_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEDGER_WAIT_S", 0.3)

    async def scene() -> None:
        invite, records = await begun(tmp_path, ALICE, BOB)
        lose_ledger(tmp_path)
        said: list[str] = []
        async with living(tmp_path, port=invite.port, tell=said.append) as again:
            assert str(again.invite) == str(invite)
            assert "The ledger is missing" in said[0] and "--new-run" in said[0]
            status = await asyncio.to_thread(ask, tmp_path)
            assert status["phase"] == "ledger missing"
            assert "ledger is missing" in status["waiting_for"]
            assert (await refusal(invite, EVE)).code == "SWT-E706"
            await brings(invite, BOB, records)
        store = Store.open(tmp_path)
        assert [r.hash for r in store.records()][: len(records)] == [r.hash for r in records]
        assert store.term > records[-1].term
        assert store.is_admitted(ALICE.peer_id) and store.invites()[0].uses == 2
        store.close()
        # The third life is one like any other.
        async with living(tmp_path, port=invite.port):
            assert (await asyncio.to_thread(ask, tmp_path))["phase"] != "ledger missing"

    run(scene())


def test_whom_the_lost_log_had_let_in_needs_no_use_of_an_invite(tmp_path: Path) -> None:
    """The store has forgotten its members, and the run's own invite may be for one peer only."""
    config = msgspec.structs.replace(CONFIG, admission=AdmissionSection(invite_uses=1))

    async def scene() -> None:
        async with (
            living(tmp_path, config) as life,
            connected(life.invite, ALICE) as (_, listener),
        ):
            told = await listener.hears(Records)
            records = [record_from_bytes(raw) for raw in told.records]
        lose_ledger(tmp_path)
        async with living(tmp_path, config, port=life.invite.port) as again:
            blank = Invite(
                "127.0.0.1", life.invite.port, "tests", life.invite.cert_sha256, b"-" * 16
            )
            # Nor is it asked for its copy, however long that is said to be.
            longer = msgspec.structs.replace(with_copy(EVE, records), head_index=10**9)
            assert (await refusal(blank, EVE, longer)).code == "SWT-E313"
            await brings(blank, ALICE, records)
            with pytest.raises(DoorRefused) as caught:
                # A stranger with a copy of the log is no member for that.
                async with connected(blank, EVE, hello=with_copy(EVE, records)):
                    pass
            assert caught.value.code == "SWT-E313"
            assert not again.task.done()

    run(scene())


def test_a_copy_of_a_run_with_other_settings_is_refused_as_at_any_start(tmp_path: Path) -> None:
    async def scene() -> None:
        invite, records = await begun(tmp_path, ALICE)
        lose_ledger(tmp_path)
        changed = msgspec.structs.replace(CONFIG, run=RunSection(name="tests", rounds=4))
        assert config_file.config_hash(changed) != config_file.config_hash(CONFIG)
        with pytest.raises(UserError) as caught:
            async with living(tmp_path, changed, port=invite.port) as life:
                bringing = asyncio.create_task(brings(invite, ALICE, records))
                await asyncio.wait([life.task])
                bringing.cancel()
                await asyncio.gather(bringing, return_exceptions=True)
        assert caught.value.code == "SWT-E606"

    run(scene())


def test_a_new_run_in_the_old_place_has_new_keys_and_keeps_the_old_files(tmp_path: Path) -> None:
    async def scene() -> None:
        invite, records = await begun(tmp_path, ALICE)
        for number in (1, 2):
            said: list[str] = []
            port = invite.port
            set_aside(tmp_path, said.append)
            async with living(tmp_path, port=port) as life:
                assert life.invite.cert_sha256 != invite.cert_sha256
                assert life.invite.secret != invite.secret
                assert f"before-{number}" in said[0]
                with pytest.raises(WrongKey):
                    async with connected(invite, ALICE):
                        pass
                error = await refusal(life.invite, ALICE, with_copy(ALICE, records))
                assert error.code == "SWT-E562" and "--state-dir" in error.remedy
                async with connected(life.invite, ALICE):
                    pass
        kept = tmp_path / "before-1"
        assert {RUN_KEY_FILE, TLS_FILE, SIDE_FILES[0]} <= {path.name for path in kept.iterdir()}
        # What was set aside is a state directory still.
        async with living(kept, port=invite.port) as old:
            assert str(old.invite) == str(invite)

    run(scene())


def test_a_new_run_does_not_push_a_running_one_aside(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path):
            with pytest.raises(UserError) as caught:
                set_aside(tmp_path, print)
            assert caught.value.code == "SWT-E404"
            assert not (tmp_path / "before-1").exists()

    run(scene())


def no_room(self: Store, record: Record) -> None:
    raise StoreFull("SWT-E402", "No room.")


def test_a_crash_between_keys_and_first_record_is_no_lost_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            pass
        (tmp_path / RUN_KEY_FILE).rename(tmp_path / FRESH_KEY_FILE)
        lose_ledger(tmp_path)
        async with living(tmp_path, port=life.invite.port) as again:
            assert again.invite.cert_sha256 == life.invite.cert_sha256
            async with connected(again.invite, ALICE):
                pass
        # Nor is a disk that had no room for the first record.
        (tmp_path / RUN_KEY_FILE).rename(tmp_path / FRESH_KEY_FILE)
        lose_ledger(tmp_path)
        with monkeypatch.context() as patched, pytest.raises(StoreFull):
            patched.setattr(Store, "append", no_room)
            async with living(tmp_path) as full:
                await full.task
        async with living(tmp_path) as roomy, connected(roomy.invite, ALICE):
            pass
        # Nor is a crash between the first record and the note of it.
        (tmp_path / RUN_KEY_FILE).rename(tmp_path / FRESH_KEY_FILE)
        async with living(tmp_path):
            assert (tmp_path / RUN_KEY_FILE).exists()
        lose_ledger(tmp_path)
        said: list[str] = []
        async with living(tmp_path, tell=said.append):
            assert "The ledger is missing" in said[0]

    run(scene())


@pytest.mark.parametrize(
    "lost", [(RUN_KEY_FILE,), (TLS_FILE,), (RUN_KEY_FILE, TLS_FILE), (*SIDE_FILES, RUN_KEY_FILE)]
)
def test_what_no_peer_can_bring_back_is_a_clear_error(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    async def scene() -> None:
        await begun(tmp_path, ALICE)
        for name in lost:
            (tmp_path / name).unlink(missing_ok=True)
        error = await fails(tmp_path)
        assert error.code == "SWT-E805" and "--new-run" in error.remedy
        assert any(name in error.what for name in lost)
        shutil.rmtree(tmp_path / "before-1", ignore_errors=True)
        set_aside(tmp_path, print)
        async with living(tmp_path) as life, connected(life.invite, ALICE):
            pass

    run(scene())

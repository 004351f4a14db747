"""The network side's shell: what it does about a fault that nobody foresaw."""

import asyncio
import contextlib
import dataclasses
import random
import socket

import pytest

from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.service import serve
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network import patience
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain_transport import actions as do
from swarmtrain_transport.blocks.manifest import ArraySpec, describe_state
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash

INVITE = Invite("127.0.0.1", 8400, "run", bytes(32), bytes(16))


def options_of(invite: Invite) -> JoinOptions:
    return JoinOptions(invite, "otter", Endpoint("127.0.0.1", 0), ())


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ZeroDivisionError("by zero"), "SWT-E901"),
        (RemoteFault("order", "second FREEZE"), "SWT-E501"),
        (UserError("SWT-E405", "Used up."), "SWT-E405"),
    ],
)
def test_whatever_an_event_raises_ends_the_peer_and_the_trainer_hears_it_once(
    tmp_path, fault, code
):
    """The error comes by a timer, a socket's callback or a call of the trainer's: the loop would
    log it and go on without the machine."""
    heard = []

    def event(participant, now_s):
        raise fault

    async def main():
        storage = PeerStorage(tmp_path)
        identity = Identity.create()
        shell = PeerShell(
            options_of(INVITE), storage, identity, to_trainer=heard.append, rng=random.Random(0)
        )
        shell._participant = object()
        shell.machine(event)
        shell.machine(event)
        await asyncio.gather(*shell._tasks)
        storage.close()

    asyncio.run(main())
    (told,) = heard
    assert told.code == code
    assert told is fault or told.__cause__ in (fault, None)
    assert (told.__cause__ is fault) == (code == "SWT-E901")


def test_who_was_in_a_run_that_is_finished_does_not_wait_for_its_coordinator(tmp_path, monkeypatch):
    """The script is started once more next morning: the coordinator ended with the run."""
    monkeypatch.setattr(patience, "PAUSE_FIRST_S", 0.0)
    monkeypatch.setattr(patience, "PAUSE_MAX_S", 0.0)
    # No run file asks for no rounds; a ledger without any is quicker made than one with some.
    monkeypatch.setattr(PeerStorage, "is_over", lambda storage, committed, rounds: committed == 0)
    done = RunConfig(
        run=RunSection(name="run", rounds=0), model=ModelSection(kind="custom"),
        data=DataSection(source="own"),
    )  # fmt: skip

    async def main():
        ended = asyncio.Event()
        await serve(
            done, tmp_path, "127.0.0.1", 0, "", on_ready=lambda invite: None, stop=ended,
            tell=lambda text: None,
        )  # fmt: skip
        with contextlib.closing(Store.open(tmp_path)) as store:
            records = store.records()
        assert records
        (tmp_path / "peer").mkdir()
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            invite = dataclasses.replace(INVITE, port=nobody.getsockname()[1])
            with contextlib.closing(PeerStorage(tmp_path / "peer")) as storage:
                storage.append_records(records)
            with contextlib.closing(PeerStorage(tmp_path / "peer")) as storage:
                shell = PeerShell(
                    options_of(invite),
                    storage,
                    Identity.create(),
                    to_trainer=lambda heard: None,
                    rng=random.Random(0),
                )
                async with asyncio.timeout(20):
                    await shell.run()

    with pytest.raises(UserError) as told:
        asyncio.run(main())
    assert told.value.code == "SWT-E705"
    assert str(tmp_path / "peer" / "checkpoints") in told.value.remedy


def test_what_the_machine_asks_to_keep_lies_with_its_group(tmp_path):
    manifest, _ = describe_state(bytes(32), (ArraySpec("anchor", 16),), bytes(64))
    chunk = b"a chunk"

    async def main():
        with contextlib.closing(PeerStorage(tmp_path)) as storage:
            shell = PeerShell(
                options_of(INVITE), storage, Identity.create(), to_trainer=lambda heard: None,
                rng=random.Random(0),
            )  # fmt: skip
            shell._link = object()
            for group in (0, 1):
                shell._act(
                    (
                        do.DownloadBegun(manifest, group),
                        do.KeepChunk(content_hash(chunk), chunk, group),
                        do.KeepProof(3 + group, b"proof", group),
                    )
                )

    asyncio.run(main())
    for folder, op in ((tmp_path, 3), (tmp_path / "groups" / "1", 4)):
        assert [one.name for one in (folder / "proofs").iterdir()] == [f"{op:08}.proof"]
    with contextlib.closing(PeerStorage(tmp_path)) as storage:
        for group in (0, 1):
            assert storage.of(group).download() == (manifest.to_bytes(), [chunk])

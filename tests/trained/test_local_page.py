"""The page of a peer's own directory: what the disk knows, for who has the link."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from swarmtrain.cli.main import main
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.credit.lifetime import Lifetime, file_name
from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.trained.local_page import STOPPED, LinkGuard, LocalRun, serve
from tests.transport.hall import Hall, opened
from tests.transport.rig import A, B, C

CONFIG = RunConfig(run=RunSection(name="tests", rounds=4))


def directory_of(hall: Hall, directory: Path) -> PeerStorage:
    storage = PeerStorage(directory)
    storage.of(0).keep_run(config_file.canonical(CONFIG))
    storage.append_records(hall.records)
    return storage


def trained(rounds: int) -> Hall:
    hall = opened(A, B, C)
    for op in range(1, rounds + 1):
        hall.run_op(op, A, B, C)
    return hall


def test_you_has_the_totals_of_all_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(dirs.LIFETIME, str(tmp_path / "lifetime"))
    one = Lifetime("another", "aa", "bb", round_tokens=10, merged={0: {1, 2, 7}})
    (tmp_path / "lifetime").mkdir()
    (tmp_path / "lifetime" / file_name(one)).write_bytes(msgspec.json.encode(one))
    directory_of(trained(1), tmp_path).close()
    assert dict(LocalRun(tmp_path).own())["merged in all runs"] == "3 rounds, 30 tokens"


def test_a_stopped_peer_is_shown_from_its_disk_and_what_comes_later_too(tmp_path):
    hall = trained(2)
    storage = directory_of(hall, tmp_path)
    run = LocalRun(tmp_path)
    assert (run.status().round, run.status().rounds, run.status().phase) == (2, 4, "training")
    assert [peer.name for peer in run.status().peers] == ["otter"] * 3
    assert dict(run.own())["state"] == STOPPED
    known = len(hall.records)
    for op in (3, 4):
        hall.run_op(op, A, B, C)
    storage.append_records(hall.records[known:])
    run.take(run.heard())
    assert run.status().round == 4 and run.num_records() == len(hall.records)
    assert run.status().phase == "finished"
    assert len([*run.records(known)]) == len(hall.records) - known
    storage.close()


def test_the_link_alone_opens_it():
    guard = LinkGuard()
    assert guard.enter("", "", 0.0) is None and guard.enter("0" * 32, "", 0.0) is None
    cookie = guard.enter(guard.secret, "", 0.0)
    assert cookie is not None and guard.judge(cookie)
    assert guard.judge("") is None and guard.judge(guard.secret) is None
    for _ in range(100):
        assert guard.enter(guard.secret, "", 0.0)
    assert guard.judge(cookie) is None, "the oldest page has gone"


def test_it_is_served_on_loopback_and_a_prompt_needs_a_checkpoint(tmp_path):
    directory_of(trained(2), tmp_path).close()
    found: list[Any] = []

    async def scene() -> None:
        stop, link = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(tmp_path, 0, stop, link.set_result))
        base, _, secret = (await link).partition("#")
        assert base.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as browser:
            async with browser.get(f"{base}api/v1/run") as answer:
                assert answer.status == 401
            browser.headers["Authorization"] = f"Bearer {secret}"
            async with browser.get(f"{base}api/v1/run") as answer:
                found.append(await answer.json())
            for body, status in (({"text": ""}, 400), ({"text": "x" * 5000}, 400), ({}, 400)):
                async with browser.post(f"{base}api/v1/prompt", json=body) as answer:
                    assert answer.status == status
            async with browser.post(f"{base}api/v1/prompt", json={"text": "def "}) as answer:
                assert answer.status == 409 and "error" in await answer.json()
        stop.set()
        await serving

    asyncio.run(scene())
    assert found[0]["you"] and found[0]["can_write"] and found[0]["round"] == 2


def test_a_folder_without_a_run_and_a_coordinators_are_told_apart(tmp_path, capfd):
    with pytest.raises(UserError) as caught:
        LocalRun(tmp_path)
    assert caught.value.code == "SWT-E806"
    (tmp_path / "coordinator.sqlite").write_bytes(b"")
    assert main(["page", "--state-dir", str(tmp_path / "nothing")]) == 66
    assert "SWT-E806" in capfd.readouterr().err

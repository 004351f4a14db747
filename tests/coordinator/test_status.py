import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from swarmtrain import status
from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError
from swarmtrain.status import NotRunning, StatusServer, ask, newest_state_dir, socket_path
from tests.coordinator.rig import run
from tests.coordinator.test_store import environment


class View(msgspec.Struct):
    """Status of a process in these tests."""

    round: int
    text: str = "é"


async def asked(directory: Path) -> dict[str, object]:
    return await asyncio.to_thread(ask, directory)


def test_a_process_answers_with_its_present_view(tmp_path: Path) -> None:
    async def scene() -> None:
        rounds = iter((1, 2))
        server = StatusServer(tmp_path, lambda: View(next(rounds)))
        await server.open()
        assert await asked(tmp_path) == {"round": 1, "text": "é"}
        assert (await asked(tmp_path))["round"] == 2
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
        await server.close()
        await server.close()
        assert not server.path.exists()

    run(scene())


def test_a_directory_that_its_user_has_made_may_be_named_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("state").mkdir(mode=0o755)

    async def scene() -> None:
        server = StatusServer(Path("state"), lambda: View(4))
        await server.open()
        assert (await asked(Path("state")))["round"] == 4
        await server.close()

    run(scene())


def test_a_path_that_is_too_long_moves_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr(status.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(status, "SOCKET_PATH_BYTES_MAX", len(str(temporary)) + 50)
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    async def scene() -> None:
        server = StatusServer(deep, lambda: View(7))
        await server.open()
        assert server.path.parent.parent == temporary
        assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
        assert (await asked(deep))["round"] == 7
        await server.close()

    run(scene())
    assert socket_path(deep) != socket_path(tmp_path / ("e" * 120))


def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(status, "SOCKET_PATH_BYTES_MAX", 1)
    folder = tmp_path / f"swarmtrain-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UserError) as caught:
        run(StatusServer(tmp_path, lambda: View(1)).open())
    assert caught.value.exit_status == 73


def test_not_running_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="no state directory") as strange:
        ask(tmp_path)
    assert (strange.value.code, strange.value.exit_status) == ("SWT-E806", 66)
    (tmp_path / "ledger.bin").touch()
    with pytest.raises(NotRunning, match="Not running") as caught:
        ask(tmp_path)
    assert (caught.value.code, caught.value.exit_status) == ("SWT-E204", 69)
    with pytest.raises(UserError) as missing:
        ask(tmp_path / "missing")
    assert (missing.value.code, missing.value.exit_status) == ("SWT-E806", 66)


def test_the_socket_of_a_killed_process_is_not_running_and_is_replaced(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    (tmp_path / "status.json").write_text(json.dumps({"socket": str(path), "pid": 1}))
    with pytest.raises(NotRunning):
        ask(tmp_path)

    async def scene() -> None:
        server = StatusServer(tmp_path, lambda: View(3))
        await server.open()
        assert (await asked(tmp_path))["round"] == 3
        await server.close()

    run(scene())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"socket": 5}', "\xff"])
def test_a_damaged_note_of_where_it_is_counts_as_not_running(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NotRunning):
        ask(tmp_path)


def test_the_newest_state_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirs, "runs_dir", lambda: tmp_path)
    with pytest.raises(UserError, match="No state directory"):
        newest_state_dir()
    for seconds, name in ((100, "a/coordinator"), (300, "a/peers/otter"), (200, "b/coordinator")):
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / "status.json").write_text("{}")
        os.utime(directory / "status.json", (seconds, seconds))
    assert newest_state_dir() == tmp_path / "a/peers/otter"
    assert newest_state_dir(tmp_path / "b") == tmp_path / "b/coordinator"


def test_asking_loads_no_torch_zmq_or_aiohttp() -> None:
    code = (
        "import sys, swarmtrain.status\n"
        "print(sorted({'torch', 'zmq', 'aiohttp', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), text=True, capture_output=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"

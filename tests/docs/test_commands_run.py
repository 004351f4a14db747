"""Commands of the pages, run one after the other as a reader would: a run is trained, looked at,
ruled, used and proven. Each command that can be run in seconds is; of the others, named below with
who does run them, `test_pages.py` checks that they would be understood."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from tests.docs.doc_pages import TOML, Command, all_commands, blocks
from tests.e2e.e2e_rig import SMALL_MODEL, place

pytestmark = pytest.mark.timeout(300)

ELSEWHERE = {
    "up": "the run below",
    "join": "the run below",
    "demo": "tests/demo",
    "emulate": "tests/emulate",
    "chaos": "tests/chaos",
    "relay": "tests/e2e/test_relay.py",
    "page": "tests/trained/test_local_page.py",
    "limits": "tests/cli/test_limits.py",
    "service": "tests/service/test_service_files.py",
    **dict.fromkeys(("pause", "resume", "finish", "leave"), "tests/e2e/test_paused.py"),
    "simulate": "tests/simulate",
    "compare": "tests/compare",
}
"""Commands that are not run here, by who runs them."""

ORDER = ("explain", "doctor", "plan", "status", "why", "peers", "invite", "run", "export",
         "generate", "evaluate", "ckpt", "logs", "verify", "me", "receipts")  # fmt: skip
"""All others, in the order of a run. The run has ended once and waits for peers again; peers are
banned, and invites withdrawn, of nobody who is there."""

RUN = f"""
[run]
name = "tiny"
rounds = 3
{SMALL_MODEL}
[checkpoint]
every_rounds = 1
"""


def commands_of_ours() -> list[Command]:
    return [one for one in all_commands() if one.words and one.words[0] == "swarmtrain"]


def test_every_command_is_run_here_or_elsewhere():
    named = {one.words[1] for one in commands_of_ours() if not one.words[1].startswith("-")}
    assert named <= {*ORDER, *ELSEWHERE}


def to_run() -> list[Command]:
    """One of each, in order."""
    found = {
        one.words: one for one in reversed(commands_of_ours())
        if one.words[1] in ORDER and "--measured" not in one.words  # tests/plan/test_measured.py
    }  # fmt: skip
    by_page = sorted(reversed(found.values()), key=lambda one: (one.block.page, one.block.line))
    return sorted(by_page, key=lambda one: ORDER.index(one.words[1]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-text").mkdir()
    (tmp_path / "my-text" / "some.txt").write_text("def f(x):\n    return x\n" * 9)
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"This is text number {number}. " * 2000)
    yield tmp_path


def prepared(command: Command, folder: Path, peer: Path) -> list[str]:
    """The command's words with what is here in the place of what a reader would put there."""
    beside = [
        block for block in blocks(TOML)
        if block.page == command.block.page and block.line < command.block.line
        and "[run]" in block.text
    ]  # fmt: skip
    (folder / "run.toml").write_text(beside[-1].text if beside else RUN)
    here = {
        "STATE_DIR": peer, "DIR": peer, "DIRECTORY...": peer, "RUN": "tiny", "PATH": "my-text",
        "NAME": "bob",
    }  # fmt: skip
    words = [str(here.get(word, word)) for word in command.words[1:]]
    if words[0] == "logs":
        (folder / words[words.index("--out") + 1]).unlink(missing_ok=True)
    if words[0] == "export":
        shutil.rmtree(folder / words[words.index("--to") + 1], ignore_errors=True)
    return words


def test_the_commands_of_the_pages_run(folder: Path, capfd: pytest.CaptureFixture[str]):
    with place(folder) as here:
        first = here.run_file(RUN, "first")
        up = here.command("up", first, "--listen", "127.0.0.1:0", "--json-events")
        invite = str(up.event("ready")["invite"])
        otter = here.command("join", "--name", "otter", SWARMTRAIN_INVITE=invite)
        assert otter.end() == 0 and up.end() == 0, f"{otter}\n{up}"
        (peer,) = folder.glob("**/peers/otter")

        up = here.command(
            "up", first, "--rounds", 60, "--listen", "127.0.0.1:0", "--json-events"
        )  # fmt: skip
        up.event("ready")
        failed = []
        for command in to_run():
            words = prepared(command, folder, peer)
            capfd.readouterr()
            status = main(words)
            told = "".join(capfd.readouterr())
            if status != 0 or not told.strip():
                failed.append(f"{command}: status {status}\n{told}")
        assert not failed, "\n\n".join(failed)
        up.interrupt()
        assert up.end() == 0
    assert os.environ.get("SWARMTRAIN_INVITE") is None

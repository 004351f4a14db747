"""Real processes of the real commands, heard through their events. Nothing here waits by the clock:
the deadlines only end a test that would hang, with everything that the processes have said."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from swarmtrain.cli.main import main
from swarmtrain.foundation.errors import UserError
from swarmtrain.status import ask

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0

SMALL_MODEL = """
[model]
layers = 1
width = 16
heads = 2
context = 32
[inner]
batch = 4
[outer]
inner_steps = 8
"""


class Running:
    """One process, the lines it has printed, and what it said to people."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words = words
        self.lines: list[str] = []
        self._said: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**environment, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._ears = [
            threading.Thread(target=self._hear, args=(stream, kept), daemon=True)
            for stream, kept in (
                (self.process.stdout, self.lines),
                (self.process.stderr, self._said),
            )
        ]
        for ear in self._ears:
            ear.start()

    def _hear(self, stream: Any, kept: list[str]) -> None:
        for line in stream:
            with self._news:
                kept.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def said(self) -> str:
        return "".join(self._said)

    def wait(self, what: str, found: Callable[[], Any]) -> Any:
        """The first true value of `found`, looked at whenever the process prints something."""
        deadline_s = time.monotonic() + DEADLINE_S
        with self._news:
            while not (value := found()):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not any(ear.is_alive() for ear in self._ears):
                    pytest.fail(f"{what} never came from {self.words}\n{self}")
                self._news.wait(left_s)
        return value

    def event(self, name: str, start: int = 0, **facts: Any) -> dict[str, Any]:
        """The first event of that name with those facts, from line `start` on; a fact may be a
        test of the value."""

        def found() -> dict[str, Any] | None:
            for line in self.lines[start:]:
                told = json.loads(line)
                if told["event"] == name and all(_fits(told.get(k), v) for k, v in facts.items()):
                    return dict(told)
            return None

        return self.wait(f"{name} {facts}", found)

    def end(self) -> int:
        """The exit status; everything that it said is here then."""
        try:
            status = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.words} did not end\n{self}")
        for ear in self._ears:
            ear.join(DEADLINE_S)
        assert "Traceback" not in self.said, self.said
        return status

    def close(self) -> None:
        """Nothing of it is left."""
        if self.process.poll() is None:
            self.kill()
        for ear in self._ears:
            ear.join(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __str__(self) -> str:
        return "".join(["stdout:\n", *self.lines[-30:], "stderr:\n", *self._said[-60:]])


def _fits(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else value == wanted


class Place:
    """Place of a test's processes; all of them are gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Running] = []
        parts = (ROOT, ROOT / "transport", ROOT / "optimizers")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, parts)),
            "XDG_STATE_HOME": str(folder / "state-home"),
            "OMP_NUM_THREADS": "1",
        }
        self.environment.pop("SWARMTRAIN_INVITE", None)

    def start(self, *words: object, **environment: str) -> Running:
        running = Running([sys.executable, *map(str, words)], {**self.environment, **environment})
        self._started.append(running)
        return running

    def command(self, *words: object, **environment: str) -> Running:
        return self.start("-m", "swarmtrain", *words, **environment)

    def run_file(self, text: str, name: str = "run") -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(text)
        return file

    def up(self, run_file: Path, *words: object, port: int = 0, state: str = "coordinator") -> "Up":
        """A coordinator; `ready` waits until it is."""
        return Up(
            self.command(
                "up", run_file, "--listen", f"127.0.0.1:{port}", "--json-events",
                "--state-dir", self.folder / state, "--linger", "0", *words,
            ),
            self.folder / state,
        )  # fmt: skip

    def join(self, invite: str, name: str, *words: object) -> Running:
        """A peer with its own state directory."""
        return self.command(
            "join", invite, "--name", name, "--yes", "--json-events",
            "--state-dir", self.folder / name, *words,
        )  # fmt: skip

    def close(self) -> None:
        for running in self._started:
            running.close()


class Up:
    """A coordinator's process."""

    def __init__(self, running: Running, state_dir: Path) -> None:
        self.running = running
        self.state_dir = state_dir

    @property
    def invite(self) -> str:
        return str(self.running.event("ready")["invite"])

    @property
    def port(self) -> int:
        return int(self.running.event("ready")["port"])

    def status(self) -> dict[str, Any]:
        return ask(self.state_dir)

    def status_when(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first status for which that holds. Asking is the only way to learn of it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            try:
                view = self.status()
            except UserError:
                view = {}
            if view and holds(view):
                return view
            time.sleep(0.05)
        pytest.fail(f"status never came so far: {view}\n{self.running}")

    def stop(self) -> None:
        """Interrupt it, unless it has just come to its run's end by itself."""
        self.running.interrupt()
        status = self.running.end()
        has_finished = any('"finished"' in line for line in self.running.lines)
        assert status == 0 or (has_finished and status == 130), f"{status}\n{self.running}"


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    made = Place(folder)
    try:
        yield made
    finally:
        made.close()


def answer(*words: object) -> str:
    """Stdout of a command that starts no process. It runs in this one: another would load torch."""
    told = io.StringIO()
    with redirect_stdout(told):
        status = main([str(word) for word in words])
    assert status == 0, told.getvalue()
    return told.getvalue()


def outcomes(state_dir: Path) -> dict[int, str]:
    """COMMIT or SKIP per op, from the ledger of a coordinator that has stopped; each op once. What
    a REWIND has cancelled is no outcome any more."""
    ledger = sqlite3.connect(f"file:{state_dir / 'ledger.sqlite'}?mode=ro", uri=True)
    try:
        rows = ledger.execute(
            "SELECT op, kind FROM log WHERE op IS NOT NULL AND kind IN ('COMMIT', 'SKIP')"
            " ORDER BY idx"
        ).fetchall()
        indices = [index for (index,) in ledger.execute("SELECT idx FROM log ORDER BY idx")]
    finally:
        ledger.close()
    assert indices == list(range(len(indices)))
    assert [op for op, _ in rows] == list(range(1, len(rows) + 1))
    return dict(rows)


def saved_root(state_dir: Path) -> tuple[int, str]:
    """Op and state root of the newest checkpoint of a peer."""
    newest = max((state_dir / "checkpoints").glob("op-*"))
    manifest = json.loads((newest / "manifest.json").read_bytes())
    return manifest["op"], manifest["state_root"]

"""`swarmtrain up` as its own process: the invite, the restart, the port, the end."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    parts = (ROOT, ROOT / "transport", ROOT / "optimizers")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts))}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "swarmtrain", *map(str, words)]


@contextmanager
def running(*words: object) -> Iterator[tuple[subprocess.Popen, dict]]:
    """The coordinator, once it has said that it is ready."""
    process = subprocess.Popen(
        command("up", *words, "--json-events"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    try:
        line = process.stdout.readline()
        if not line:
            pytest.fail(process.communicate()[1])
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "tiny"\n')
    return file


def test_a_coordinator_stops_cleanly_and_its_invite_survives_the_restart(run_file, tmp_path):
    state = tmp_path / "state"
    words = (run_file, "--listen", "127.0.0.1:0", "--state-dir", state)
    with running(*words) as (process, ready):
        assert (ready["event"], ready["run"]) == ("ready", "tiny")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
    with running(*words) as (process, again):
        # The port is another one, as asked; key and secret are what lets an old invite in.
        assert again["invite"].partition("#")[2] == ready["invite"].partition("#")[2]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_a_port_in_use_is_one_clear_message(run_file, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("up", run_file, "--listen", f"127.0.0.1:{port}", "--state-dir", tmp_path / "s")
        ended = subprocess.run(
            command(*words), env=environment(), capture_output=True, text=True, check=False
        )
    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr.startswith("SWT-E201  ")
    assert str(port) in ended.stderr

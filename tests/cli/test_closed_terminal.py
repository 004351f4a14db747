"""Real processes whose terminal, or whose reader, goes away."""

import os
import signal
import subprocess

import pytest
from terminal import in_terminal, read_until
from test_up import command, environment

from swarmtrain.status import ask

DEADLINE_S = 60


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "tiny"\n')
    listen = ("--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state")
    return command("up", file, *listen)


def test_a_coordinator_whose_terminal_is_closed_stops_cleanly(words, tmp_path):
    with in_terminal(words, environment()) as (process, ours):
        read_until(ours, b"swarm://")
        os.close(ours)
        assert process.wait(DEADLINE_S) == 0
    assert not (tmp_path / "state/ledger.sqlite-wal").exists()  # folded in, as at every clean end
    assert not (tmp_path / "state/status.sock").exists()


def test_under_nohup_it_goes_on(words, tmp_path):
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("swarm://")
        process.send_signal(signal.SIGHUP)
        assert ask(tmp_path / "state")["run"] == "tiny"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_readers_that_have_gone_do_not_spoil_the_end(words):
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    )
    try:
        assert process.stdout.readline().startswith("swarm://")
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()

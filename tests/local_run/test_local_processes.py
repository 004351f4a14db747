"""Nothing outlives the demo. The children here are interpreters that wait, not peers."""

import os
import queue
import signal
import subprocess
import sys

import pytest

from swarmtrain.foundation.events import In, Ready
from swarmtrain.local_run.place import Place
from swarmtrain.local_run.processes import Ended, News, Processes, tail

DEADLINE_S = 30.0

# The handler stands before the first word is said: Ctrl+C may follow any word at once.
STAND_IN = """
import signal, sys
patience = signal.SIG_IGN if "stubborn" in sys.argv[0] else lambda *_: sys.exit(0)
signal.signal(signal.SIGINT, patience)
if "stubborn" in sys.argv[0]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"event": "in", "peer": "ab", "name": "otter"}', flush=True)
line = sys.stdin.readline().strip()
print("no event", flush=True)
print("words", file=sys.stderr, flush=True)
print('{"event": "ready", "invite": "%s"}' % line, flush=True)
signal.pause()
"""


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Processes whose children are stand-ins for `python -m swarmtrain`."""
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        if "swarmtrain" in command:
            name = "stubborn" if "stubborn" in command else "gentle"
            command = [sys.executable, "-c", f"import sys; sys.argv = [{name!r}]\n{STAND_IN}"]
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    running = Processes(Place.make(tmp_path / "demo"))
    yield running
    running.close()


def next_news(processes: Processes) -> News:
    return processes.news.get(timeout=DEADLINE_S)


def test_what_a_process_says_comes_as_events_and_stands_in_its_log(processes, tmp_path):
    processes.start_peer("otter", freeze_in_round=3)
    assert next_news(processes) == ("otter", In("ab", "otter"))
    processes.hand_invite("otter", "swarm://invite")
    assert next_news(processes) == ("otter", Ready("swarm://invite"))
    processes.stop(patience_s=DEADLINE_S)
    assert next_news(processes) == ("otter", Ended(0))
    log = (tmp_path / "demo" / "logs" / "otter.log").read_text()
    assert log.startswith("$ swarmtrain join --invite-file - --name otter")
    assert "--freeze-in-round 3" in log
    assert "no event" in log and "words" in log
    assert "ready" in tail(tmp_path / "demo" / "logs" / "otter.log")[-1]


def test_a_killed_process_ends_by_the_signal(processes):
    processes.start_peer("otter")
    next_news(processes)
    processes.kill("otter")
    assert next_news(processes) == ("otter", Ended(-signal.SIGKILL))
    processes.hand_invite("otter", "too late")


def test_a_name_may_be_started_again_once_it_has_ended(processes, tmp_path):
    processes.start_peer("otter")
    next_news(processes)
    processes.send_signal("otter", signal.SIGKILL)
    assert next_news(processes) == ("otter", Ended(-signal.SIGKILL))
    processes.start_peer("otter", advertise="127.0.0.1:9000")
    assert next_news(processes) == ("otter", In("ab", "otter"))
    log = (tmp_path / "demo" / "logs" / "otter.log").read_text()
    assert log.count("$ swarmtrain join") == 2
    assert "--advertise 127.0.0.1:9000" in log


def test_a_process_that_hears_no_signal_is_killed(processes):
    processes.start_peer("stubborn")
    next_news(processes)
    processes.hand_invite("stubborn", "x")
    next_news(processes)
    processes.stop(patience_s=0.1)
    assert next_news(processes) == ("stubborn", Ended(-signal.SIGKILL))


def test_closing_ends_whoever_is_left_also_when_stopped(processes):
    processes.start_coordinator()
    processes.start_peer("otter")
    for _ in range(2):
        next_news(processes)
    pid = processes._running["otter"].pid
    os.kill(pid, signal.SIGSTOP)
    processes.close()
    endings = dict(next_news(processes) for _ in range(2))
    assert endings == {"coordinator": Ended(-9), "otter": Ended(-9)}
    with pytest.raises(queue.Empty):
        processes.news.get_nowait()


def test_when_the_demo_is_gone_its_guard_ends_the_whole_group():
    guard = subprocess.Popen(
        [sys.executable, "-m", "swarmtrain.local_run.guard"],
        stdin=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
        stdout=subprocess.PIPE, process_group=guard.pid,
    )  # fmt: skip
    assert guard.stdin is not None and child.stdout is not None
    with child.stdout, guard.stdin:
        assert child.stdout.readline() == b"up\n"
        guard.stdin.close()
        assert child.wait(DEADLINE_S) == -signal.SIGTERM
        assert guard.wait(DEADLINE_S) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.killpg(guard.pid, 0)


def test_a_missing_log_is_said_and_not_raised(tmp_path):
    (line,) = tail(tmp_path / "none.log")
    assert "cannot be read" in line

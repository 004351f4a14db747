"""The command itself in its short form: real processes, a handful of deeds, every check."""

import json
import signal
import subprocess
import sys

import pytest

from swarmtrain.chaos import run
from swarmtrain.chaos.evidence import judge
from swarmtrain.chaos.invariants import Life, Violation
from swarmtrain.chaos.report import Report
from swarmtrain.config.options import ChaosOptions
from swarmtrain.foundation.events import StateInPlace
from swarmtrain.local_run.place import Place
from swarmtrain.peer.disk import ledger_file
from tests.processes import living_in

CHAOS = [sys.executable, "-m", "swarmtrain", "chaos", "--peers", "3"]


@pytest.mark.timeout(400)
def test_a_short_chaos_holds_and_what_is_tampered_with_afterwards_is_found(tmp_path):
    place = tmp_path / "chaos"
    ran = subprocess.run(
        [*CHAOS, "--for", "20s", "--seed", "11", "--json", "--state-dir", str(place)],
        capture_output=True, text=True, timeout=380,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["violations"] == [] and found["equal"]
    assert (found["seed"], found["peers"], found["state_dir"]) == (11, 3, str(place))
    assert sum(found["deeds"].values()) >= 1
    assert found["commits"] >= 1
    assert found["rounds"] == found["commits"] + found["skips"]
    assert len({entry["root"] for entry in found["state_roots"]}) == 1
    assert not living_in(place)

    one, other = (place / "peers" / entry["peer"] for entry in found["state_roots"][:2])
    ledger = bytearray((one / ledger_file.FILE_NAME).read_bytes())
    ledger[-1] ^= 1
    (one / ledger_file.FILE_NAME).write_bytes(ledger)
    newest = max((other / "checkpoints").glob("op-*"))
    (newest / "manifest.json").unlink()
    lives = [Life(folder.name, "", [StateInPlace(0)]) for folder in (one, other)]
    verdict = judge(Place(place), lives)
    assert [violation.invariant for violation in verdict.violations] == ["verify", "verify"]
    assert verdict.violations[0].story.startswith(one.name)
    assert verdict.violations[1].story.startswith(other.name)


def test_ctrl_c_ends_everything_and_keeps_the_files(tmp_path):
    place = tmp_path / "chaos"
    with subprocess.Popen(
        [*CHAOS, "--state-dir", str(place)], stderr=subprocess.PIPE, text=True
    ) as chaos:
        assert chaos.stderr is not None
        assert chaos.stderr.readline() == f"All files: {place}\n"
        chaos.send_signal(signal.SIGINT)
        assert "Traceback" not in chaos.stderr.read()
    assert chaos.returncode == 130
    assert not living_in(place)
    assert (place / "run.toml").is_file()


def report(*violations: Violation) -> Report:
    return Report(
        seconds=1.0, seed=7, peers=3, commits=2, skips=0, rewinds=0, restarts=1,
        state_roots=(), equal=not violations, violations=violations,
        rounds=2, deeds={"kill": 1}, passed_over=0,
    )  # fmt: skip


@pytest.mark.parametrize("violations", [(), (Violation("I2", "states differ"),)])
def test_files_are_removed_only_when_everything_holds(tmp_path, monkeypatch, violations):
    class Staged:
        inner_steps = 5
        wait_ready_s = 60.0

        def __init__(self, *arguments: object) -> None: ...

        def run(self) -> Report:
            return report(*violations)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[str] = []
    found = run.run_chaos(ChaosOptions(10.0, 7, 3, None), said.append, Staged)
    kept = list(tmp_path.glob("swarmtrain-chaos-*"))
    assert bool(kept) == bool(violations)
    assert found.state_dir == (str(kept[0]) if kept else "")
    words = "\n".join(found.in_words())
    assert ("I2: states differ" in words) == bool(violations)

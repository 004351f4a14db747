"""Variables of the environment reach a program that takes part, and its events come out."""

import os
import signal
import subprocess
import sys

from swarmtrain.foundation.events import RoundEnded, StateInPlace, parse
from swarmtrain.hook.environment import Surroundings
from swarmtrain.local_run import marks

DEADLINE_S = 30.0


def test_what_is_not_said_is_empty_and_events_go_nowhere():
    found = Surroundings.read({"SWARMTRAIN_NAME": " otter "})
    assert found == Surroundings(name="otter")
    found.emit()(StateInPlace(3))


def test_events_are_appended_as_lines(tmp_path):
    emit = Surroundings.read({"SWARMTRAIN_EVENTS": str(tmp_path / "events")}).emit()
    told = [StateInPlace(3), RoundEnded(4, "merged", 2, "ab", loss=1.5)]
    for event in told:
        emit(event)
    assert [parse(line) for line in (tmp_path / "events").read_bytes().splitlines()] == told


def test_a_mark_finds_what_has_left_the_process_group_and_nothing_else():
    waits = [sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"]
    bearing, other = (
        subprocess.Popen(
            waits, stdout=subprocess.PIPE, start_new_session=True,
            env={**os.environ, marks.VARIABLE: mark},
        )
        for mark in ("emulation-7/otter", "emulation-70/otter")
    )  # fmt: skip
    try:
        for process in (bearing, other):
            assert process.stdout is not None and process.stdout.readline()
        marks.end_marked("emulation-7")
        assert bearing.wait(DEADLINE_S) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (bearing, other):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

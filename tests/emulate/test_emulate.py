"""The command as anybody would run it: a tiny program, one that does not join, and Ctrl+C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import living_in

ROOT = Path(__file__).resolve().parents[2]

EMULATE = [sys.executable, "-m", "swarmtrain", "emulate", "--peers", "2"]

JOINS = """
import torch
import swarmtrain

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with swarmtrain.join(model, optimizer) as swarm:
    while not swarm.should_stop:
        x = torch.randn(8, 4)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        swarm.log(loss=loss)
        optimizer.step()
"""

NEVER = "print('nothing of the kind')"

SPAWNS = """
import os, signal, subprocess, sys
sign = os.open(sys.argv[1], os.O_WRONLY)
words = [sys.executable, "-c", "import signal; signal.pause()", sys.argv[1]]
subprocess.Popen(words, start_new_session=True, pass_fds=[sign])
os.write(sign, b".")
signal.pause()
"""


def program(folder: Path, text: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(text)
    return ["--", sys.executable, str(path)]


@pytest.mark.timeout(300)
def test_two_copies_end_with_the_same_bits_by_links_that_are_modelled(tmp_path):
    place = tmp_path / "place"
    ran = subprocess.run(
        [*EMULATE, "--rounds", "2", "--inner-steps", "5", "--net", "dsl", "--links", "modelled",
         "--json", "--state-dir", str(place), *program(tmp_path, JOINS)],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert (found["rounds"], found["is_finished"], found["equal"]) == (2, True, True)
    assert found["loss_last"] < found["loss_first"]
    assert [peer["peer"] for peer in found["peers"]] == ["badger", "crane"]
    assert all(peer["round"] == 2 and peer["bytes_up"] > 0 for peer in found["peers"])
    assert len({root for peer in found["peers"] for root in peer["roots"].values()}) == 1
    assert "all hold the same weights" in ran.stderr
    assert not living_in(place)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [["examples/plain_loop.py"],
     ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
      "examples/torchrun_fsdp.py"]],
    ids=["plain", "torchrun"],
)  # fmt: skip
def test_copies_of_an_example_read_other_data(tmp_path, words):
    ran = subprocess.run(
        [*EMULATE, "--rounds", "1", "--inner-steps", "2", "--state-dir", str(tmp_path / "place"),
         "--", sys.executable, *words],
        capture_output=True, text=True, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    logs = [(tmp_path / "place/logs" / f"{name}.log").read_text() for name in ("badger", "crane")]
    first = [re.search(r"step    0  loss ([0-9.]+)", log) for log in logs]
    assert all(first) and first[0][1] != first[1][1], logs


@pytest.mark.timeout(120)
def test_a_program_that_never_joins_is_told_with_its_last_lines(tmp_path):
    ran = subprocess.run(
        [*EMULATE, *program(tmp_path, NEVER)], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 78
    assert "SWT-E651" in ran.stderr and "| nothing of the kind" in ran.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_it_also_not_what_a_program_has_set_free(tmp_path, number):
    place, sign = tmp_path / "place", tmp_path / "sign"
    os.mkfifo(sign)
    with subprocess.Popen(
        [*EMULATE, "--state-dir", str(place), *program(tmp_path, SPAWNS), str(sign)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as emulation, sign.open("rb", buffering=0) as held:  # fmt: skip
        assert held.read(1) == b"."
        emulation.send_signal(number)
        # The programs and what they have started hold its other end, until the last of them ends.
        while held.read(1):
            pass
        emulation.wait(60)
    if number == signal.SIGINT:
        assert emulation.returncode == 130
    assert not living_in(tmp_path)


def test_a_program_that_is_not_there_is_told_at_once(tmp_path):
    ran = subprocess.run([*EMULATE, "--", "no-such-program"], capture_output=True, text=True)
    assert ran.returncode == 66 and "SWT-E653" in ran.stderr

"""The smallest demo with a death and a newcomer, for real: processes, sockets, encryption, torch.

One test, because it costs a minute: every promise of the demo's last line is checked on it.
"""

import json
import signal
import subprocess
import sys

import pytest
import safetensors.torch

from swarmtrain.status import ask
from tests.processes import living_in

COMMAND = [sys.executable, "-m", "swarmtrain", "demo"]


@pytest.mark.timeout(300)
def test_a_demo_with_a_death_and_a_newcomer_ends_with_equal_roots(tmp_path):
    place = tmp_path / "demo"
    ran = subprocess.run(
        [*COMMAND, "--peers", "3", "--rounds", "5", "--json", "--state-dir", str(place)],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])

    assert (found["peers"], found["rounds"]) == (3, 5)
    roots = {entry["peer"]: entry["root"] for entry in found["state_roots"]}
    assert len(roots) == 3 and len(set(roots.values())) == 1
    killed = found["killed"]
    assert killed["round"] == 3
    assert 0 < killed["chunks_sent"] < killed["chunks_total"]
    assert found["lost"] == [{"peer": killed["peer"], "round": 3}]
    assert [entry["peer"] for entry in found["joined"]] == [
        name for name in roots if name == "newt"
    ]
    assert found["joined"][0]["round"] >= 4
    assert found["replayed_ops"] >= 1
    assert found["val_loss_last"] < found["val_loss_order0"] < found["val_loss_first"]
    assert 0 < found["bytes_up_per_peer"] < found["bytes_up_data_parallel"]

    model = safetensors.torch.load_file(found["model_path"])
    num_values = sum(tensor.numel() for tensor in model.values())
    assert found["bytes_up_data_parallel"] == 2 * 2 * 4 * num_values * 100 // 3
    for name, root in roots.items():
        manifest = place / "peers" / name / "checkpoints" / "op-000005" / "manifest.json"
        assert json.loads(manifest.read_text())["state_root"] == root
    # Nobody answers any more: what the run has come to stands in its directory.
    assert ask(place / "coordinator")["process"] == "has ended"
    assert living_in(place) == []


@pytest.mark.timeout(120)
def test_ctrl_c_ends_every_process_of_a_demo(tmp_path):
    place = tmp_path / "demo"
    with subprocess.Popen(
        [*COMMAND, "--no-churn", "--peers", "2", "--rounds", "50", "--state-dir", str(place)],
        stdout=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        for line in demo.stdout:
            if "is in" in line:
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(60) == 130
    assert "stopping" in rest
    assert living_in(place) == []


@pytest.mark.parametrize("words", [("--peers", "2"), ("--rounds", "4")])
def test_churn_with_too_little_of_everything_is_a_misuse(words):
    ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "--no-churn" in ran.stderr
    assert ran.stdout == ""

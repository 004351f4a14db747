"""The command itself in its short form: real processes, a handful of deeds, every check."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(400)
def test_a_short_chaos_holds_and_removes_its_files(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "swarmtrain", "chaos", "--for", "20s", "--seed", "11",
         "--peers", "3", "--json"],
        capture_output=True, text=True, timeout=380, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["violations"] == [] and found["equal"]
    assert found["seed"] == 11 and found["peers"] == 3
    assert sum(found["deeds"].values()) >= 1
    assert found["commits"] >= 1
    assert found["rounds"] == found["commits"] + found["skips"]
    assert len({entry["root"] for entry in found["state_roots"]}) == 1
    assert found["state_dir"] == ""
    assert not list(tmp_path.glob("swarmtrain-chaos-*"))

"""Containers: the scripts can be read, and, where somebody asks for it, the run for real.

SWARMTRAIN_DOCKER=1 with a built image runs the smoke test, which takes minutes.
"""

import os
import subprocess
from pathlib import Path

import pytest

COMPOSE = Path(__file__).resolve().parents[2] / "compose"


@pytest.mark.parametrize("script", sorted(COMPOSE.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_can_be_read(script):
    shell = "bash" if script.name == "smoke.sh" else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)


def test_text_that_was_named_and_is_not_there_begins_no_run_on_other_text():
    ran = subprocess.run(
        ["sh", str(COMPOSE / "coordinator.sh")], env=os.environ | {"TEXT": "/home/me/boks"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 78 and ran.stdout == ""
    assert ran.stderr.startswith("TEXT=/home/me/boks: no file of it can be read here.")


def test_run_files_of_the_profiles_are_run_files():
    from swarmtrain.config import file as config_file

    for path in COMPOSE.glob("*.toml"):
        assert config_file.load(path).exchange.start_peers >= 4


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("SWARMTRAIN_DOCKER"), reason="SWARMTRAIN_DOCKER is not set")
@pytest.mark.parametrize("profile", ["open", "dsl", "pipeline", "nat", "postgres"])
def test_a_run_in_containers_loses_one_and_gains_one(profile):
    ran = subprocess.run([str(COMPOSE / "smoke.sh"), profile], capture_output=True, text=True)
    if ran.returncode == 77:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "equal roots" in ran.stdout

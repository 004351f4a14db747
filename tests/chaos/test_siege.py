"""The command with a hostile member in its short form: real processes, every offence, every check.

One siege for all tests; each offence has its phase of a few seconds in it.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from swarmtrain.chaos.siege.offences import Offence
from swarmtrain.chaos.siege.phases import TOGETHER, UNDISTURBED
from swarmtrain.chaos.siege.report import WEIGHT_MAX
from tests.processes import living_in

CHAOS = [sys.executable, "-m", "swarmtrain", "chaos"]

TIMEOUT_S = 420


@pytest.fixture(scope="module")
def besieged(tmp_path_factory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("siege") / "run"
    ran = subprocess.run(
        [
            *CHAOS, "--hostile", "all", "--peers", "4", "--for", "60s", "--seed", "3", "--json",
            "--state-dir", str(place),
        ],
        capture_output=True, text=True, timeout=TIMEOUT_S - 20,
    )  # fmt: skip
    assert not living_in(place)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert (found["peers"], found["state_dir"]) == (4, str(place))
    return found


def offended(besieged: dict[str, Any], phase: str) -> dict[str, int]:
    """Return how often the hostile member did what in the phase of this name."""
    (counts,) = [found["offended"] for found in besieged["phases"] if found["name"] == phase]
    return counts


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("offence", list(Offence))
def test_every_offence_is_committed_in_its_phase(besieged, offence):
    assert offended(besieged, offence).get(offence, 0) > 0


@pytest.mark.timeout(TIMEOUT_S)
def test_before_the_first_offence_rounds_are_committed_and_nothing_is_done(besieged):
    assert offended(besieged, UNDISTURBED) == {}
    assert besieged["undisturbed"]["per_s"] > 0.0


@pytest.mark.timeout(TIMEOUT_S)
def test_together_they_come_in_turn(besieged):
    assert len(offended(besieged, TOGETHER)) > 1


@pytest.mark.timeout(TIMEOUT_S)
def test_the_honest_end_with_equal_roots_and_nobody_of_them_dies_or_is_thrown_out(besieged):
    assert besieged["equal"] and len(besieged["state_roots"]) == 3
    assert besieged["restarts"] == 0
    # How fast rounds are beside whatever else this machine does is judged by longer runs alone.
    kinds = {violation["invariant"] for violation in besieged["violations"]}
    assert kinds <= {"rate", "share"}, besieged["violations"]


@pytest.mark.timeout(TIMEOUT_S)
def test_a_boast_counts_four_times_the_others_and_no_more(besieged):
    assert 1.5 < besieged["weight"] <= WEIGHT_MAX


@pytest.mark.timeout(TIMEOUT_S)
def test_the_hostile_member_is_named(besieged):
    assert besieged["marks"]


def test_an_offence_that_is_none_is_refused_with_those_that_there_are():
    ran = subprocess.run([*CHAOS, "--hostile", "boast,shout"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "'shout' is no offence" in ran.stderr and "boast" in ran.stderr

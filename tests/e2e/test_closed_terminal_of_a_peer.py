"""A peer is started before its run is, and its terminal is closed in the middle of it.

It waits, saying so, and comes in; when the window goes it leaves as with Ctrl+C: the round is
finished, the coordinator hears goodbye, and another peer goes on."""

import os
import sys

import pytest
from e2e_rig import DEADLINE_S, SMALL_MODEL, place
from test_life import merged_after

from tests.cli.terminal import in_terminal, read_until

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "hung"
rounds = 100000
{SMALL_MODEL}
[exchange]
start_peers = 2
min_contributors = 1
wait_ready_s = 10.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
"""


def test_a_peer_waits_for_its_run_and_leaves_cleanly_with_its_terminal(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        first = here.up(run_file)  # for the invite alone
        invite, port = first.invite, first.port
        first.stop()
        bob = here.join(invite, "bob", "--wait")
        bob.wait("what it waits for", lambda: "does not answer (Connection refused)" in bob.said)
        assert "Waiting until it does" in bob.said
        words = [
            sys.executable, "-m", "swarmtrain", "join", invite, "--name", "ann", "--yes", "--wait",
            "--state-dir", str(tmp_path / "ann"),
        ]  # fmt: skip
        with in_terminal(words, here.environment) as (process, ours):
            read_until(ours, b"Waiting until it does")
            up = here.up(run_file, port=port)
            read_until(ours, b"averaged")
            os.close(ours)
            assert process.wait(DEADLINE_S) == 0
        view = up.status_when(lambda view: view["events"][-1]["event"] in ("left", "lost"))
        assert view["events"][-1]["event"] == "left"
        merged_after(bob, view["round"])

        # Who was in waits without being asked to, when it is itself started anew.
        bob.kill()
        up.stop()
        bob = here.join(invite, "bob")
        bob.wait("what it waits for", lambda: "Waiting until it does" in bob.said)
        up = here.up(run_file, port=port)
        merged_after(bob, view["round"])
        bob.interrupt()
        assert bob.end() == 0
        up.stop()

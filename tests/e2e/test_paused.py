"""A volunteer's orders to a running peer: it rests, goes on, finishes and leaves."""

import json

import pytest
from e2e_rig import SMALL_MODEL, answer, place

pytestmark = pytest.mark.timeout(300)

RUN = f"""
[run]
name = "resting"
rounds = 400
{SMALL_MODEL}
[exchange]
start_peers = 2
wait_ready_s = 120.0
"""


def test_a_paused_peer_holds_up_nobody_and_goes_on_where_the_run_is(tmp_path):
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN))
        ann, bob = (here.join(up.invite, name) for name in ("ann", "bob"))
        bob.event("round", outcome="merged", round=lambda n: n >= 2)
        words = answer("pause", "--state-dir", here.folder / "bob")
        assert "until `swarmtrain resume`" in words
        begun = ann.event("round", outcome="merged", contributors=1)["round"]
        ann.event("round", outcome="merged", round=lambda n: n >= begun + 5)  # nobody is waited for
        bob.event("round", round=lambda n: n >= begun + 3)  # it takes the others' results meanwhile
        shown = json.loads(answer("status", "--state-dir", here.folder / "bob", "--json"))
        assert shown["state"] == "paused" and "by its owner" in shown["paused"]
        answer("resume", "--state-dir", here.folder / "bob")
        again = ann.event("round", outcome="merged", contributors=2, round=lambda n: n > begun + 5)
        for _ in range(10):  # at any moment
            answer("pause", "--for", "90s", "--state-dir", here.folder / "bob")
            answer("resume", "--state-dir", here.folder / "bob")
        ann.event("round", outcome="merged", contributors=2, round=lambda n: n > again["round"] + 3)
        answer("finish", "--state-dir", here.folder / "bob")
        assert bob.end() == 0, str(bob)
        assert "leaves" in answer("leave", "--state-dir", here.folder / "ann")
        assert ann.end() == 0, str(ann)
        up.stop()
        told = answer("why", again["round"], "--state-dir", here.folder / "ann")
        assert "Committed" in told and "left out" not in told
        for name in ("ann", "bob"):
            answer("verify", here.folder / name)

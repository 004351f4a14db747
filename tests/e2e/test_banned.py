"""A run and its organiser: a peer is banned, its key stays out across its own and the coordinator's
restarts, and the others train on. One story, because every process takes seconds to load torch."""

import json

import pytest
from e2e_rig import SMALL_MODEL, Place, answer, place
from test_life import merged_after

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "kept"
rounds = 100000
{SMALL_MODEL}
[exchange]
start_peers = 3
min_contributors = 2
wait_ready_s = 10.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
"""


def told(here: Place, *words: object) -> dict:
    """Return the JSON answer to one of the organiser's commands."""
    return json.loads(answer(*words, "--json", "--state-dir", here.folder / "coordinator"))


def test_the_organiser_has_the_last_word(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        assert up.invite
        made = told(here, "invite", "create", "--uses", 1, "--name", "eve")
        ann, bob = (here.join(up.invite, name) for name in ("ann", "bob"))
        eve = here.join(made["invite"], "eve")
        merged_after(eve, 0)
        rows = {row["name"]: row for row in told(here, "peers", "ls")["peers"]}
        assert set(rows) == {"ann", "bob", "eve"} and rows["eve"]["contributed"] >= 1
        seen = up.status_when(lambda view: all(row["norm"] is not None for row in view["peers"]))
        for row in seen["peers"]:
            assert 0.1 < row["norm"] < 10.0 and -1.0 <= row["cosine"] <= 1.0

        done = told(here, "peers", "ban", "eve", "--reason", "You sent noise.")
        assert done["state"] == "banned"
        assert eve.end() == 77
        assert "SWT-E702" in eve.said and "You sent noise." in eve.said
        for peer in (ann, bob):
            merged_after(peer, up.status()["round"] + 1)

        # Its key stays out when it comes back, also at a coordinator that was killed meanwhile.
        up.running.kill()
        up = here.up(run_file, port=up.port)
        assert up.invite
        merged_after(ann, up.status()["round"] + 1)
        eve = here.join(made["invite"], "eve")
        assert eve.end() == 77 and "You sent noise." in eve.said
        assert told(here, "peers", "show", "eve")["state"] == "banned"

        told(here, "peers", "unban", "eve")
        told(here, "run", "close")  # to newcomers: eve was in before
        eve = here.join(made["invite"], "eve")
        eve.event("in")
        dan = here.join(up.invite, "dan")
        assert dan.end() == 75 and "SWT-E707" in dan.said
        merged_after(eve, up.status()["round"])
        for peer in (ann, bob, eve):
            peer.interrupt()
            assert peer.end() == 0
        up.stop()

"""A peer that is away while the run ends gets the model all the same, and folders have any name."""

import json

import pytest
from e2e_rig import SMALL_MODEL, place, saved_root

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "end"
rounds = 4
{SMALL_MODEL}
[data]
source = "text"
[exchange]
start_peers = 3
min_contributors = 1
wait_ready_s = 2.0
deadline_floor_s = 2.0
deadline_cap_s = 10.0
"""


def test_the_last_state_is_kept_for_who_was_away_and_helped_before(tmp_path):
    (tmp_path / "text").mkdir()  # the word by which text goes by in settings that travel
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox\n" * 20_000)
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN), "--linger", "10m")
        peers = {name: here.join(up.invite, name) for name in ("ann", "bob", "cy")}
        peers["cy"].event("round", outcome="merged")
        peers["cy"].kill()
        for name in ("ann", "bob"):
            waits = peers[name].event("waiting", waiting_for=lambda words: "last state" in words)
            assert waits["waiting_for"].startswith("cy to come back")
        cy = here.join(up.invite, "cy")
        left = cy.event("left")
        assert left["round"] == 4 and left["result"], json.dumps(left)
        assert [one.end() for one in (peers["ann"], peers["bob"], cy, up.running)] == [0] * 4
        assert len({saved_root(tmp_path / name) for name in peers}) == 1

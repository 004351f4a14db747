"""Stages with thin ways between them, in real processes: a whole replica, a death, a newcomer."""

import json

import pytest
from e2e_rig import SMALL_MODEL, answer, place

pytestmark = pytest.mark.timeout(300)

ROUNDS = 40

RUN = f"""
[run]
name = "thin"
rounds = {ROUNDS}
{SMALL_MODEL.replace("layers = 1", "layers = 2")}
[exchange]
start_peers = 4
wait_ready_s = 2.0
[pipeline]
stages = 2
activations = "subspace-8"
"""

TURNS = "turn_rounds = 4\nturn_angle = 0.3\n"


@pytest.mark.parametrize("turns", ["", TURNS], ids=["stays", "turns"])
def test_a_peer_dies_another_comes_and_all_of_a_stage_hold_the_same_bits(tmp_path, turns):
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN + turns))
        spans = {"ann": "0-1", "bob": 0, "cat": 0, "dan": 1}
        peers = {name: here.join(up.invite, name, "--span", span) for name, span in spans.items()}
        peers["cat"].event("round", outcome="merged", round=lambda n: n >= 1)
        peers["eve"] = here.join(up.invite, "eve", "--span", 0)
        peers["eve"].event("round", outcome="merged")
        peers.pop("bob").kill()
        for peer in peers.values():
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        roots = {name: peer.event("left")["roots"] for name, peer in peers.items()}
        assert roots["cat"] == roots["eve"]
        assert roots["ann"] == roots["cat"] | roots["dan"]  # the whole replica is held in it, too
        proof = here.command("verify", here.folder / "ann")
        assert proof.end() == 0, proof
        told = [
            json.loads(answer("why", at, "--json", "--state-dir", here.folder / "ann"))
            for at in range(4, 12)
        ]
        assert any(booked["turned"] for one in told for booked in one["stages"]) == bool(turns), (
            told
        )

"""Routes leave stages out in real processes: a death, a newcomer, and a model without a stage."""

import json

import pytest
from e2e_rig import SMALL_MODEL, answer, place

from swarmtrain.verify.coordinator_state import read_records
from swarmtrain_transport.wire.records import Books, body_of, outline_of, tag_of

pytestmark = pytest.mark.timeout(400)

ROUNDS = 10

RUN = f"""
[run]
name = "skipping"
rounds = {ROUNDS}
{SMALL_MODEL.replace("layers = 1", "layers = 2")}
[exchange]
start_peers = 6
wait_ready_s = 2.0
[pipeline]
stages = 4
visit = 3
"""


def test_a_peer_dies_another_comes_and_the_model_writes_without_a_stage(tmp_path):
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN))
        spans = {"ann": 0, "bob": 1, "cat": 1, "dan": 2, "eve": 3, "fay": 3}
        peers = {name: here.join(up.invite, name, "--span", stage) for name, stage in spans.items()}
        peers["cat"].event("round", outcome="merged", round=lambda n: n >= 2)
        peers.pop("bob").kill()
        peers["gus"] = here.join(up.invite, "gus", "--span", 1)
        for peer in peers.values():
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        roots = {name: peer.event("left")["roots"] for name, peer in peers.items()}
        assert roots["cat"] == roots["gus"] and roots["eve"] == roots["fay"]
        booked = [
            one for one in read_records(up.state_dir) if outline_of(one).kind == tag_of(Books)
        ]
        assert len(booked) == ROUNDS
        for books in map(body_of, booked):
            first, second, third, last = books.counted
            assert not any(member.doubted for member in books.members)
            assert max(second, third) < max(first, last) <= books.made
            assert second + third <= books.made
        for gone in ("cat", "gus", "bob"):  # all that have stage 1, or keep it
            (tmp_path / gone).rename(tmp_path.parent / f"{tmp_path.name} {gone}")
        has_stage = [one for one in tmp_path.glob("*/groups/1") if one.exists()]
        for kept in has_stage:
            kept.rename(tmp_path.parent / f"{tmp_path.name} {kept.parent.parent.name} kept")
        said = json.loads(answer("generate", tmp_path, "def ", "--tokens", "5", "--json"))
        assert said["model"].endswith("without stage 1, which nobody here has")

"""A coordinator is killed in the middle of a run in stages: the run goes on, and counts once."""

import pytest
from e2e_rig import SMALL_MODEL, place

from swarmtrain.config import file as config_file
from swarmtrain.plan.measured import measured
from swarmtrain.verify.coordinator_state import read_records
from swarmtrain_transport.wire.records import Books, body_of, outline_of, tag_of

pytestmark = pytest.mark.timeout(400)

ROUNDS = 8

RUN = f"""
[run]
name = "stages"
rounds = {ROUNDS}
{SMALL_MODEL}
[exchange]
start_peers = 3
wait_ready_s = 2.0
[pipeline]
stages = 2
"""


def test_a_run_in_stages_goes_on_after_its_coordinator_was_killed(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        spans = {"ann": "0", "bob": "1", "cat": "0-1"}
        peers = [here.join(up.invite, name, "--span", span) for name, span in spans.items()]
        for peer in peers:
            peer.event("round", outcome="merged", round=lambda n: n >= 2)
        up.running.kill()
        up = here.up(run_file, port=up.port)
        for peer in peers:
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0

        ends = [peer.event("left")["roots"] for peer in peers]
        assert [sorted(roots) for roots in ends] == [["0"], ["1"], ["0", "1"]]
        assert ends[0] | ends[1] == ends[2]  # each stage's peers hold the same
        config = config_file.load(run_file)
        told = [measured(place, config) for place in (up.state_dir, tmp_path / "cat")]
        assert told[0] == told[1] and told[0].micro_batches_s > 0
        assert {one.name: one.busy > 0 for one in told[0].peers} == dict.fromkeys(spans, True)
        records = read_records(up.state_dir)
        booked = [one for one in records if outline_of(one).kind == tag_of(Books)]
        assert {one.term for one in booked} == {1, 2}
        for books in map(body_of, booked):
            assert max(books.counted) <= books.made
            assert not any(member.doubted for member in books.members)

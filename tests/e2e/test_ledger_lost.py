"""The coordinator's log is deleted under a run of real processes, and the run goes on."""

import pytest
from e2e_rig import SMALL_MODEL, outcomes, place, saved_root

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "forgetful"
rounds = 16
{SMALL_MODEL}
[exchange]
start_peers = 2
min_contributors = 2
wait_ready_s = 5.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
"""


def test_a_run_whose_ledger_is_deleted_goes_on_from_the_peers_copies(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        invite = up.invite
        ann, bob = here.join(invite, "ann"), here.join(invite, "bob")
        roots = {}
        for peer in (ann, bob):
            peer.event("round", outcome="merged", round=lambda n: n >= 2)
        up.stop()
        decided = outcomes(up.state_dir)
        for path in up.state_dir.glob("ledger.sqlite*"):
            path.unlink()

        up = here.up(run_file, port=up.port)
        assert up.invite == invite
        up.running.wait("the words", lambda: "The ledger is missing" in up.running.said)
        for peer in (ann, bob):
            peer.event("round", outcome="merged", round=lambda n: n > max(decided))
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        after = outcomes(up.state_dir)
        assert {op: after[op] for op in decided} == decided
        assert list(after.values()).count("COMMIT") == 16
        assert saved_root(tmp_path / "ann") == saved_root(tmp_path / "bob")
        for peer in (ann, bob):
            for op in (1, max(decided), max(after)):
                root = peer.event("round", round=op)["root"]
                assert roots.setdefault(op, root) == root

"""The example as anybody would run it: alone, and as two peers of a real run."""

import re

import pytest
from e2e_rig import ROOT, place, saved_root

pytestmark = pytest.mark.timeout(400)

LOOP = ROOT / "examples" / "plain_loop.py"
RUN_FILE = ROOT / "examples" / "custom_run.toml"


def test_the_example_runs_alone_and_two_of_it_end_with_one_model(tmp_path):
    with place(tmp_path) as here:
        up = here.up(RUN_FILE)
        alone = here.start(LOOP)
        peers = {
            name: here.start(LOOP, name, SWARMTRAIN_INVITE=up.invite) for name in ("ann", "bob")
        }
        refused = here.join(up.invite, "cat")
        assert alone.end() == 0
        assert "round" not in "".join(alone.lines)
        peers_dir = tmp_path / "state-home" / "swarmtrain" / "runs" / "custom" / "peers"
        assert not (peers_dir / "hook").exists()
        roots = set()
        for name, peer in peers.items():
            assert peer.end() == 0, str(peer)
            last = re.fullmatch(r"round (\d+)  state root ([0-9a-f]{64})\n", peer.lines[-1])
            assert saved_root(peers_dir / name) == (int(last[1]), last[2])
            roots.add((int(last[1]), last[2]))
        assert len(roots) == 1
        assert roots.pop()[0] >= 6
        assert refused.end() == 78
        assert "SWT-E607  The run custom trains on a model" in refused.said
        # Everybody has left a finished run, so the coordinator ends too.
        assert up.running.end() == 0

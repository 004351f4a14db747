"""One run, two peers, and all that may happen to them while the run goes on.

Goal: whoever leaves is told from whoever vanished, whoever comes back goes on, a full disk costs
its owner the place and nobody a decision. One story, because every process takes seconds to load
torch. The order of events is theirs; nothing is timed.
"""

import resource

import pytest
from e2e_rig import SMALL_MODEL, Place, Running, Up, outcomes, place

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "life"
rounds = 100000
{SMALL_MODEL}
[exchange]
start_peers = 2
min_contributors = 1
wait_ready_s = 10.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
[checkpoint]
every_rounds = 4
"""


def merged_after(peer: Running, round_: int) -> int:
    """The first round after `round_` in which the peer's part was merged."""
    return int(peer.event("round", outcome="merged", round=lambda n: n > round_)["round"])


def no_more_room(running: Running, *, file_bytes: int) -> None:
    """From now on no file of the process may grow beyond this size: the disk is full."""
    limits = (file_bytes, file_bytes)
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, limits)


def coordinator_runs_out_of_room(here: Place, up: Up, run_file, peers: list[Running]) -> Up:
    before = max(merged_after(peer, 0) for peer in peers)
    wal = up.state_dir / "ledger.sqlite-wal"
    no_more_room(up.running, file_bytes=wal.stat().st_size)
    assert up.running.end() == 73
    assert "SWT-E40" in up.running.said
    assert "intact" in up.running.said or "Nothing is lost" in up.running.said
    again = here.up(run_file, port=up.port)
    assert again.invite == up.invite
    for peer in peers:
        merged_after(peer, before + 2)
    return again


def test_leaving_vanishing_returning_and_full_disks(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        ann, bob = (here.join(up.invite, name) for name in ("ann", "bob"))
        ids = {name: peer.event("in")["peer"] for name, peer in (("ann", ann), ("bob", bob))}
        up = coordinator_runs_out_of_room(here, up, run_file, [ann, bob])

        # A power cut at ann. Bob goes on alone, ann comes back with the same key and catches up.
        # Results are kept for 16 rounds only, so after more of them ann needs the newer state.
        ann.kill()
        vanished = up.status()["round"]
        merged_after(bob, vanished + 20)
        ann = here.join(up.invite, "ann")
        assert ann.event("in")["peer"] == ids["ann"]
        assert ann.event("state")["round"] > vanished
        merged_after(ann, vanished)

        # Twice Ctrl+C: at once, and yet with a goodbye.
        ann.interrupt()
        ann.wait("the first answer", lambda: "Ctrl+C again" in ann.said)
        ann.interrupt()
        at_once = ann.end() == 130  # else its round ended before the second one came
        view = up.status_when(lambda view: view["events"][-1]["event"] == "left")
        goodbye = view["events"][-1]
        assert goodbye["peer"] == ids["ann"]
        # The second Ctrl+C may also come while the first one's goodbye is being said.
        assert goodbye["reason"] in ("asked to stop", *["asked to stop at once"] * at_once)

        # Bob's disk is full: he says so and goodbye, and keeps what was whole.
        no_more_room(bob, file_bytes=64)
        assert bob.end() == 73
        assert "SWT-E401  No space is left on the disk" in bob.said
        gone = up.status_when(lambda view: not view["peers"])
        assert gone["events"][-1]["event"] == "left"
        # The full disk may have struck between a COMMIT and the report of its state root.
        assert gone["waiting_for"].startswith("a peer that holds ")
        bob = here.join(up.invite, "bob")
        merged_after(bob, gone["round"])
        bob.interrupt()
        assert bob.end() == 0
        assert bob.event("left")["round"] > gone["round"]
        up.stop()
        assert list(outcomes(up.state_dir).values()).count("COMMIT") > gone["committed"]

"""A run that is interrupted in every way and ends with the same bits at every peer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from e2e_rig import SMALL_MODEL, Place, Running, Up, answer, outcomes, place, saved_root

from swarmtrain.status import ask

pytestmark = pytest.mark.timeout(400)

ROUNDS = 24

RUN = f"""
[run]
name = "resume"
rounds = {ROUNDS}
{SMALL_MODEL}
[exchange]
start_peers = 2
min_contributors = 2
wait_ready_s = 5.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
[checkpoint]
every_rounds = 3
snapshot_rounds = 2
"""


def nobody_s_state_is_no_round(here: Place, invite: str) -> None:
    """Somebody comes while nobody has the state, and goes again."""
    cat = here.command("join", invite, "--name", "cat", "--yes", "--state-dir", here.folder / "cat")
    cat.wait("the words", lambda: "the run waits for a peer that holds" in cat.said)
    cat.interrupt()
    assert cat.end() == 0
    assert "left cleanly before it had the run's state" in cat.said and "round -1" not in cat.said


def finished_is_said_by_all(
    here: Place, run_file: Path, up: Up, peers: tuple[Running, ...]
) -> None:
    """By the peers, by `up` and by a second one, and by `status` of processes that are gone."""
    _, root = saved_root(here.folder / "ann")
    for peer, name in zip(peers, ("ann", "bob"), strict=True):
        result = peer.event("left")["result"]
        assert result.startswith(f"{ROUNDS} rounds, loss "), result
        assert f", root {root[:16]}, the model is in " in result
        model = Path(result.partition("the model is in ")[2])
        assert model.is_dir() and model.is_relative_to(here.folder / name)
        assert ask(here.folder / name)["result"] == result
    ended = up.running.event("finished")["result"]
    assert ended.startswith(f"{ROUNDS} rounds, loss ") and "the model is with " in ended
    assert f"The run is finished: {ended}." in up.running.said
    again = here.up(run_file)
    assert again.running.end() == 0
    assert [json.loads(line)["event"] for line in again.running.lines] == ["finished"]
    result = again.running.event("finished")["result"]
    assert result.startswith(ended.partition(", the model")[0])
    assert "the last one made by " in result
    status = here.command("status", "--state-dir", up.state_dir)
    assert status.end() == 0
    shown = "".join(status.lines)
    assert "has ended" in shown and "finished" in shown and result in shown


def test_a_run_goes_on_after_everything_was_stopped_and_half_of_it_deleted(tmp_path):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        invite = up.invite
        ann, bob = here.join(invite, "ann"), here.join(invite, "bob")
        for peer in (ann, bob):
            peer.event("round", outcome="merged", round=lambda n: n >= 2)

        # The coordinator dies; it comes back at the same place and the peers go on by themselves.
        up.running.kill()
        reached = {peer: len(peer.lines) for peer in (ann, bob)}
        up = here.up(run_file, port=up.port)
        assert up.invite == invite
        for peer, start in reached.items():
            peer.event("round", start + 2, outcome="merged")

        # One leaves, the other is killed while it waits for company; nobody holds the run now.
        ann.interrupt()
        assert ann.end() == 0
        assert "Finishing this round" in ann.said
        left = ann.event("left")["round"]
        bob.event("round", round=left)
        bob.kill()
        up.stop()
        decided = outcomes(up.state_dir)
        assert list(decided.values()).count("COMMIT") >= 3

        # The same directory: the run waits for whoever holds its state. Bob does, by his last
        # checkpoint and the results that he kept; ann has lost everything and gets it from bob.
        shutil.rmtree(tmp_path / "ann")
        up = here.up(run_file, port=up.port)
        assert up.invite == invite
        waiting = up.status()
        assert waiting["wanted_root"]
        assert waiting["waiting_for"].startswith(
            f"a peer that holds state root {waiting['wanted_root'][:16]}"
        )
        ann = here.join(invite, "ann")
        told = ann.event("waiting", waiting_for=lambda words: "which nobody here does" in words)
        assert told["waiting_for"].endswith(("; in that round: ann and bob", "bob and ann"))
        up.running.wait(
            "the words", lambda: f"Waiting for {told['waiting_for']}." in up.running.said
        )
        assert ask(tmp_path / "ann")["waiting_for"] == told["waiting_for"]
        nobody_s_state_is_no_round(here, invite)
        bob = here.join(invite, "bob")
        ann.event("state")  # of what round depends on whose turn the last checkpoint was
        ann.event("waiting", waiting_for="")
        for peer in (ann, bob):
            peer.event("round", outcome="merged", round=lambda n: n > max(decided))
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        finished_is_said_by_all(here, run_file, up, (ann, bob))
        after = outcomes(up.state_dir)
        assert {op: after[op] for op in decided} == decided
        assert list(after.values()).count("COMMIT") == ROUNDS
        assert saved_root(tmp_path / "ann") == saved_root(tmp_path / "bob")
        assert saved_root(tmp_path / "ann")[0] == max(after)

        # And each directory shows by itself that this is so.
        roots = {proved(here, name)["state_root"] for name in ("ann", "bob", "coordinator")}
        assert roots == {saved_root(tmp_path / "ann")[1]}
        credited_once(here)


def credited_once(here: Place) -> None:
    """Bob was killed and came back: each of his rounds counts once, and is proved to ann."""
    answer("receipts", "save", here.folder / "receipts", "--state-dir", here.folder / "bob")
    told = answer(
        "receipts", "verify", here.folder / "receipts", "--ledger", here.folder / "ann", "--json"
    )
    found = json.loads(told)["receipts"]
    assert {one["state"] for one in found} == {"counts"}
    runs = json.loads(answer("me", "--json"))["runs"]
    assert [one["rounds"] for one in runs if one["peer"] == found[0]["peer"]] == [len(found)]


def proved(here: Place, name: str) -> dict[str, Any]:
    """Return what `swarmtrain verify` prints of one state directory."""
    found: dict[str, Any] = json.loads(answer("verify", here.folder / name, "--json"))
    assert found["ok"] and found["problem"] == ""
    assert name == "coordinator" or found["ops"] > 0
    return found

"""What `up` says while its run goes on: a line per event where no terminal is."""

import io
import sys
from datetime import datetime

from swarmtrain.cli.watching import picture_of, watched
from swarmtrain_transport.membership import CoordinatorStatus
from swarmtrain_transport.messages import Leave, Records
from tests.coordinator.rig import connected, run
from tests.coordinator.test_service import ALICE, living


class Closed(io.StringIO):
    """A terminal that was closed: whatever is written there fails."""

    def write(self, text):
        raise BrokenPipeError


def test_every_event_is_a_line_with_its_date(tmp_path, monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)

    async def scene():
        async with (
            living(tmp_path, watched=watched) as life,
            connected(life.invite, ALICE) as (client, listener),
        ):
            client.send(Leave("asked to stop"))
            await listener.hears("down")

    run(scene())
    lines = told.getvalue().splitlines()
    assert [line.partition("  ")[2] for line in lines if "otter" in line] == [
        "otter is in, 1 peer now", "otter has left (asked to stop), nobody now",
    ]  # fmt: skip
    for line in lines:
        assert datetime.fromisoformat(line.partition("  ")[0]).tzinfo is not None


def test_a_run_goes_on_when_nobody_can_be_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Closed())

    async def scene():
        async with (
            living(tmp_path, watched=watched) as life,
            connected(life.invite, ALICE) as (_, listener),
        ):
            assert (await listener.hears(Records)).records

    run(scene())


def test_the_table_says_how_far_the_run_is_and_what_it_waits_for():
    status = CoordinatorStatus(
        run="t", term=1, round=3, committed=3, rounds=8, phase="training", wanted_root="",
        num_values=10, peers=(), losses={"0": 5.5, "3": 2.5, "10": 2.25}, exclusions=(), events=(),
        checkpoint_op=-1, waiting_for="1 more peer",
    )  # fmt: skip
    assert picture_of(status).lines == (
        "round 3 of 8 | validation loss 5.500 -> 2.250", "waiting for 1 more peer",
    )  # fmt: skip

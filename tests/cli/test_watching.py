"""Tests of what `up` says while its run goes on: a line per event where no terminal is."""

import asyncio
import contextlib
import dataclasses
import io
import sys
from datetime import datetime

import msgspec

from swarmtrain.cli.watching import picture_of, watched
from swarmtrain.config.settings import RunSection
from swarmtrain.coordinator.service import serve
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.wire.messages import Leave, Records
from tests.coordinator.rig import connected, run
from tests.coordinator.test_service import ALICE, CONFIG, living


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


def test_the_end_of_a_run_is_said_last_and_a_finished_one_does_not_go_on(tmp_path, monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    stop = asyncio.Event()

    @contextlib.asynccontextmanager
    async def finishing(machine):
        (group,) = machine.groups.values()
        group._terms = dataclasses.replace(group.terms, rounds=0)
        stop.set()
        async with watched(machine):
            yield
        print("round 1 of 1: the work of one peer alone", file=told)

    async def life(config, directory, watching):
        await serve(
            config, directory, "127.0.0.1", 0, "", watched=watching, stop=stop,
            on_ready=lambda invite: None, tell=lambda text: print(text, file=told),
        )  # fmt: skip

    async def scene():
        await life(CONFIG, tmp_path / "ends", finishing)
        assert told.getvalue().splitlines()[-1].startswith("The run is finished")
        done = msgspec.structs.replace(CONFIG, run=RunSection(name="tests", rounds=0))
        for _ in range(2):
            await life(done, tmp_path / "ended", watched)
        assert "goes on" not in told.getvalue()

    run(scene())


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

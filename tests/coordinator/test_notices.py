"""Tests that a run that stands still says what it waits for, and says it once."""

import time
from pathlib import Path

import msgspec
import pytest

from swarmtrain.coordinator.organiser import notices
from swarmtrain.coordinator.organiser.notices import STANDS_S, Notices
from swarmtrain.status import waiting_words
from swarmtrain_transport.coordinator.status import CoordinatorStatus, RoundEvent
from swarmtrain_transport.wire.messages import Waiting
from tests.coordinator.rig import connected, run
from tests.coordinator.test_service import ALICE, BOB, CONFIG, living

NOON_S = time.mktime((2027, 1, 15, 12, 0, 0, 0, 0, -1))


def status(text: str, seen_s: float | None = None) -> CoordinatorStatus:
    return CoordinatorStatus(
        "run", 1, 0, 0, 9, "training", "", 0, (), {}, (), (), -1, text, waiting_seen_s=seen_s
    )  # fmt: skip


def test_a_reason_is_said_when_it_has_stood_and_so_is_its_end() -> None:
    said: list[str] = []
    told = Notices(said.append)
    for now_s in (0.0, STANDS_S - 0.1):
        told.look(status("a peer", 60.0), now_s, NOON_S)
    assert not said and told.said == ""
    for now_s in (STANDS_S, STANDS_S + 60.0):
        told.look(status("a peer", 60.0), now_s, NOON_S)
    assert said == ["Waiting for a peer, 11:59."] and told.said == "a peer"
    told.look(status(""), 100.0, NOON_S)
    assert said[1:] == ["The run begins."] and told.said == ""


def test_a_run_that_has_begun_goes_on() -> None:
    said: list[str] = []
    told = Notices(said.append)
    for now_s, text in ((0.0, "a peer"), (STANDS_S, "a peer"), (STANDS_S + 1, "")):
        told.look(msgspec.structs.replace(status(text), round=1), now_s, NOON_S)
    assert said == ["Waiting for a peer.", "The run goes on."]


def test_the_time_belongs_to_the_reason_that_was_said() -> None:
    told = Notices(lambda line: None)
    for now_s in (0.0, STANDS_S):
        told.look(status("a keeper"), now_s, NOON_S)
    told.look(status("a peer", 60.0), STANDS_S + 1, NOON_S)
    assert (told.said, told.seen_s) == ("a keeper", None)


def test_what_comes_and_goes_is_no_news() -> None:
    said: list[str] = []
    told = Notices(said.append)
    for step in range(40):
        told.look(status("a peer" if step % 2 else ""), step * STANDS_S / 2, NOON_S)
    assert not said


def test_the_time_is_that_of_the_reader_and_names_another_day() -> None:
    assert waiting_words("bob", 3600.0, NOON_S) == "bob, 11:00"
    assert waiting_words("bob", 13 * 3600.0, NOON_S) == "bob, 2027-01-14 23:00"
    for unknown in (None, float("nan"), float("inf"), -1.0):
        assert waiting_words("bob", unknown, NOON_S) == "bob"
    assert waiting_words("", 1.0, NOON_S) == ""


def test_a_peer_is_told_why_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "STANDS_S", 0.0)
    monkeypatch.setattr(notices, "LOOK_S", 0.01)
    exchange = msgspec.structs.replace(CONFIG.exchange, start_peers=2, min_contributors=2)
    config = msgspec.structs.replace(CONFIG, exchange=exchange)
    said: list[str] = []

    async def scene() -> None:
        async with (
            living(tmp_path, config, tell=said.append) as life,
            connected(life.invite, ALICE) as (_, alice),
        ):
            assert (await alice.hears(Waiting)).text == "1 more peer"
            async with connected(life.invite, BOB):
                assert (await alice.hears(Waiting)).text == ""
            assert (await alice.hears(Waiting)).text == "1 more peer"
            assert said[-2:] == ["The run begins.", "Waiting for 1 more peer."]

    run(scene())


def test_the_organiser_hears_once_whose_contributions_go_apart() -> None:
    said: list[str] = []
    told = Notices(said.append)
    apart = RoundEvent(7, "ab" * 32, "apart", "its contributions are 4.2 times as long")
    now = msgspec.structs.replace(status(""), events=(RoundEvent(7, "cd" * 32, "left"), apart))
    for now_s in range(3):
        told.look(now, float(now_s), NOON_S)
    assert said == ["abababab, round 7: its contributions are 4.2 times as long."]

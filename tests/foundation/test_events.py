"""Events are lines of JSON, and are read back as what was written."""

import json

import pytest

from swarmtrain.foundation import events
from swarmtrain.foundation.events import (
    Event,
    In,
    Left,
    Offended,
    Ready,
    RoundEnded,
    Waiting,
    parse,
)


@pytest.mark.parametrize(
    "event",
    [
        Ready("swarm://h:1/run#secret", "h", 1, "run", "/state"),
        In("ab", "otter", 9000),
        Waiting(""),
        RoundEnded(3, "merged", 2, "aa", "bb", "cc"),
        Left(3, "aa", 1000, 2000),
        Offended({"boast": 3}, ("ab",)),
    ],
)
def test_what_is_written_is_one_line_and_is_read_back(
    event: Event, capsys: pytest.CaptureFixture[str]
) -> None:
    events.write(event)
    (line,) = capsys.readouterr().out.splitlines()
    assert parse(line.encode()) == event


def test_a_line_names_its_kind_and_leaves_out_what_there_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events.write(RoundEnded(3, "merged", 2, "aa"))
    assert json.loads(capsys.readouterr().out) == {
        "event": "round", "round": 3, "outcome": "merged", "contributors": 2, "root": "aa",
    }  # fmt: skip


def test_a_newer_version_may_say_more_and_what_is_no_event_is_nothing() -> None:
    assert parse(b'{"event": "in", "peer": "ab", "name": "otter", "more": 1}') == In("ab", "otter")
    assert parse(b'{"event": "sunrise"}') is None
    assert parse(b"Traceback (most recent call last):") is None
    assert parse(b'{"event": "round"}') is None

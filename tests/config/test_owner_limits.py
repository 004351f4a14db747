"""Limits of a volunteer: hours of the week, shares, and their file."""

import json
from datetime import datetime

import pytest

from swarmtrain.config.owner_limits import (
    FILE_NAME,
    NO_LIMITS,
    Limits,
    changed,
    opens_at,
    parse_hours,
    parse_share,
    read,
    write,
)
from swarmtrain.foundation.errors import UserError

WEEK = "22-7, sat-sun 0-24"


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """A moment of a week that begins on a Monday."""
    return datetime(2027, 3, 1 + day, hour, minute)


@pytest.mark.parametrize(
    ("hours", "now", "opens"),
    [
        ("", at(0, 12), at(0, 12)),
        (WEEK, at(0, 23), at(0, 23)),
        (WEEK, at(1, 6, 59), at(1, 6, 59)),
        (WEEK, at(1, 7), at(1, 22)),
        (WEEK, at(5, 12), at(5, 12)),  # Saturday
        (WEEK, at(4, 12), at(4, 22)),
        ("mon-fri 18:30-23", at(0, 18, 29), at(0, 18, 30)),
        ("mon-fri 18:30-23", at(4, 23), at(7, 18, 30)),
        ("sun 22-2", at(0, 1), at(0, 1)),  # Sunday's night
        ("fri-mon 1-2", at(2, 0), at(4, 1)),
        ("wed 3-4", at(2, 4), at(9, 3)),
    ],
)
def test_hours_say_when_the_peer_may_train(hours, now, opens):
    assert opens_at(hours, now) == opens


def test_hours_are_the_clocks_also_where_that_is_changed():
    """From 2:00 to 3:00 the clock jumps: 2:30 never comes, and 3:00 is inside of 2-5."""
    assert opens_at("2-5", datetime(2027, 3, 28, 3, 0)) == datetime(2027, 3, 28, 3, 0)
    assert opens_at("22-7", datetime(2027, 10, 31, 2, 30, fold=1)).hour == 2


@pytest.mark.parametrize(
    "text", ["25-3", "22", "nightly", "mon 5-5", "7-7", "xyz 1-2", "1:75-3", "22-7; 3-4", "-"]
)
def test_hours_that_make_no_sense_or_never_come_are_refused(text):
    with pytest.raises(UserError) as caught:
        parse_hours(text)
    assert caught.value.code == "SWT-E610"


def test_shares_are_percent_or_numbers():
    assert (parse_share("50%"), parse_share("0.25"), parse_share("100%")) == (0.5, 0.25, 1.0)
    for text in ("0%", "150%", "half", "", "-1", "0.01"):
        with pytest.raises(UserError):
            parse_share(text)


def test_limits_are_kept_in_a_file_and_changed_one_by_one(tmp_path):
    assert read(tmp_path) == NO_LIMITS
    write(tmp_path, changed(NO_LIMITS, hours=WEEK, duty=0.5))
    write(tmp_path, changed(read(tmp_path), battery=False, nice=10))
    found = read(tmp_path)
    assert found == Limits(WEEK, 0.5, battery=False, nice=10)
    assert found.in_words() == f"hours {WEEK}, 50 % of the time, not on battery, niceness 10"
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "told",
    ["", "[]", "{", '{"duty": 2}', '{"hours": 5}', '{"more": 1}', '{"nice": 1.5}', '{"duty": true}',
     '{"threads": -1}', '{"hours": "never"}', "null"],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_told(tmp_path, told):
    (tmp_path / FILE_NAME).write_text(told)
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    assert caught.value.code == "SWT-E610"


def test_whole_numbers_are_numbers(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps({"duty": 1, "busy": 1}))
    assert read(tmp_path) == NO_LIMITS

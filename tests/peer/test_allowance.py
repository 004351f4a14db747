"""Today's data: counted over restarts, begun anew with the day, refused when used up."""

import pytest

from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.allowance import Allowance

MAY, JUNE = "2031-05-31", "2031-06-01"


def test_what_was_moved_today_counts_over_restarts(tmp_path):
    first = Allowance(tmp_path, 1000, lambda: MAY)
    first.count(400)
    first.count(700)
    first.check()
    first.save()
    second = Allowance(tmp_path, 1000, lambda: MAY)
    second.check()
    second.count(300)
    with pytest.raises(UserError) as caught:
        second.check()
    assert (caught.value.code, caught.value.exit_status) == ("SWT-E405", 75)
    with pytest.raises(UserError):
        Allowance(tmp_path, 1000, lambda: MAY).check()


@pytest.mark.parametrize(
    ("daily", "words"),
    [
        (300_000, "Today's 300 kB are used up (301 kB"),
        (20 * 10**9, "Today's 20 GB are used up"),
    ],
)
def test_small_amounts_are_told_in_small_units(tmp_path, daily, words):
    allowance = Allowance(tmp_path, daily, lambda: MAY)
    allowance.count(daily + 1_000)
    with pytest.raises(UserError) as caught:
        allowance.check()
    assert caught.value.what.startswith(words)


def test_a_new_day_begins_with_nothing_used(tmp_path):
    days = [MAY]
    allowance = Allowance(tmp_path, 1000, lambda: days[-1])
    allowance.count(2000)
    days.append(JUNE)
    allowance.check()
    allowance.count(2100)
    allowance.check()
    allowance.count(3200)
    with pytest.raises(UserError):
        allowance.check()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 4000,
        '{"day": 7}',
        '{"day": "2031-05-31", "bytes": "x"}',
        '{"day": "2031-05-31", "bytes": 1e999}',
        '{"day": "2031-05-31", "bytes": NaN}',
    ],
)
def test_a_damaged_count_is_no_reason_to_stay_away(tmp_path, text):
    (tmp_path / "traffic.json").write_text(text)
    Allowance(tmp_path, 1, lambda: MAY).check()

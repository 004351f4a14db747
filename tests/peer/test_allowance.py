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


def test_who_has_less_left_than_a_round_moves_leaves_before_it(tmp_path):
    allowance = Allowance(tmp_path, 1000, lambda: MAY)
    allowance.check(is_exchanging=True)
    allowance.count(200)
    allowance.check(is_exchanging=True)
    allowance.check()
    allowance.count(500)
    allowance.check()
    allowance.count(560)
    allowance.check(is_exchanging=True)
    with pytest.raises(UserError, match="less is left than a round moves"):
        Allowance(tmp_path, 1000, lambda: MAY).check()


def test_less_a_day_than_a_round_needs_is_told_at_once_on_the_next_day(tmp_path):
    allowance = Allowance(tmp_path, 1000, lambda: MAY)
    allowance.check(is_exchanging=True)
    allowance.count(800)
    with pytest.raises(UserError, match="less than a round of this run needs"):
        allowance.check(is_exchanging=True)
    with pytest.raises(UserError, match="it moves about 800 B"):
        Allowance(tmp_path, 1000, lambda: JUNE).check()
    Allowance(tmp_path, 5000, lambda: JUNE).check()


def test_a_limit_that_is_set_at_noon_counts_the_morning(tmp_path):
    allowance = Allowance(tmp_path, 0, lambda: MAY)
    allowance.count(5000)
    allowance.check()
    allowance.daily = 4000
    with pytest.raises(UserError, match="are used up"):
        allowance.check()


def test_a_newcomer_whose_day_is_less_than_the_weights_is_told_before_they_come(tmp_path):
    allowance = Allowance(tmp_path, 1000, lambda: MAY)
    allowance.check(lacks=700)
    with pytest.raises(UserError, match="its weights alone are 900 B"):
        allowance.check(lacks=900)
    Allowance(tmp_path, 0, lambda: MAY).check(lacks=10**12)

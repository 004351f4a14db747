"""Log lines that others cause: said, counted, summed up."""

import logging

import pytest

from swarmtrain.console.repeats import EVERY_S, KINDS_MAX, LINES_PER_S, Repeats


def test_the_same_again_is_summed_up_in_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    said = Repeats(logging.getLogger("tests"), lambda: now_s[0])
    with caplog.at_level(logging.INFO):
        for number in range(1000):
            said.say(logging.INFO, ("ada", "noise"), f"ada makes noise {number}")
        said.say(logging.WARNING, ("ben", "noise"), "ben makes noise")
        now_s[0] = EVERY_S
        said.say(logging.INFO, ("ada", "noise"), "ada makes noise")
        said.say(logging.WARNING, ("ben", "noise"), "ben makes noise")
    assert [record.getMessage() for record in caplog.records] == [
        "ada makes noise 0",
        "ben makes noise",
        "ada makes noise (999 times more in the last 30 s)",
        "ben makes noise",
    ]


def test_many_kinds_are_not_many_lines_nor_much_memory(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    said = Repeats(logging.getLogger("tests"), lambda: now_s[0])
    with caplog.at_level(logging.INFO):
        for number in range(2 * KINDS_MAX):
            said.say(logging.INFO, number, f"stranger {number}")
        assert len(caplog.records) == LINES_PER_S + 1
        assert "There is more" in caplog.records[-1].getMessage()
        now_s[0] = 1.5
        said.say(logging.INFO, "other", "another second")
    assert caplog.records[-1].getMessage() == "another second"
    assert len(said._said) == KINDS_MAX

"""Tests of what the hook says, and to whom."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from swarmtrain.peer.hook_log import HookLog, speak_up
from swarmtrain.peer.training.rounds import RoundReport


class Times:
    """A clock and a link that are moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.moved = (1_000_000, 2_000_000)

    def log(self) -> HookLog:
        return HookLog("tiny", "otter", lambda: self.moved, lambda: self.now_s)

    def go_on(self, seconds: float, up: int = 0, down: int = 0) -> None:
        self.now_s += seconds
        self.moved = (self.moved[0] + up, self.moved[1] + down)


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="swarmtrain")
    return lambda: [record.getMessage() for record in caplog.records]


def test_joining_each_round_and_the_end_have_a_line(said):
    times = Times()
    log = times.log()
    log.joined(3, 17)
    times.go_on(12.34, up=1_200_000, down=3_400_000)
    log.round_ended(RoundReport(18, "merged", 4), 2.31415)
    times.go_on(2)
    log.round_ended(RoundReport(19, "skipped", 0, "too few"), None)
    log.left("asked to leave", 19, "")
    assert said() == [
        "Joined the run tiny as otter: 3 other peers, round 17.",
        "Round 18: averaged with 3 other peers; loss 2.314; 1.2 MB sent, 3.4 MB received, 12.3 s.",
        "Round 19: skipped, too few; this peer's work is kept; 0 sent, 0 received, 2.0 s.",
        "Left the run tiny after round 19 (asked to leave); 2.2 MB sent, 5.4 MB received in all.",
    ]


def test_a_finished_run_says_what_it_has_come_to(said):
    log = Times().log()
    log.joined(1, 0)
    log.left("run finished", 40, "40 rounds, loss 2.21")
    assert said() == [
        "Joined the run tiny as otter: 1 other peer, round 0.",
        "The run is finished: 40 rounds, loss 2.21; 1 MB sent, 2 MB received in all.",
    ]


def test_what_is_caught_up_with_before_joining_is_no_news(said):
    log = Times().log()
    log.round_ended(RoundReport(3, "replayed", 2), None)
    assert said() == []


def test_rounds_that_end_faster_than_one_a_second_share_a_line(said):
    times = Times()
    log = times.log()
    log.joined(0, 0)
    for op in range(1, 26):
        times.go_on(0.125, up=100_000)
        log.round_ended(RoundReport(op, "merged", 1), None)
    log.round_ended(RoundReport(26, "left-out", 2), None)
    lines = said()[1:]
    assert [line.partition(":")[0][6:] for line in lines] == ["1", "9", "17", "25", "26"]
    assert "; 8 rounds; 800 kB sent, 0 received, 1.0 s" in lines[1]


@contextmanager
def nothing_set_up() -> Iterator[logging.Logger]:
    """Logging as a program finds it: no handlers, no levels. As it was afterwards."""
    root, package = logging.getLogger(), logging.getLogger("swarmtrain")
    kept = [(one, one.level, one.handlers) for one in (root, package)]
    for one, level in ((root, logging.WARNING), (package, logging.NOTSET)):
        one.handlers = []
        one.setLevel(level)
    try:
        yield package
    finally:
        for one, level, handlers in kept:
            one.handlers = handlers
            one.setLevel(level)


def speak(package: logging.Logger) -> None:
    package.info("joined")
    logging.getLogger("swarmtrain.peer.network.control").info("a detail")
    logging.getLogger("swarmtrain.peer.network.control").warning("trouble")


def shown(capsys) -> list[str]:
    return [line.partition("  ")[2] or line for line in capsys.readouterr().err.splitlines()]


def test_a_program_that_sets_no_logging_up_sees_the_lines_once_on_stderr(capsys):
    with nothing_set_up() as package:
        speak_up()
        speak_up()
        speak(package)
    assert shown(capsys) == ["swarmtrain: joined", "swarmtrain: trouble"]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_level_keeps_them_away(capsys, is_before):
    with nothing_set_up() as package:
        if is_before:
            package.setLevel(logging.WARNING)
        speak_up()
        if not is_before:
            package.setLevel(logging.WARNING)
        speak(package)
    assert shown(capsys) == ["swarmtrain: trouble"]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("WARNING", ["own trouble"]), ("INFO", ["own joined", "own a detail", "own trouble"])],
)
def test_a_program_that_has_set_logging_up_decides_alone(capsys, level, wanted):
    with nothing_set_up() as package:
        logging.basicConfig(level=level, format="own %(message)s")
        speak_up()
        speak(package)
    assert shown(capsys) == wanted


def test_logging_that_is_set_up_later_takes_over(capsys):
    with nothing_set_up() as package:
        speak_up()
        logging.basicConfig(format="own %(message)s")
        speak(package)
    lines = shown(capsys)
    assert "own joined" in lines and len(lines) == len(set(lines))
    assert not any(line.startswith("swarmtrain") for line in lines)

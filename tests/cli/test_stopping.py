"""The first signal asks, the second insists."""

import asyncio
import os
import signal

import pytest

from swarmtrain.cli.stopping import run_until_stopped
from swarmtrain.foundation import signals as ending
from swarmtrain.foundation.errors import Interrupted


def test_the_first_signal_asks_for_a_clean_end(capsys):
    ended = []

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        ended.append("clean")

    run_until_stopped(main, first_words="Leaving.")
    assert ended == ["clean"]
    assert capsys.readouterr().err == "Leaving.\n"


@pytest.mark.parametrize(("second", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_leaves_at_once(second, status):
    cleaned_up = []

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), second)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    with pytest.raises(Interrupted) as caught:
        run_until_stopped(main, first_words="Leaving.")
    assert caught.value.exit_status == status
    assert cleaned_up == [True]


def test_a_terminal_that_closes_asks_however_often_it_says_so():
    ended = []

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append("clean")

    run_until_stopped(main, first_words="Leaving.")
    assert ended == ["clean"]


def test_a_hang_up_that_was_ignored_at_the_start_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stop.is_set()

    try:
        run_until_stopped(main, first_words="Leaving.")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_system_without_hang_ups_asks_all_the_same(monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP")
    assert ending.asking() == (signal.SIGINT, signal.SIGTERM)


def test_a_fault_passes_through_and_the_signals_are_as_before():
    before = signal.getsignal(signal.SIGTERM)

    async def main(stop: asyncio.Event) -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        run_until_stopped(main, first_words="Leaving.")
    assert signal.getsignal(signal.SIGTERM) == before

"""A run as its organiser sees it go by: joins, rounds, losses, and in a terminal a live table."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from typing import TextIO

from swarmtrain.console.lines import stamped
from swarmtrain.console.view import Picture, Row, View, open_view
from swarmtrain.why.news import News
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.status import CoordinatorStatus

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Pause between two looks at the machine; no sentence is lost in between."""


@contextlib.asynccontextmanager
async def watched(machine: Rendezvous) -> AsyncIterator[None]:
    """Tell what happens at a coordinator while this is open, on stderr: stdout is for the invite.

    Whatever goes wrong in telling, a terminal that was closed for one, is no trouble of the run's.
    """
    stream = sys.stderr  # once there is a table this name stands for another one
    begun = machine.status(time.monotonic())
    news = News(begun.rounds, begun.term, begun.losses)
    view = open_view(stream)
    if begun.term > 1 and not begun.result:
        text = f"the run goes on after round {begun.round} of {begun.rounds}"
        view.say(stamped(text, stream))
    telling = asyncio.ensure_future(_keep_telling(machine, news, view, stream))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        with contextlib.suppress(OSError):
            _tell(machine, news, view, stream)
            view.close()


async def _keep_telling(machine: Rendezvous, news: News, view: View, stream: TextIO) -> None:
    try:
        while True:
            _tell(machine, news, view, stream)
            await asyncio.sleep(LOOK_S)
    except OSError:
        return  # nobody reads it any more
    except Exception:
        logger.exception("what happens can no longer be told; the run goes on")


def _tell(machine: Rendezvous, news: News, view: View, stream: TextIO) -> None:
    status = machine.status(time.monotonic())
    told = news.of_records(machine.writer.ledger.since(news.next_record))
    told += news.of_losses(status.losses)
    for text in told:
        view.say(stamped(text, stream))
    view.show(picture_of(status))


def picture_of(status: CoordinatorStatus) -> Picture:
    """The table of the peers that are in, and how far the run is."""
    rows = tuple(map(Row.of, status.peers))
    lines = [f"round {status.round} of {status.rounds}"]
    if status.losses:
        first, last = (status.losses[end(status.losses, key=int)] for end in (min, max))
        shown = f"{first:.3f} -> {last:.3f}" if len(status.losses) > 1 else f"{last:.3f}"
        lines[0] += f" | validation loss {shown}"
    if status.waiting_for:
        lines.append(f"waiting for {status.waiting_for}")
    return Picture(rows, tuple(lines), status.unit)

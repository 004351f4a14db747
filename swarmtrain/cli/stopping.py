"""Ctrl+C once leaves cleanly, twice leaves at once. For every command that runs for long."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from swarmtrain.cli.situation import say
from swarmtrain.errors import Interrupted

Main = Callable[[asyncio.Event], Awaitable[None]]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(main: Main, *, first_words: str) -> None:
    """Run `main` on a new loop; it should end soon after its event is set.

    The first SIGINT or SIGTERM sets the event, the second cancels `main`. A second process signal
    such as SIGKILL is not ours to answer: state on disk is whole at every moment.

    Args:
        main: called with the event that asks for a clean end.
        first_words: said at the first signal.

    Raises:
        Interrupted: the second signal came before the clean end; 128 + its number.
    """
    asyncio.run(_run(main, first_words))


async def _run(main: Main, first_words: str) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    task = asyncio.ensure_future(main(stop))
    urgent: list[int] = []

    def asked(number: int) -> None:
        if stop.is_set():
            urgent.append(number)
            task.cancel()
        else:
            stop.set()
            say(first_words)

    for number in _SIGNALS:
        loop.add_signal_handler(number, asked, number)
    try:
        await task
    except asyncio.CancelledError:
        if not urgent:
            raise
        raise Interrupted(128 + urgent[0]) from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

"""Ctrl+C once leaves cleanly, twice leaves at once; so does a closed terminal, but never at once.
For every command that runs for long."""

import asyncio
from collections.abc import Awaitable, Callable

from swarmtrain.cli.log import say
from swarmtrain.foundation import signals as ending
from swarmtrain.foundation.errors import Interrupted

Main = Callable[[asyncio.Event], Awaitable[None]]


def run_until_stopped(main: Main, *, first_words: str) -> None:
    """Run `main` on a new loop; it should end soon after its event is set.

    The first SIGINT, SIGTERM or SIGHUP sets the event, a further SIGINT or SIGTERM cancels `main`.
    SIGKILL is not ours to answer: state on disk is whole at every moment.

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
        if not stop.is_set():
            stop.set()
            ending.let_go_of_dead_streams()
            say(first_words)
        elif ending.insists(number):
            urgent.append(number)
            task.cancel()

    signals = ending.asking()
    for number in signals:
        loop.add_signal_handler(number, asked, number)
    try:
        await task
    except asyncio.CancelledError:
        if not urgent:
            raise
        raise Interrupted(128 + urgent[0]) from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)

"""Being asked to end, and having nobody left to tell.

A closed terminal sends SIGHUP, often twice (the system and the shell), and takes no line any more;
a pipe whose reader went takes none either. Neither may stand between a process and a clean end. A
process that was started with `nohup` had SIGHUP ignored, and it stays so.
"""

import errno
import os
import select
import signal
import sys
from typing import TextIO

_NOBODY = frozenset({errno.EPIPE, errno.EIO})
"""Error numbers of a write to a pipe without a reader, or to a terminal that was closed."""


def asking() -> tuple[int, ...]:
    """The signals that ask this process to end cleanly."""
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, hang_up)


def insists(number: int) -> bool:
    """Return True if this signal, coming second, means to leave at once. A terminal closes only
    once, however often that is said."""
    return number in (signal.SIGINT, signal.SIGTERM)


def tell(text: str, stream: TextIO, *, end: str = "\n") -> None:
    """Write a line. Once nobody can read it any more, nothing is written from then on."""
    try:
        stream.write(text + end)
        stream.flush()
    except OSError as error:
        if error.errno not in _NOBODY:
            raise
        _let_go(stream)


def let_go_of_dead_streams() -> None:
    """Send standard output and error to nowhere if nobody is at their other end; what waits in them
    would else fail when the process ends."""
    for stream in (sys.stdout, sys.stderr):
        if _is_dead(stream):
            _let_go(stream)


def _is_dead(stream: TextIO) -> bool:
    try:
        watch = select.poll()
        watch.register(stream.fileno(), 0)
        return bool(watch.poll(0))  # nothing was asked for but what always comes: error, hang-up
    except (AttributeError, OSError, ValueError):
        return False  # no such thing here, or no file behind the stream


def _let_go(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):
        return  # no file behind it, so nothing waits in one
    finally:
        os.close(nowhere)

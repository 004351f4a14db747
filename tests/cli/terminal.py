"""A terminal of the test's own that can be closed, with a process in its foreground."""

import fcntl
import os
import subprocess
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def _take(terminal: int) -> None:
    """In the child: this becomes the terminal that its session belongs to."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@contextmanager
def in_terminal(
    words: list[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen, int]]:
    """The process and our end of its terminal; whoever closes that closes the window."""
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environment),
            preexec_fn=lambda: _take(theirs),
        )  # fmt: skip
    finally:
        os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


def read_until(ours: int, text: bytes) -> bytes:
    """Read what the terminal shows until the text is in it, and return all that was read."""
    shown = b""
    while text not in shown:
        more = os.read(ours, 4096)
        assert more, shown
        shown += more
    return shown

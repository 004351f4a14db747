"""A mark in the environment of processes, which their own processes inherit wherever they go.

A program under test may start others, and they may leave its process group and outlive it, as
those of torchrun do. Linux shows a process's environment to its owner; elsewhere nothing is found,
and the process group alone is ended.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "SWARMTRAIN_STARTED_BY"

_LOOKS_MAX, _PAUSE_S = 100, 0.02
"""One that waits for a disk does not end at once, and is not waited for any longer."""


def marked(mark: str) -> Iterator[int]:
    """Process ids of those that bear this mark, or one that it begins and a slash follows."""
    head = os.fsencode(f"{VARIABLE}={mark}")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended, or is somebody else's
        if any(one == head or one.startswith(head + b"/") for one in found):
            yield int(folder.name)


def end_marked(mark: str) -> None:
    """Kill them all, and those that they are about to start; never this process."""
    for _ in range(_LOOKS_MAX):
        left = [number for number in marked(mark) if number != os.getpid()]
        if not left:
            return
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(_PAUSE_S)

"""A process that does nothing but outlive its starter for a moment, and then ends what is left.

Run as `python -m swarmtrain.local_run.guard`. It leads the process group of everything that a demo,
a chaos or an emulation starts and reads its standard input, whose other end the starter holds: when
that is gone for whatever reason, also by SIGKILL, the end of that input comes and the whole group
is ended. A group needs no list of process ids, so nobody else can be hit.

A program that somebody brings may start processes that leave the group. Whatever bears the mark
that is this guard's one argument is ended with it.
"""

import os
import signal
import sys
import time

from swarmtrain.local_run.marks import end_marked

GRACE_S = 5.0
"""For leaving cleanly; a stopped or stuck process is killed after it."""


def main(mark: str = "") -> None:
    """Wait for the end of standard input, then end the process group, this process last."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    if mark:
        end_marked(mark)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:2])

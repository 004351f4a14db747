"""A process that does nothing but outlive the demo for a moment, and then ends what is left.

Run as `python -m swarmtrain.demo.guard`. It leads the process group of everything that the demo
starts and reads its standard input, whose other end the demo holds: when the demo is gone for
whatever reason, also by SIGKILL, the end of that input comes and the whole group is ended. A group
needs no list of process ids, so nobody else can be hit.
"""

import os
import signal
import sys
import time

GRACE_S = 5.0
"""For leaving cleanly; a stopped or stuck process is killed after it."""


def main() -> None:
    """Wait for the end of standard input, then end the process group, this process last."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

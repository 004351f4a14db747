"""What `main` must know of the running command when something goes wrong.

The one mutable thing of the command line: made in `main`, handed down as typer's context object.
"""

import contextlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.ending import tell
from swarmtrain.lines import columns, wrapped

_SECRET = re.compile(r"(swarm://[^\s#\"']*#)[A-Za-z0-9_-]{16,}")


@dataclass(slots=True)
class Situation:
    """Facts that the command fills in as it learns them.

    Attributes:
        verbose: show tracebacks and debugging lines.
        at_coordinator: a full disk is the coordinator's.
        state_dir: where a report of a fault may be put; it exists.
    """

    verbose: bool = False
    at_coordinator: bool = False
    state_dir: Path | None = None

    def begin(self, *, verbose: bool) -> None:
        """Set up the log once the command line is understood."""
        from swarmtrain.cli import log

        self.verbose = self.verbose or verbose
        log.set_up(verbose=self.verbose)


def redact(text: str) -> str:
    """The text without the secrets of invites."""
    return _SECRET.sub(r"\1...", text)


def say(text: str) -> None:
    """A line for people, on stderr: stdout is for results.

    It may be that nobody reads it any more: that is no reason to stop anything.
    """
    with contextlib.suppress(OSError):
        tell(wrapped(redact(text), columns(sys.stderr)), sys.stderr)

"""The running command as `main` must know it when something goes wrong.

The one mutable thing of the command line: made in `main`, handed down as typer's context object.
"""

from dataclasses import dataclass
from pathlib import Path

from swarmtrain.cli import log


@dataclass(slots=True)
class Situation:
    """Facts that the command fills in as it learns them.

    Attributes:
        at_coordinator: True if a full disk is that of the coordinator.
        state_dir: existing folder for a report of a fault.
    """

    verbose: bool = False
    at_coordinator: bool = False
    state_dir: Path | None = None

    def begin(self, *, verbose: bool) -> None:
        """Set up the log."""
        self.verbose = self.verbose or verbose
        log.set_up(verbose=self.verbose)

"""Questions to the coordinator of a run on this machine, again and again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmtrain.foundation.errors import UserError
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Processes
from swarmtrain.status import ask_coordinator

_ASK_S = 0.7
"""Pause between two questions."""


@contextmanager
def asking(state_dir: Path, processes: Processes) -> Iterator[None]:
    """Ask the coordinator for its status, on a thread of its own; answers are news of it."""
    over = threading.Event()

    def keep_asking() -> None:
        while not over.wait(_ASK_S):
            try:
                found = ask_coordinator(state_dir)
            except UserError:
                continue  # not up yet, or no more
            processes.news.put((COORDINATOR, found))

    thread = threading.Thread(target=keep_asking, name="ask-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

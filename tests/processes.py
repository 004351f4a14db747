"""Processes on this machine."""

import os
from pathlib import Path


def living_in(folder: Path) -> list[str]:
    """Command lines of the processes that name this directory in theirs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue  # it has just ended
        if os.fsencode(folder) in words:
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found

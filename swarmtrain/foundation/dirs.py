"""Places for state on this machine. Directories are made for their owner alone (0700)."""

import errno
import os
from pathlib import Path

import platformdirs

from swarmtrain.foundation.errors import UserError, translate

COPIES_MAX = 64
"""Peers without a name on one machine in one run: as many as exchange directly."""

LIFETIME = "SWARMTRAIN_LIFETIME"
"""Variable that names another folder for totals: rehearsals have their own."""


def runs_dir() -> Path:
    """The directory that holds the default state directories of all runs. It may not exist."""
    return Path(platformdirs.user_state_dir("swarmtrain", appauthor=False)) / "runs"


def coordinator_dir(run: str) -> Path:
    """Default state directory of the coordinator of `run`."""
    return runs_dir() / run / "coordinator"


def peer_dirs(run: str, name: str, usual: str) -> tuple[Path, ...]:
    """Default state directories of a peer in `run`: it takes the first that no process uses.

    That of its name, if it has one; else `usual`, `usual`-2 and so on: so copies of one program are
    a peer each, and one that is started again finds what is free, which is what it left.
    """
    peers = runs_dir() / run / "peers"
    copies = range(2, COPIES_MAX + 1)
    return (peers / name,) if name else (peers / usual, *(peers / f"{usual}-{n}" for n in copies))


def mapping_consent() -> Path:
    """Return the file that keeps the answer whether this user's router may be asked for a port."""
    return Path(platformdirs.user_config_dir("swarmtrain", appauthor=False)) / "map-ports"


def reports_dir() -> Path:
    """Return the folder for reports of unexpected faults when no state directory is known yet."""
    return Path(platformdirs.user_state_dir("swarmtrain", appauthor=False)) / "reports"


def lifetime_dir() -> Path:
    """Return the folder of a user's totals, which outlive the state directories of runs."""
    usual = Path(platformdirs.user_state_dir("swarmtrain", appauthor=False)) / "lifetime"
    return Path(os.environ.get(LIFETIME, "") or usual)


def compared_dir() -> Path:
    """Return the folder in which finished runs of comparisons are kept unless another is named."""
    return Path(platformdirs.user_cache_dir("swarmtrain", appauthor=False)) / "compare"


def make_private(directory: Path) -> Path:
    """Make the directory and those above it that are missing, for the owner alone.

    A directory that exists keeps its rights: the user may have chosen them.

    Raises:
        UserError: SWT-E403, it cannot be made or is a file; SWT-E401, the disk is full.
    """
    try:
        make_owned(directory)
    except OSError as error:
        raise translate(error) or _unusable(directory, error.strerror or str(error)) from error
    return directory


def make_owned(directory: Path) -> None:
    """Make them as `make_private` does, for callers that word errors themselves.

    Raises:
        OSError: it cannot be made or is a file.
    """
    missing = []
    place = directory
    while not place.exists() and place != place.parent:
        missing.append(place)
        place = place.parent
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(directory))


def _unusable(directory: Path, reason: str) -> UserError:
    return UserError(
        "SWT-E403",
        f"Cannot use {directory} as state directory: {reason}.",
        "Without it the process could not come back after a stop.",
        "Name a directory that you own with --state-dir.",
    )

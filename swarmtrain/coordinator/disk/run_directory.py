"""Checks of a state directory: which run it belongs to, and what is left of it.

A directory holds one run's keys and log. Its settings are hashed into the log's first record, and
the key that signs the log lies beside it, so a changed run file, mixed files and a lost log are
noticed before anybody is let in.
"""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator import initial
from swarmtrain.coordinator.disk.certificate import (
    FRESH_KEY_FILE,
    RUN_KEY_FILE,
    TLS_FILE,
    KeyPlace,
    RunKeys,
    load_or_create,
    note_begun,
)
from swarmtrain.coordinator.disk.store import SIDE_FILES, Store
from swarmtrain.coordinator.disk.store_errors import (
    StoreDamaged,
    StoreOfEarlierVersion,
    StoreOfLaterVersion,
    damaged,
)
from swarmtrain.foundation.errors import UserError, translate
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.wire.records import Record, Run, body_of

Tell = Callable[[str], None]
"""Hears what the organiser must know, in sentences."""

Adoption = Callable[[tuple[Record, ...], int], None]

LOG = "The run's log"

_LEDGER_LOST = (
    "The ledger is missing: {} holds the keys of a run that has begun, and not its log.\n"
    "Waiting for a peer that has a copy; the run goes on from there. Nothing is decided before.\n"
    "If no peer is left, `swarmtrain up --new-run` begins another run here, with a new invite."
)


def keys_of(place: KeyPlace, wall_s: float, *, may_create: bool) -> RunKeys:
    """The run's keys, made if they may be.

    Raises:
        UserError: SWT-E805, missing or damaged; E402 or E403, they cannot be written.
    """
    try:
        return load_or_create(place, may_create=may_create, wall_s=wall_s)
    except OSError as exc:
        raise translate(exc, at_coordinator=True) or _unwritable(
            place.named(TLS_FILE), exc
        ) from exc


def check_same_run(first: Record, config: RunConfig, keys: RunKeys) -> None:
    """The ledger's first record must name these settings, this key and this protocol."""
    run = body_of(first)
    if not isinstance(run, Run):
        raise damaged(LOG, "its first record is not RUN")
    if run.config_hash != config_file.config_hash(config):
        raise UserError(
            "SWT-E606",
            f"The run file differs from the one that run {run.run_id} began with.",
            "Every peer checks its hash, so a run keeps its settings for life. The weights of\n"
            "`up --from` are among them.",
            "Bring back the old run file, or start a new run with --new-run or --state-dir.\n"
            "More rounds need no other file: `swarmtrain up RUN.TOML --rounds N` adds them.",
        )
    if run.run_key != keys.run_key_public:
        raise damaged(LOG, "its records are signed by another key than the one beside it")
    if run.protocol != limits.RUN_VERSION:
        raise UserError(
            "SWT-E703",
            f"The run goes by rules {run.protocol}, this version by {limits.RUN_VERSION}.",
            "Its peers would not understand this coordinator.",
            "Start it with the version of swarmtrain that it began with.",
        )


def note_run_begun(state_dir: Path, machine: Rendezvous, keys: RunKeys, tell: Tell) -> None:
    """From the first record on a ledger that is missing is a lost one."""
    if machine.recovery.is_missing:
        tell(_LEDGER_LOST.format(state_dir))
    else:
        note_begun(keys)


def adoption(store: Store, config: RunConfig, keys: RunKeys, tell: Tell) -> Adoption:
    """Make records durable that a peer has brought. A whole ledger must be of this run file, as one
    on the disk must."""

    def adopt(records: tuple[Record, ...], term: int) -> None:
        if not records[0].index:
            check_same_run(records[0], config, keys)
            tell("A peer has brought a copy of the lost ledger; others may have a longer one.")
        store.adopt(records, term)

    return adopt


def set_aside(state_dir: Path, tell: Tell, *, has_log: bool = True) -> None:
    """Make room for another run: what an earlier one left moves into a folder of its own.

    Args:
        has_log: False where the log lies elsewhere, so there may be nothing to move.

    Raises:
        UserError: SWT-E404, its coordinator runs; E403, the directory cannot be written.
    """
    if has_log or (state_dir / SIDE_FILES[0]).exists():
        with contextlib.suppress(StoreDamaged, StoreOfEarlierVersion, StoreOfLaterVersion):
            Store.open(state_dir).close()
    # The ledger first: keys that stay behind wait for it, a ledger without keys is of no use.
    names = (
        *SIDE_FILES,
        RUN_KEY_FILE,
        FRESH_KEY_FILE,
        TLS_FILE,
        initial.FILE_NAME,
        initial.FOLDER_NAME,
    )
    if not any((state_dir / name).exists() for name in names):
        return
    numbers = itertools.count(1)
    folder = next(f for n in numbers if not (f := state_dir / f"before-{n}").exists())
    try:
        folder.mkdir(mode=0o700)
        for name in names:
            if (state_dir / name).exists():
                (state_dir / name).rename(folder / name)
    except OSError as exc:
        raise translate(exc, at_coordinator=True) or _unwritable(state_dir, exc) from exc
    tell(f"Another run begins in {state_dir}. Keys and log of the one before are in {folder}.")


def _unwritable(state_dir: Path | str, error: OSError) -> UserError:
    return UserError(
        "SWT-E403",
        f"{state_dir} cannot be used: {error.strerror or error}.",
        "Without its state directory the coordinator could not come back after a stop.",
        "Name a directory that you own with --state-dir.",
    )

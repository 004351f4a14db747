"""The checkpoints that lie in peers' state directories: what they are, if they hold, which can go.

A list reads manifests alone and takes a moment; a check reads every byte. What may go is decided
by a check of what stays: the newest one that holds never goes, and a damaged one counts for none.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from swarmtrain import checkpoint
from swarmtrain.checkpoint import CheckpointDamaged
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.group_storage import GROUPS, group_folder, telling
from swarmtrain.trained.collect import Source, source_of
from swarmtrain.verify.peer_state import check_checkpoint, unused
from swarmtrain.verify.proof import Unproved
from swarmtrain_transport.wire.messages import FIRST_GROUP

ATTESTED, SILENT = "attested", "not attested"
"""Words of the ledger beside a checkpoint. It may have forgotten rounds of long ago."""


class Kept(msgspec.Struct, frozen=True):
    """A checkpoint.

    Attributes:
        path: folder of it.
        part: "whole", or which stage or expert.
        round: newest one that its state contains.
        state_root: root of that state in hex, as it says; "" if it says nothing.
        num_bytes: bytes of its files.
        age_s: seconds since it was written.
        ledger: ATTESTED, SILENT, or why the ledger beside it is of no use.
        problem: the objection to its files, as far as was looked; "" if there is none.
        checked: True if every byte was looked at.
    """

    path: str
    part: str
    round: int
    state_root: str
    num_bytes: int
    age_s: float
    ledger: str
    problem: str = ""
    checked: bool = False


def kept_in(directory: Path, *, check: bool = False) -> list[Kept]:
    """The checkpoints of a state directory, oldest first; the peer there may run.

    Args:
        directory: state directory of a peer.
        check: read every byte and prove that it is the state that manifest and ledger name.
    """
    now_s, (source, fault) = time.time(), _source(directory)
    found = []
    for group, path in _folders(directory):
        with suppress(FileNotFoundError):  # its peer has enough of later ones
            one = _looked_at(path, group, source, fault, now_s, check=check)
            if one.problem and check:  # of a round that the ledger did not know yet, perhaps
                source, fault = _source(directory)
                one = _looked_at(path, group, source, fault, now_s, check=check)
            if path.exists():
                found.append(one)
    return found


def _source(directory: Path) -> tuple[Source | None, str]:
    """The ledger there, or why it is of no use."""
    try:
        return source_of(directory), ""
    except UserError as error:
        return None, error.what


def prune(directory: Path, keep: int, *, removes: bool) -> list[Path]:
    """Checkpoints that are older than the newest `keep` that hold and are the run's, of each group;
    at least one stays.

    Args:
        directory: state directory of a peer that does not run.
        keep: number of checkpoints that stay.
        removes: True to remove them.

    Raises:
        UserError: SWT-E404, a peer runs there; SWT-E807, the ledger there does not hold, so that
            nothing can be trusted; E403, something cannot be removed.
    """
    found: list[Path] = []
    with unused(directory), telling(directory):
        source = source_of(directory)
        folders = list(_folders(directory))
        for group in dict(folders):
            here, left = [path for number, path in folders if number == group], max(1, keep)
            while here and left:
                left -= _holds(here.pop(), group, source)
            found += here
        for path in found if removes else ():
            checkpoint.remove(path)
    return found


def _folders(directory: Path) -> Iterator[tuple[int, Path]]:
    """(group, checkpoint) in order. Links are not followed: they may lead anywhere."""
    numbers = (one.name for one in (directory / GROUPS).glob("*") if one.name.isdecimal())
    for group in (FIRST_GROUP, *sorted(map(int, numbers))):
        folder = group_folder(directory, group) / "checkpoints"
        if not folder.is_symlink():
            for path in checkpoint.folders(folder):
                if not path.is_symlink():
                    yield group, path


def _looked_at(
    path: Path, group: int, source: Source | None, fault: str, now_s: float, *, check: bool
) -> Kept:
    part, op = _part(group, source), checkpoint.op_of(path)
    try:
        sizes = [one.lstat().st_size for one in path.iterdir()]
        age_s = max(0.0, now_s - path.stat().st_mtime)
        facts = checkpoint.claim(path)
    except PermissionError as error:
        why = f"{path} cannot be read: {error.strerror}"
        return Kept(str(path), part, op, "", 0, 0.0, fault or SILENT, why)
    except CheckpointDamaged as error:
        return Kept(str(path), part, op, "", sum(sizes), age_s, fault or SILENT, str(error))
    is_attested = source is not None and facts.state_root in source.attested(group, facts.op)
    problem = _problem(path, group, source) if check and source is not None else ""
    return Kept(
        str(path), part, op, facts.state_root.hex(), sum(sizes), age_s,
        fault or (ATTESTED if is_attested else SILENT), problem, check and source is not None,
    )  # fmt: skip


def _problem(path: Path, group: int, source: Source) -> str:
    """The objection to a checkpoint, "" if it holds."""
    view = source.view.groups.get(group)
    if view is None:
        return f"the ledger knows no group {group}"
    try:
        check_checkpoint(path, source.directory, source.run, view, source.config)
    except Unproved as error:
        return str(error)
    return ""


def _holds(path: Path, group: int, source: Source) -> bool:
    """Return True if a checkpoint is whole and its state attested: no REWIND has cancelled it."""
    try:
        facts = checkpoint.claim(path)
    except CheckpointDamaged:
        return False
    is_attested = facts.state_root in source.attested(group, facts.op)
    return is_attested and not _problem(path, group, source)


def _part(group: int, source: Source | None) -> str:
    stages = source.config.pipeline.num_stages if source is not None else 0
    experts = source.config.experts.count if source is not None else 0
    if experts > 1:
        return f"expert {group} of {experts}"
    if stages > 1:
        return f"stage {group} of {stages}"
    return "whole" if source is not None else f"group {group}"

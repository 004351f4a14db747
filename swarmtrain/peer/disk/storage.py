"""A peer's state directory: identity, run file, ledger copy, results, checkpoints.

Results of ops after a checkpoint let a peer go on from the run's newest op although the
checkpoint is older: state = checkpoint + replay. Those since its oldest checkpoint stay, so that
`swarmtrain verify` can make the same way again and prove where it leads. A lock keeps the
directory to one process.
"""

import errno
import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgpack

from swarmtrain import atomic_file, dirs
from swarmtrain.config import file as config_file
from swarmtrain.errors import UserError, disk_full, translate
from swarmtrain.peer.disk import identity_file, ledger_file
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import COMMITS_KEPT
from swarmtrain_transport.peer.ledger_copy import Beginning, beginning_of, ranges_of
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.identity import Identity
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Record

RUN_FILE = "run.msgpack"
"""The run file in canonical form: what the replay of a round needs to know."""

GROUPS = "groups"
"""Folder of the groups after the first, a folder per group."""

DOWNLOAD = "download"
"""Folder of a state that is being fetched: its manifest, and each verified chunk by its hash."""

IMAGE_FILE = "ledger-image.bin"
"""The SNAPSHOT that the ledger copy begins with, and its image, where the copy has a gap."""

PROOFS = "proofs"
"""Folder of proofs of wrong sums, a file per round (audit.Proof)."""

OWN_FILE = "own.safetensors"
"""State of this peer alone: error feedback, work that no round has taken yet."""

_MANIFEST = "manifest.bin"
_RESULT = ".bin"
_LINK = ".link"

_RESULT_FILES_MAX = 2 * limits.RESULT_KEEP_OPS
"""Results on disk: twice what is served, so that a proof reaches back behind a checkpoint."""

_HALVES_MAX = 4
"""Partners' halves on disk. Nothing is replayed from them, they are a sample for `verify`; float32
differences and anchors are eight times as long as int8 differences."""


class PeerStorage:
    """One peer's state directory, owned by this process while open.

    Args:
        directory: exists.

    Attributes:
        ledger: this peer's copy of the ledger.

    Raises:
        UserError: SWT-E404, another process owns it; SWT-E401 or E403, it cannot be written;
            SWT-E810, an earlier version has written it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self._lock = _take_lock(directory)
        try:
            (directory / "results").mkdir(exist_ok=True)
            self.ledger = ledger_file.LedgerLog(directory / ledger_file.FILE_NAME)
            if len(self.ledger.ranges) > 1 and self.beginning() is None:
                self.ledger.keep_only(self.ledger.ranges[:1])
        except UserError:
            self._lock.close()
            raise
        except OSError as error:
            self._lock.close()
            raise _told(error, directory) from error

    @classmethod
    def first_free(cls, directories: Sequence[Path]) -> "PeerStorage":
        """The first of these, made where it is missing, that no other process owns.

        Raises:
            UserError: as above; SWT-E404 if each is owned.
        """
        for directory in directories[:-1]:
            try:
                return cls(dirs.make_private(directory))
            except UserError as error:
                if error.code != "SWT-E404":
                    raise
        return cls(dirs.make_private(directories[-1]))

    def identity(self) -> Identity:
        """This peer's keys; made at the first start.

        Raises:
            UserError: SWT-E302 damaged, E401 or E403 not writable.
        """
        path = self.directory / identity_file.FILE_NAME
        try:
            if path.exists():
                return identity_file.load(path)
            identity = Identity.create()
            identity_file.save(identity, path)
            return identity
        except OSError as error:
            raise _told(error, self.directory) from error

    @property
    def records(self) -> Iterator[Record]:
        """Records to begin with: all, or those after the SNAPSHOT that the copy begins with."""
        begins = self.beginning()
        return self.ledger.replay(0 if begins is None else begins.snapshot.index + 1)

    def beginning(self) -> Beginning | None:
        """The SNAPSHOT that the ledger copy begins with, None where it has no gap, or cannot be
        begun after it."""
        path = self.directory / IMAGE_FILE
        return _begins(path, self.ledger.ranges, self.ledger.read)

    def begin_ledger(self, run: Record, snapshot: Record, image: bytes, *, frees: bool) -> None:
        """Let the ledger copy begin with a SNAPSHOT.

        Args:
            run: record 0.
            snapshot: the SNAPSHOT.
            image: what it names.
            frees: free the disk of what is before it.

        Raises:
            UserError: SWT-E401, the disk is full; what was there is intact.
        """
        raw = [run.to_bytes(), snapshot.to_bytes(), image]
        self._write(self.directory / IMAGE_FILE, msgpack.packb(raw))
        try:
            if frees:
                self.ledger.keep_only([(0, 1), (snapshot.index, self.ledger.ranges[-1][1])])
            else:
                known = bool(self.ledger.ranges)
                self.ledger.append([snapshot] if known else [run, snapshot])
        except OSError as error:
            raise _told(error, self.directory) from error

    def append_records(self, records: Sequence[Record]) -> None:
        """Keep newly accepted ledger records.

        Raises:
            UserError: SWT-E401, the disk is full; what was there is intact.
        """
        try:
            self.ledger.append(records)
        except OSError as error:
            raise _told(error, self.directory) from error

    def keep_run(self, canonical: bytes) -> None:
        """Keep the run file as the coordinator sent it.

        Raises:
            UserError: SWT-E401, the disk is full.
        """
        path = self.directory / RUN_FILE
        if not path.exists() or path.read_bytes() != canonical:
            self._write(path, canonical)

    def is_over(self, committed: int) -> bool:
        """Return True if so many committed rounds are all that the kept run file asks for."""
        try:
            config = config_file.from_canonical((self.directory / RUN_FILE).read_bytes())
        except (OSError, UserError, RemoteFault):
            return False  # none was kept, or it is damaged: the coordinator will send it
        return committed >= config.run.rounds

    def keep_result(self, result: OpResult) -> None:
        """Keep a committed result; the oldest goes when there are too many. Of a pair op that is
        the partner's half, and the link of this peer's chain beside it.

        Raises:
            UserError: SWT-E401, the disk is full; older results are intact.
        """
        is_half = result.kind == PAIR
        self.forget_results(result.op - (_HALVES_MAX if is_half else _RESULT_FILES_MAX))
        if not result.slices:
            return  # a pair op that had nothing for this peer
        data = msgpack.packb([list(piece.chunks) for piece in result.slices])
        # One comes with every round, which no disk shall slow down; a damaged one is not believed.
        self._write(result_path(self.directory, result.op), data, sync=False)
        if is_half and result.chain:
            self._write(link_path(self.directory, result.op), result.chain)
            for path in _numbered(self.directory, _LINK):
                if int(path.stem) <= result.op - COMMITS_KEPT:
                    path.unlink(missing_ok=True)

    def keep_own(self, data: bytes) -> None:
        """Keep what is this peer's own beside its newest checkpoint.

        Raises:
            UserError: SWT-E401, the disk is full; what was kept before is intact.
        """
        self._write(self.directory / OWN_FILE, data)

    def own(self) -> bytes | None:
        """Return the arrays that `keep_own` kept last."""
        try:
            return (self.directory / OWN_FILE).read_bytes()
        except FileNotFoundError:
            return None

    def keep_proof(self, op: int, data: bytes) -> None:
        """Keep the proof of somebody's wrong sum.

        Raises:
            UserError: SWT-E401, the disk is full.
        """
        folder = self.directory / PROOFS
        folder.mkdir(exist_ok=True)
        self._write(folder / f"{op:08}.proof", data)

    def forget_results(self, op: int) -> None:
        """Results up to this op are needed no more: a checkpoint holds what they led to."""
        for path in result_paths(self.directory):
            if int(path.stem) <= op:
                path.unlink(missing_ok=True)

    def forget_results_after(self, op: int) -> None:
        """Results of ops after this one were cancelled by a REWIND."""
        for suffix in (_RESULT, _LINK):
            for path in _numbered(self.directory, suffix):
                if int(path.stem) > op:
                    path.unlink(missing_ok=True)

    def results(self) -> dict[int, list[list[bytes]]]:
        """The newest results by op: chunks per slice, as many ops as are served. A file that
        makes no sense is left out; its chunks could not pass their hashes anyway."""
        kept = {}
        for path in result_paths(self.directory)[-limits.RESULT_KEEP_OPS :]:
            slices = read_result(path)
            if slices is not None:
                kept[int(path.stem)] = slices
        return kept

    # ---- a download of the run's state, for the case that this process does not live to end it

    def begin_download(self, manifest: StateManifest) -> None:
        """A state is being fetched: keep its manifest, and of kept chunks only those it needs.

        Raises:
            UserError: SWT-E401, the disk is full.
        """
        folder = self.directory / DOWNLOAD
        try:
            folder.mkdir(exist_ok=True)
            needed = {digest.hex() for digest in manifest.chunk_hashes}
            for path in folder.iterdir():
                if path.stem not in needed:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise _told(error, self.directory) from error
        self._write(folder / _MANIFEST, manifest.to_bytes())

    def keep_chunk(self, digest: bytes, data: bytes) -> None:
        """Keep a verified chunk.

        Raises:
            UserError: SWT-E401, the disk is full; chunks kept before are intact.
        """
        # Thousands come in a row, on the network's thread, and are checked when they are read.
        self._write(self.directory / DOWNLOAD / f"{digest.hex()}.chunk", data, sync=False)

    def download(self) -> tuple[bytes, list[bytes]] | None:
        """Manifest and chunks of a download that was not ended; their hashes say what they are."""
        folder = self.directory / DOWNLOAD
        try:
            manifest = (folder / _MANIFEST).read_bytes()
            return manifest, [path.read_bytes() for path in sorted(folder.glob("*.chunk"))]
        except FileNotFoundError:
            return None

    def end_download(self) -> None:
        """The state is in place and saved."""
        shutil.rmtree(self.directory / DOWNLOAD, ignore_errors=True)

    def _write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        try:
            atomic_file.write(path, data, sync=sync)
        except OSError as error:
            raise _told(error, self.directory) from error

    def close(self) -> None:
        """Give the directory back."""
        self.ledger.close()
        self._lock.close()


def _begins(
    path: Path,
    ranges: Sequence[tuple[int, int]],
    read: Callable[[int, int], Sequence[Record]],
) -> Beginning | None:
    """The SNAPSHOT whose image lies in this file, if a copy with these ranges begins with it."""
    try:
        run, snapshot, image = msgpack.unpackb(path.read_bytes())
        return beginning_of((run, snapshot, image), ranges, read) if ranges else None
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        return None


def beginning_in(directory: Path, records: Sequence[Record]) -> Beginning | None:
    """The SNAPSHOT with which the records in a state directory begin, None where they have no gap
    or there is none."""

    def read(first: int, stop: int) -> list[Record]:
        return [record for record in records if first <= record.index < stop]

    return _begins(directory / IMAGE_FILE, ranges_of(records), read)


def group_folder(directory: Path, group: int) -> Path:
    """Return where a state directory keeps a group's checkpoints, results, proofs and run file:
    group 0's lie in the directory itself, a later group's in a folder of the same shape."""
    return directory if group == FIRST_GROUP else directory / GROUPS / str(group)


def result_path(directory: Path, op: int) -> Path:
    """Return the path of an op's result in a state directory."""
    return directory / "results" / f"{op:08d}{_RESULT}"


def result_paths(directory: Path) -> list[Path]:
    """Kept results, oldest op first; the stem is the op."""
    return _numbered(directory, _RESULT)


def link_path(directory: Path, op: int) -> Path:
    """Return the path of the link, 32 bytes, that a pair op has added to this peer's chain."""
    return directory / "results" / f"{op:08d}{_LINK}"


def links(directory: Path) -> dict[int, bytes]:
    """The newest links of this peer's chain, by op, as it told them; in a run of pair ops."""
    return {int(path.stem): path.read_bytes() for path in _numbered(directory, _LINK)}


def _numbered(directory: Path, suffix: str) -> list[Path]:
    found = (directory / "results").glob(f"*{suffix}")
    return sorted((path for path in found if path.stem.isdecimal()), key=lambda p: int(p.stem))


def read_result(path: Path) -> list[list[bytes]] | None:
    """Chunks per slice of a kept result, None if the file is not one. Nothing vouches for the
    chunks but their hashes."""
    return parse_result(path.read_bytes())


def parse_result(data: bytes) -> list[list[bytes]] | None:
    """The same of a file's bytes, whatever they are."""
    try:
        slices = msgpack.unpackb(data, max_ext_len=0, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    if not isinstance(slices, list) or not all(isinstance(chunks, list) for chunks in slices):
        return None
    if not all(isinstance(chunk, bytes) for chunks in slices for chunk in chunks):
        return None
    return slices


def _take_lock(directory: Path) -> IO[bytes]:
    try:
        lock = (directory / "lock").open("wb")
    except OSError as error:
        raise _told(error, directory) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(
            "SWT-E404",
            f"Another process uses the state directory {directory}.",
            "A state directory belongs to one peer at a time.",
            "Stop the other one, or give this one another name (--name, in Python name=) or\n"
            "directory (--state-dir, state_dir=). Without any each copy has a place of its own.",
        ) from error
    return lock


def _told(error: OSError, directory: Path) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(str(directory), at_coordinator=False)
    return translate(error) or UserError(
        "SWT-E403",
        f"Cannot write to {directory}: {error.strerror or error}.",
        "Without its state directory this peer could not come back after a stop.",
        "Check the disk, or name a directory that you own with --state-dir.",
    )

"""One group's part of a state directory: results, a download, proofs, checkpoints, the peer's own.

Group 0 lies in the state directory itself, a later one in a folder of the same shape. Results of
ops after a checkpoint let a peer go on from the group's newest op although the checkpoint is older:
state = checkpoint + replay. Those since its oldest checkpoint stay, so that `swarmtrain verify` can
make the same way again and prove where it leads.
"""

import errno
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import msgspec

from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.errors import UserError, disk_full, translate
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import COMMITS_KEPT
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.messages import FIRST_GROUP

GROUPS = "groups"
"""Folder of the groups after the first, a folder per group."""

RUN_FILE = "run.msgpack"
"""The run file in canonical form: what the replay of a round needs to know."""

DOWNLOAD = "download"
"""Folder of a state that is being fetched: its manifest, and each verified chunk by its hash."""

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


class GroupStorage:
    """One group's part of a state directory that this process owns.

    Args:
        directory: the state directory.
        group: number of the group; its folder is made where it is missing.

    Attributes:
        directory: the group's folder.
        checkpoints: checkpoints of the group.

    Raises:
        UserError: SWT-E401, the disk is full; E403, a folder or a file cannot be made or used. Each
            method raises it, too, and then all that was there is intact.
    """

    def __init__(self, directory: Path, group: int) -> None:
        self.group = group
        self.directory = group_folder(directory, group)
        self.checkpoints = self.directory / "checkpoints"
        with telling(self.directory):
            (self.directory / "results").mkdir(parents=True, exist_ok=True)

    def keep_run(self, canonical: bytes) -> None:
        """Keep the run file as the coordinator sent it: that of all groups, with the first one."""
        path = self.directory / RUN_FILE
        with telling(self.directory):
            is_kept = path.exists() and path.read_bytes() == canonical
        if not is_kept:
            write(path, canonical)

    def keep_result(self, result: OpResult) -> None:
        """Keep a committed result; the oldest goes when there are too many. Of a pair op that is
        the partner's half, and the link of this peer's chain beside it."""
        is_half = result.kind == PAIR
        self.forget_results(result.op - (_HALVES_MAX if is_half else _RESULT_FILES_MAX))
        if not result.slices:
            return  # a pair op that had nothing for this peer
        # One comes with every round, which no disk shall slow down; a damaged one is not believed.
        write(result_path(self.directory, result.op), packed(result), sync=False)
        if is_half and result.chain:
            write(link_path(self.directory, result.op), result.chain)
            self._forget(range(result.op - COMMITS_KEPT + 1), _LINK)

    def keep_own(self, data: Iterable[Buffer]) -> None:
        """Keep what is this peer's own beside its newest checkpoint."""
        write(self.directory / OWN_FILE, data)

    def own(self) -> bytes | None:
        """Return the arrays that `keep_own` kept last."""
        with telling(self.directory):
            try:
                return (self.directory / OWN_FILE).read_bytes()
            except FileNotFoundError:
                return None

    def keep_proof(self, op: int, data: bytes) -> None:
        """Keep the proof of somebody's wrong sum."""
        folder = self.directory / PROOFS
        with telling(self.directory):
            folder.mkdir(exist_ok=True)
        write(folder / f"{op:08}.proof", data)

    def forget_results(self, op: int) -> None:
        """Results up to this op are needed no more: a checkpoint holds what they led to."""
        self._forget(range(op + 1), _RESULT)

    def forget_results_after(self, op: int) -> None:
        """Results of ops after this one were cancelled by a REWIND."""
        self._forget(range(op + 1, sys.maxsize), _RESULT, _LINK)

    def _forget(self, ops: range, *suffixes: str) -> None:
        with telling(self.directory):
            for suffix in suffixes:
                for path in _numbered(self.directory, suffix):
                    if int(path.stem) in ops:
                        path.unlink(missing_ok=True)

    def results(self) -> dict[int, list[list[bytes]]]:
        """The newest results by op: chunks per slice, as many ops as are served. A file that
        makes no sense is left out; its chunks could not pass their hashes anyway."""
        kept = {}
        with telling(self.directory):
            for path in result_paths(self.directory)[-limits.RESULT_KEEP_OPS :]:
                slices = read_result(path)
                if slices is not None:
                    kept[int(path.stem)] = slices
        return kept

    # ---- a download of the run's state, for the case that this process does not live to end it

    def begin_download(self, manifest: StateManifest) -> None:
        """A state is being fetched: keep its manifest, and of kept chunks only those it needs."""
        folder = self.directory / DOWNLOAD
        with telling(self.directory):
            folder.mkdir(exist_ok=True)
            needed = {digest.hex() for digest in manifest.chunk_hashes}
            for path in folder.iterdir():
                if path.stem not in needed:
                    path.unlink(missing_ok=True)
        write(folder / _MANIFEST, manifest.to_bytes())

    def keep_chunk(self, digest: bytes, data: bytes) -> None:
        """Keep a verified chunk."""
        # Thousands come in a row, on the network's thread, and are checked when they are read.
        write(self.directory / DOWNLOAD / f"{digest.hex()}.chunk", data, sync=False)

    def download(self) -> tuple[bytes, list[bytes]] | None:
        """Manifest and chunks of a download that was not ended; their hashes say what they are."""
        folder = self.directory / DOWNLOAD
        with telling(self.directory):
            try:
                manifest = (folder / _MANIFEST).read_bytes()
                return manifest, [path.read_bytes() for path in sorted(folder.glob("*.chunk"))]
            except FileNotFoundError:
                return None

    def end_download(self) -> None:
        """The state is in place and saved."""
        shutil.rmtree(self.directory / DOWNLOAD, ignore_errors=True)


def write(path: Path, data: bytes | Iterable[Buffer], *, sync: bool = True) -> None:
    """Write a file of a state directory, whole or not at all.

    Raises:
        UserError: SWT-E401, the disk is full; what was there is intact.
    """
    with telling(path.parent):
        atomic_file.write(path, data, sync=sync)


def group_folder(directory: Path, group: int) -> Path:
    """Return where a state directory keeps a group's checkpoints, results, proofs and run file:
    group 0's lie in the directory itself, a later group's in a folder of the same shape."""
    return directory if group == FIRST_GROUP else directory / GROUPS / str(group)


def result_path(directory: Path, op: int) -> Path:
    """Return the path of an op's result in a group's folder."""
    return directory / "results" / f"{op:08d}{_RESULT}"


def result_paths(directory: Path) -> list[Path]:
    """Kept results, oldest op first; the stem is the op."""
    return _numbered(directory, _RESULT)


def link_path(directory: Path, op: int) -> Path:
    """Return the path of the link, 32 bytes, that a pair op has added to this peer's chain."""
    return directory / "results" / f"{op:08d}{_LINK}"


def links(directory: Path) -> dict[int, bytes]:
    """The newest links of this peer's chain, by op, as it told them; in a run of pair ops."""
    return {
        int(path.stem): regular_file.read(path, limits.HASH_BYTES)
        for path in _numbered(directory, _LINK)
    }


def _numbered(directory: Path, suffix: str) -> list[Path]:
    found = (directory / "results").glob(f"*{suffix}")
    return sorted((path for path in found if path.stem.isdecimal()), key=lambda p: int(p.stem))


def read_result(path: Path, chunks: int | None = None) -> list[list[bytes]] | None:
    """Chunks per slice of a kept result, None if the file is not one. Nothing vouches for the
    chunks but their hashes.

    Args:
        path: path of the file.
        chunks: most chunks that it has; None where nobody else has written it.

    Raises:
        UnfitFile: it is longer.
    """
    most = None if chunks is None else (chunks + 1) * limits.FRAME_BYTES_MAX
    return parse_result(regular_file.read(path, most))


def packed(result: OpResult) -> Iterator[Buffer]:
    """The file of a result, msgpack, piece by piece: a list of slices, each a list of chunks."""
    packer = msgpack.Packer()
    yield packer.pack_array_header(len(result.slices))
    for piece in result.slices:
        yield packer.pack_array_header(len(piece.chunks))
        for chunk in piece.chunks:
            yield _bin_header(len(chunk))
            yield chunk


def _bin_header(size: int) -> bytes:
    """msgpack's own for bytes of this length: the packer has none without their contents."""
    for code, width in ((0xC4, 1), (0xC5, 2)):
        if size < 1 << 8 * width:
            return bytes([code]) + size.to_bytes(width, "big")
    return b"\xc6" + size.to_bytes(4, "big")


def parse_result(data: bytes) -> list[list[bytes]] | None:
    """Read a result from a file's bytes, whatever they are; None if they hold none."""
    with suppress(msgspec.DecodeError):
        return msgspec.msgpack.decode(data, type=list[list[bytes]])
    return None


@contextmanager
def telling(directory: Path) -> Iterator[None]:
    """Turn errors of the system in a state directory into ones that their reader can use.

    Raises:
        UserError: SWT-E401, the disk is full; E403, something cannot be written or read.
    """
    try:
        yield
    except OSError as error:
        raise told(error, directory) from error


def told(error: OSError, directory: Path) -> UserError:
    """Return the error of a state directory as its reader can use it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(str(directory), at_coordinator=False)
    in_the_way = _in_the_way(error)
    return (not in_the_way and translate(error)) or UserError(
        "SWT-E403",
        in_the_way or f"Cannot write to {directory}: {error.strerror or error}.",
        "Without its state directory this peer could not come back after a stop.",
        "Check the disk, or name a directory that you own with --state-dir.",
    )


def _in_the_way(error: OSError) -> str:
    """Say which file stands in the place of a folder or the reverse, "" if none does."""
    path = Path(error.filename2 or error.filename or "")
    if error.errno == errno.EISDIR:
        return f"{path} is a folder, where a file must be."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        place = next((one for one in (path, *path.parents) if one.exists()), path)
        return f"{place} is a file, where a folder must be."
    return ""

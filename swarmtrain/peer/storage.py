"""What a peer keeps in its state directory: identity, ledger copy, results, checkpoints, a lock.

The ledger copy grows by lz4 segments; a segment that a crash cut short is dropped, because the
coordinator sends those records again. Results of ops after the newest checkpoint let a peer go on
from the run's newest op although the checkpoint is older: state = checkpoint + replay.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import lz4.block
import msgpack

from swarmtrain.errors import UserError, disk_full, translate
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.identity import Identity
from swarmtrain_transport.ledger import Record, record_from_bytes
from swarmtrain_transport.result import OpResult

_SEGMENT = struct.Struct("<II")
_RESULTS_KEPT = limits.RESULT_KEEP_OPS


class PeerStorage:
    """One peer's state directory, owned by this process while open.

    Args:
        directory: exists.

    Raises:
        UserError: SWT-E404, another process owns it; SWT-E401 or E403, it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self._results = directory / "results"
        self._lock = _take_lock(directory)
        try:
            self._results.mkdir(exist_ok=True)
            self.records = _read_ledger(directory / "ledger.bin")
            # Unbuffered: what a full disk refused must not wait in a buffer and fail once more.
            self._ledger = (directory / "ledger.bin").open("ab", buffering=0)
        except OSError as error:
            self._lock.close()
            raise _told(error, directory) from error

    def identity(self) -> Identity:
        """This peer's keys; made at the first start.

        Raises:
            UserError: SWT-E302 damaged, E401 or E403 not writable.
        """
        path = self.directory / "identity.json"
        try:
            if path.exists():
                return Identity.load(path)
            identity = Identity.create()
            identity.save(path)
            return identity
        except OSError as error:
            raise _told(error, self.directory) from error

    def append_records(self, records: Sequence[Record]) -> None:
        """Keep newly accepted ledger records.

        Raises:
            UserError: SWT-E401, the disk is full; what was there is intact.
        """
        plain = b"".join(_framed(record.to_bytes()) for record in records)
        packed = lz4.block.compress(plain, store_size=False)
        segment = memoryview(_SEGMENT.pack(len(packed), len(plain)) + packed)
        whole_bytes = os.fstat(self._ledger.fileno()).st_size
        try:
            while segment:
                segment = segment[self._ledger.write(segment) :]
        except OSError as error:
            # A torn segment would hide those that follow it.
            os.ftruncate(self._ledger.fileno(), whole_bytes)
            raise _told(error, self.directory) from error

    def keep_result(self, result: OpResult) -> None:
        """Keep a committed result until enough newer ones are there.

        Raises:
            UserError: SWT-E401, the disk is full; older results are intact.
        """
        data = msgpack.packb([list(piece.chunks) for piece in result.slices])
        path = self._results / f"{result.op:08d}.bin"
        aside = path.with_suffix(".writing")
        try:
            aside.write_bytes(data)
            os.replace(aside, path)
            (self._results / f"{result.op - _RESULTS_KEPT:08d}.bin").unlink(missing_ok=True)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise _told(error, self.directory) from error

    def results(self) -> dict[int, list[list[bytes]]]:
        """Kept results by op: chunks per slice. A file that makes no sense is left out; its
        chunks could not pass their hashes anyway."""
        kept = {}
        for path in sorted(self._results.glob("*.bin")):
            try:
                slices = msgpack.unpackb(path.read_bytes(), max_ext_len=0)
            except (ValueError, msgpack.UnpackException):
                continue
            kept[int(path.stem)] = [[bytes(chunk) for chunk in chunks] for chunks in slices]
        return kept

    def close(self) -> None:
        """Give the directory back."""
        self._ledger.close()
        self._lock.close()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


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
            "Stop the other one, or name another directory: --state-dir, state_dir= in Python.",
        ) from error
    return lock


def _read_ledger(path: Path) -> list[Record]:
    """All records of whole segments; a torn tail is cut off, so that appending goes on."""
    if not path.exists():
        return []
    data = path.read_bytes()
    records: list[Record] = []
    position = 0
    while position + _SEGMENT.size <= len(data):
        packed_bytes, plain_bytes = _SEGMENT.unpack_from(data, position)
        start = position + _SEGMENT.size
        segment = _unpacked(data[start : start + packed_bytes], packed_bytes, plain_bytes)
        if segment is None:
            break
        records += segment
        position = start + packed_bytes
    if position < len(data):
        os.truncate(path, position)
    return records


def _unpacked(packed: bytes, packed_bytes: int, plain_bytes: int) -> list[Record] | None:
    """The records of one segment, None if it is torn. Sizes are checked before decoding."""
    if len(packed) != packed_bytes or plain_bytes > 2 * limits.CONTROL_BYTES_MAX:
        return None
    try:
        plain = lz4.block.decompress(packed, uncompressed_size=plain_bytes)
        records = []
        position = 0
        while position < len(plain):
            size = int.from_bytes(plain[position : position + 4], "little")
            raw = plain[position + 4 : position + 4 + size]
            records.append(record_from_bytes(raw))
            position += 4 + size
    except (lz4.block.LZ4BlockError, RemoteFault):
        return None
    return records


def _told(error: OSError, directory: Path) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(str(directory), at_coordinator=False)
    return translate(error) or UserError(
        "SWT-E403",
        f"Cannot write to {directory}: {error.strerror or error}.",
        "Without its state directory this peer could not come back after a stop.",
        "Check the disk, or name a directory that you own with --state-dir.",
    )

"""A peer's state directory: identity, ledger copy, and what belongs to each of its groups.

A lock keeps the directory to one process.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO
from weakref import WeakSet

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.foundation import dirs, regular_file
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk import identity_file, ledger_file
from swarmtrain.peer.disk.group_storage import RUN_FILE, GroupStorage, telling, told, write
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.peer.ledger_copy import Beginning, beginning_of, ranges_of
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Record

IMAGE_FILE = "ledger-image.bin"
"""The SNAPSHOT that the ledger copy begins with, and its image, where the copy has a gap."""

_IMAGE_FILE_BYTES_MAX = limits.IMAGE_BYTES_MAX + 2 * limits.CONTROL_BYTES_MAX
"""An image, and the two records beside it."""

_locks: WeakSet[IO[bytes]] = WeakSet()


def _forget_locks() -> None:
    """A forked process shares the lock, and would keep it from whoever comes after its parent."""
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_forget_locks)


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
        self._lock = _take_lock(directory)
        try:
            self._groups = {FIRST_GROUP: GroupStorage(directory, FIRST_GROUP)}
            self.ledger = ledger_file.LedgerLog(directory / ledger_file.FILE_NAME)
            if len(self.ledger.ranges) > 1 and self.beginning() is None:
                self.ledger.keep_only(self.ledger.ranges[:1])
        except UserError:
            self._lock.close()
            raise
        except OSError as error:
            self._lock.close()
            raise told(error, directory) from error

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

    def of(self, group: int) -> GroupStorage:
        """The part of one group.

        Raises:
            UserError: SWT-E401 or E403, it cannot be made.
        """
        if group not in self._groups:
            self._groups[group] = GroupStorage(self.directory, group)
        return self._groups[group]

    def identity(self) -> Identity:
        """This peer's keys; made at the first start.

        Raises:
            UserError: SWT-E302 damaged, E401 or E403 not writable.
        """
        path = self.directory / identity_file.FILE_NAME
        with telling(self.directory):
            if path.exists():
                return identity_file.load(path)
            identity = Identity.create()
            identity_file.save(identity, path)
            return identity

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
            image: image that it names.
            frees: free the disk of what is before it.

        Raises:
            UserError: SWT-E401, the disk is full; what was there is intact.
        """
        raw = [run.to_bytes(), snapshot.to_bytes(), image]
        write(self.directory / IMAGE_FILE, msgspec.msgpack.encode(raw))
        with telling(self.directory):
            if frees:
                self.ledger.keep_only([(0, 1), (snapshot.index, self.ledger.ranges[-1][1])])
            else:
                known = bool(self.ledger.ranges)
                self.ledger.append([snapshot] if known else [run, snapshot])

    def append_records(self, records: Sequence[Record]) -> None:
        """Keep newly accepted ledger records.

        Raises:
            UserError: SWT-E401, the disk is full; what was there is intact.
        """
        with telling(self.directory):
            self.ledger.append(records)

    def is_over(self, committed: int, rounds: int) -> bool:
        """Return True if so many committed rounds are all that the kept run file asks for, or
        these `rounds`, if more were added since."""
        try:
            config = config_file.from_canonical(
                regular_file.read(self.directory / RUN_FILE, config_file.FILE_BYTES_MAX)
            )
        except (OSError, UserError, RemoteFault):
            return False  # none was kept, or it is damaged: the coordinator will send it
        return committed >= max(config.num_ops, rounds)

    def close(self) -> None:
        """Give the directory back."""
        self.ledger.close()
        if not self._lock.closed:
            # In words: a process that is being forked off just now shares the lock yet.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()


def _begins(
    path: Path,
    ranges: Sequence[tuple[int, int]],
    read: Callable[[int, int], Sequence[Record]],
) -> Beginning | None:
    """The SNAPSHOT whose image lies in this file, if a copy with these ranges begins with it."""
    try:
        data = regular_file.read(path, _IMAGE_FILE_BYTES_MAX)
        raw = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes])
        return beginning_of(raw, ranges, read) if ranges else None
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def beginning_in(directory: Path, records: Sequence[Record]) -> Beginning | None:
    """The SNAPSHOT with which the records in a state directory begin, None where they have no gap
    or there is none."""

    def read(first: int, stop: int) -> list[Record]:
        return [record for record in records if first <= record.index < stop]

    return _begins(directory / IMAGE_FILE, ranges_of(records), read)


def _take_lock(directory: Path) -> IO[bytes]:
    with telling(directory):
        lock = (directory / "lock").open("wb")
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
    _locks.add(lock)
    return lock

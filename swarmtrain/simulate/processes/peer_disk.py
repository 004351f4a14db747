"""A simulated peer's state directory."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.machine import Image
from swarmtrain.peer.training.state_image import StateImage
from swarmtrain_transport import actions as do
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.blocks.retention import bytes_of
from swarmtrain_transport.blocks.shelf import MemoryShelf
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.peer.ledger_copy import Beginning, beginning_of, ranges_of
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Record

_SAVED_ROUNDS = 2
"""The state of every so many ops is saved, if there is a copy of it."""

_RESULTS_KEPT = 8
_OLDER_KEPT = 2


@dataclass(slots=True)
class PeerDisk:
    """A peer's state directory: what a process of the same key finds when it comes back.

    Attributes:
        records: copy of the ledger, by index.
        begins: record 0, the SNAPSHOT that the copy begins with where it has a gap, and its image.
        image: the newest state that was saved.
        own: tensors that were this peer's own then, by name.
        results: committed results kept for others.
        manifest: manifest of a state whose download was begun and not ended.
        chunks: chunks of it that are here, by hash.
        later: the same of each group beside the first.
        shelf: states that it keeps for others.
        older: states that were saved before `image`, each with what was the peer's own.
    """

    records: list[Record] = field(default_factory=list)
    begins: tuple[bytes, bytes, bytes] | None = None
    image: Image | None = None
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    results: list[OpResult] = field(default_factory=list)
    manifest: StateManifest | None = None
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    later: dict[int, "PeerDisk"] = field(default_factory=dict)
    shelf: MemoryShelf = field(default_factory=MemoryShelf)
    older: list[tuple[Image, dict[str, torch.Tensor]]] = field(default_factory=list)

    def of(self, group: int) -> "PeerDisk":
        """Return the part of one group."""
        return self.later.setdefault(group, PeerDisk()) if group else self

    def read(self, first: int, stop: int) -> list[Record]:
        """Records of the ledger copy."""
        start, end = (bisect_left(self.records, at, key=_index_of) for at in (first, stop))
        return self.records[start:end]

    def keep_record(self, record: Record) -> None:
        """Put a record into its place."""
        if not self.records or self.records[-1].index < record.index:
            self.records.append(record)
        else:
            insort(self.records, record, key=_index_of)

    def begin_ledger(self, begins: do.LedgerBegins) -> None:
        """The copy begins with a SNAPSHOT."""
        run, snapshot = begins.run, begins.snapshot
        self.begins = run.to_bytes(), snapshot.to_bytes(), begins.image
        if begins.frees:
            self.records = [run, *(one for one in self.records if one.index >= snapshot.index)]
        else:
            self.records += [snapshot] if self.records else [run, snapshot]

    def beginning(self) -> Beginning | None:
        """The SNAPSHOT that the copy begins with, None where it has no gap. Records behind a gap
        that cannot be begun with are dropped."""
        ranges = ranges_of(self.records)
        begins = beginning_of(self.begins, ranges, self.read) if self.begins and ranges else None
        if begins is None and len(ranges) > 1:
            self.records = self.read(*ranges[0])
        return begins

    def save(
        self, image: Image, own: Iterable[tuple[str, Tensor]], *, is_last: bool = False
    ) -> None:
        """Save a state, if there is a copy of it and it is its turn or the last one, and what is
        the peer's own."""
        if image.chunks is not None and (is_last or image.op % _SAVED_ROUNDS == 0):
            if self.image is not None:
                self.older = [*self.older, (self.image, self.own)][-_OLDER_KEPT:]
            self.image, self.own = image, {name: array.clone() for name, array in own}

    def forget_cancelled(self, view: GroupView) -> None:
        """Drop states of ops that a REWIND has cancelled, as `recall` does with checkpoints."""
        while self.image is not None and view.last_op < self.image.op <= view.cancelled_op:
            self.image, self.own = self.older.pop() if self.older else (None, {})

    def restored(self, driver: Driver) -> StateImage | None:
        """The state that was saved, None without one."""
        saved = self.image
        if saved is None or saved.chunks is None:
            return None
        flat = torch.from_numpy(
            np.frombuffer(b"".join(map(bytes_of, saved.chunks)), dtype="<f4").copy()
        )
        parts = torch.split(flat, [spec.num_values for spec in saved.manifest.arrays])
        names = [spec.name for spec in saved.manifest.arrays]
        return driver.restored(saved.op, dict(zip(names, parts, strict=True)), self.own or None)

    def begin_download(self, manifest: StateManifest) -> None:
        """A state is being fetched; of what is here only its own chunks are kept."""
        self.manifest = manifest
        self.chunks = {d: c for d, c in self.chunks.items() if d in manifest.chunk_hashes}

    def end_download(self) -> None:
        """The state is in place."""
        self.manifest, self.chunks = None, {}

    def keep_result(self, result: OpResult) -> None:
        """Keep the newest few."""
        self.results.append(result)
        del self.results[:-_RESULTS_KEPT]


def _index_of(record: Record) -> int:
    return record.index

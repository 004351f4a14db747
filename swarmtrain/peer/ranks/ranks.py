"""The ranks of a job among themselves: commands of rank 0, and values that travel.

Everything goes over process groups of gloo that are swarmtrain's own, on the CPU, whatever the
training uses; torchrun's rendezvous connects them. Commands and values come from the training
threads of all ranks, in step. Requests to encode come from rank 0's network thread at any moment,
so they have a group of their own (`asks`). A rank that dies closes its connections, and whoever
waits for it fails at once.
"""

import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.ranks.places import Moves

MEET_S = 120.0
"""Ranks come to `swarmtrain.join` within this of each other: each has loaded its model by then."""

_PATIENCE = timedelta(days=365)
"""A rank waits for rank 0 as long as that waits for the run."""

_HEAD = 3


class Ranks:
    """This rank, and its connections to the others.

    Attributes:
        rank: own number; 0 talks to the swarm.
        size: number of ranks.
        asks: the group of requests to encode.

    Raises:
        UserError: SWT-E643, the others did not come.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        try:
            meeting = dist.new_group(backend="gloo", timeout=timedelta(seconds=MEET_S))
            dist.monitored_barrier(meeting, timedelta(seconds=MEET_S), wait_all_ranks=True)
            dist.destroy_process_group(meeting)
        except RuntimeError as error:
            raise UserError(
                "SWT-E643",
                f"Not all {self.size} ranks of this job came to swarmtrain.join: {error}",
                "A job is one peer, which all of its ranks make up together.",
                "Give the invite (SWARMTRAIN_INVITE) to torchrun on every machine, and call"
                " swarmtrain.join in every rank.",
            ) from error
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self.asks = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def close(self) -> None:
        """Say and hear nothing more.

        A thread of gloo's frees the last tensor that was moved. It needs Python's lock for that,
        and where the process has begun to end by then, Python ends the thread in the middle of
        C++, which aborts the process. The threads of a group that is destroyed have ended.
        """
        for name in ("_group", "asks"):
            with contextlib.suppress(AssertionError, RuntimeError, ValueError):  # all are gone
                dist.destroy_process_group(getattr(self, name))
            setattr(self, name, None)

    @property
    def leads(self) -> bool:
        """True if this is rank 0."""
        return self.rank == 0

    # ---- commands

    def tell(self, word: int, data: bytes = b"", steps: int = 0) -> None:
        """Rank 0: say something to all others, and how many inner steps it counts."""
        dist.broadcast(torch.tensor([word, len(data), steps]), 0, group=self._group)
        if data:
            dist.broadcast(_tensor_of(data), 0, group=self._group)

    def hear(self) -> tuple[int, bytes, int]:
        """Wait at another rank for the next word of rank 0."""
        head = torch.zeros(_HEAD, dtype=torch.int64)
        dist.broadcast(head, 0, group=self._group)
        word, num_bytes, steps = head.tolist()
        if not num_bytes:
            return word, b"", steps
        data = torch.empty(num_bytes, dtype=torch.uint8)
        dist.broadcast(data, 0, group=self._group)
        return word, data.numpy().tobytes(), steps

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """Numbers of each rank, of one shape and type."""
        found = [torch.empty_like(numbers) for _ in range(self.size)]
        dist.all_gather(found, numbers, group=self._group)
        return found

    def any(self, flags: Tensor) -> Tensor:
        """(n,) bool: true where it is in some rank."""
        found = flags.to(torch.uint8)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return found.bool()

    # ---- values

    def move(self, moves: Moves, source: Tensor, target: Tensor) -> None:
        """Bring pieces to their places; all ranks take part at once.

        Args:
            moves: moves of all ranks.
            source: (n,) what this rank gives from.
            target: (m,) of the same type, what it puts into.
        """
        me, jobs, packed, coming = self.rank, [], [], []
        for other in range(self.size):
            if other != me and (given := moves.of(me, other)):
                piece = torch.cat([source[low : low + size] for low, _, size in given])
                packed.append(piece)
                jobs.append(self._isend(piece, other))
            if other != me and (taken := moves.of(other, me)):
                room = torch.empty(sum(size for _, _, size in taken), dtype=target.dtype)
                coming.append((room, taken))
                jobs.append(self._irecv(room, other))
        for low, place, size in moves.of(me, me):
            target[place : place + size] = source[low : low + size]
        for job in jobs:
            job.wait()
        for room, taken in coming:
            at = 0
            for _, place, size in taken:
                target[place : place + size] = room[at : at + size]
                at += size

    def send_bytes(
        self, others: Iterable[int], parts: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        """Rank 0: give the same bytes to some ranks."""
        data = [_tensor_of(part) for part in parts]
        for job in [self._isend(one, other) for other in others for one in data]:
            job.wait()

    def take_bytes(self, lengths: Sequence[int], source: int = 0) -> list[bytes]:
        """Bytes of known lengths from another rank."""
        rooms = [torch.empty(length, dtype=torch.uint8) for length in lengths]
        for job in [self._irecv(room, source) for room in rooms]:
            job.wait()
        return [room.numpy().tobytes() for room in rooms]

    def _isend(self, data: Tensor, other: int) -> dist.Work:
        job = dist.isend(data, other, group=self._group)
        assert job is not None
        return job

    def _irecv(self, room: Tensor, other: int) -> dist.Work:
        job = dist.irecv(room, other, group=self._group)
        assert job is not None
        return job


def _tensor_of(data: bytes | bytearray | memoryview) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

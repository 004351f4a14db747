"""Giver's side of a slice that one peer alone gives: what it has encoded is the result, as it is.

There is nothing to scatter and nothing to sum. The contribution is encoded chunk by chunk, kept and
served by hash like any result, and signed as a whole. When the coordinator tells of it, which it
does to all who take it at once and after the PLAN, its chunks are pushed, so that nobody need ask;
what gets lost, or is too much to be pushed, is asked for (`taker`).
"""

import enum
from collections import deque
from collections.abc import Collection

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.ledger.transfers import Transfer
from swarmtrain_transport.phases import Table, entered
from swarmtrain_transport.wire.messages import Hashes, SliceDone


class Publishing(enum.Enum):
    """Progress of a slice of our own."""

    ENCODING = enum.auto()
    ENCODED = enum.auto()
    """Takers may not know of it yet."""
    PUSHING = enum.auto()
    PUSHED = enum.auto()


_NEXT: Table[Publishing] = {
    Publishing.ENCODING: {Publishing.ENCODED},
    Publishing.ENCODED: {Publishing.PUSHING},
    Publishing.PUSHING: {Publishing.PUSHED},
}


class Publisher:
    """A slice that we alone give.

    Args:
        view: the ledger's view of the op; it changes as records are folded.
        transfer: the slice.
        contribution: own values.
        blobs: store of the chunks, which serves them.
        gone: hashes of what was sent before the op, which is not pushed again.

    Attributes:
        done: our publication, once it is made.
    """

    attempt = 0

    def __init__(
        self,
        view: OpView,
        transfer: Transfer,
        contribution: Contribution,
        blobs: Blobs,
        gone: Collection[bytes] = (),
    ) -> None:
        self.slice_index = transfer.index
        self.takers = transfer.takers
        self.phase = Publishing.ENCODING
        self.done: SliceDone | None = None
        self._view = view
        self._counts_with = (transfer.index, *transfer.needs)
        self._contribution: Contribution | None = contribution
        self._blobs = blobs
        self._gone = gone
        self._digests: list[bytes] = []
        self._to_push: deque[int] = deque()
        self._pushed_bytes = 0

    @property
    def is_busy(self) -> bool:
        """True if there is more to encode or to push."""
        return self.phase in (Publishing.ENCODING, Publishing.PUSHING)

    def decided(self) -> None:
        """The view has changed: if FREEZE has left us out, nobody needs our chunks."""
        if self.phase is Publishing.PUSHING and not self._may_count:
            self._to_push.clear()
            self._enter(Publishing.PUSHED)

    def encode(self) -> tuple[bytes, ...] | None:
        """Encode some more chunks; the hashes of all of them after the last.

        Raises:
            ContributionRefused: the values cannot be sent.
        """
        plan, contribution = self._view.plan, self._contribution
        assert contribution is not None
        count = num_chunks(plan, self.slice_index)
        for chunk in range(len(self._digests), count)[: limits.PUMP_CHUNKS]:
            start, stop = chunk_range(plan, self.slice_index, chunk)
            data = contribution.encode(start, stop, window_of(plan))
            self._digests.append(self._blobs.keep_result(plan.op, data))
        if len(self._digests) < count:
            return None
        self._enter(Publishing.ENCODED)
        self._contribution = None
        return tuple(self._digests)

    def told(self, message: Hashes) -> None:
        """HASHES of some slice: if it is ours, whoever takes it knows of it."""
        is_ours = self.done is not None and message.set_id == self.done.set_id
        if not is_ours or message.slice_index != self.slice_index:
            return
        if self.phase is Publishing.ENCODED:
            self._enter(Publishing.PUSHING)
            chunks = range(len(self._digests)) if self._may_count else ()
            self._to_push.extend(
                chunk for chunk in chunks if self._digests[chunk] not in self._gone
            )

    def push(self) -> list[tuple[int, Buffer]]:
        """Take some more chunks that may be pushed now."""
        if self.phase is not Publishing.PUSHING:
            return []
        chunks: list[tuple[int, Buffer]] = []
        for _ in range(min(limits.PUMP_CHUNKS, len(self._to_push))):
            chunk = self._to_push.popleft()
            data = self._blobs.get(self._digests[chunk])
            if data is not None:
                self._pushed_bytes += len(data)
                chunks.append((chunk, data))
        if not self._to_push or self._pushed_bytes >= limits.GATHER_PUSH_BYTES:
            self._to_push.clear()
            self._enter(Publishing.PUSHED)
        return chunks

    @property
    def _may_count(self) -> bool:
        """True if the slice, and those it counts with, may still be committed."""
        return all(self._view.slice_sets[index] != () for index in self._counts_with)

    def _enter(self, phase: Publishing) -> None:
        self.phase = entered(phase, self.phase, _NEXT)

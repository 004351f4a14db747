"""The starting point of a rule that remembers: the last result of the same values (protocol.md rule
7).

Centered clipping moves a centre, and beginning from the last result is what makes slow attacks cost
time. The result is committed and named by hashes, so everybody means the same bytes; all who took
part in the op, or have caught up with it, have them. PLAN names the op. It does so only if all
contributors have said with READY that they have its result; if one has not, such as a joiner that
took a later state, or all of them after a restart, the rule begins from zero in that round.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer, Window
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.ledger.fold import GroupView, OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.ledger.inner_products import CENTRED
from swarmtrain_transport.ledger.plan_rules import centre_of
from swarmtrain_transport.wire.records import Commit


def has_centre(view: GroupView, blobs: Blobs, op: int) -> bool:
    """Return True if READY of `op` may say that its centre is here; only asked in runs that need
    one."""
    if view.op is None or view.op.plan.scalars != CENTRED:
        return False
    found = view.commits.get(centre_of(view, op))
    return found is not None and Centre(found, blobs).is_here


@dataclass(frozen=True, slots=True)
class Piece:
    """Values [low, high) of a result chunk of `num_values` values."""

    chunk: Buffer
    num_values: int
    low: int
    high: int


class Centre:
    """A committed result as the vector that a rule begins from.

    Args:
        view: the ledger's view of its op.
        blobs: where its chunks are.
    """

    def __init__(self, view: OpView, blobs: Blobs) -> None:
        self._view = view
        self._blobs = blobs

    @property
    def window(self) -> Window:
        """How it is encoded."""
        return window_of(self._view.plan)

    @property
    def is_here(self) -> bool:
        """True if all of it can be read."""
        return self.covers(0, self._view.plan.slices[-1].stop)

    def covers(self, start: int, stop: int) -> bool:
        """Return True if values [start, stop) can be read."""
        return all(digest in self._blobs for digest, *_ in self._places(start, stop))

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Yield the pieces that cover values [start, stop), in order.

        Raises:
            LocalFault: some of it is not here.
        """
        found = []
        for digest, num_values, low, high in self._places(start, stop):
            body = self._blobs.get(digest)
            if body is None:
                raise LocalFault("the result that a rule begins from is not here")
            found.append(Piece(body, num_values, low, high))
        return found

    def _places(self, start: int, stop: int) -> Iterator[tuple[bytes, int, int, int]]:
        """(hash, values, low, high) of the chunks there; a hash that is not known is b""."""
        plan, commit = self._view.plan, self._view.outcome
        assert isinstance(commit, Commit)
        for index, (spec, outcome) in enumerate(zip(plan.slices, commit.slices, strict=True)):
            if spec.stop <= start or stop <= spec.start:
                continue
            listed = bytes(self._blobs.get(outcome.root) or b"")
            for chunk in range(num_chunks(plan, index)):
                first, last = chunk_range(plan, index, chunk)
                if last <= start or stop <= first:
                    continue
                at = chunk * limits.HASH_BYTES
                digest = listed[at : at + limits.HASH_BYTES]
                yield digest, last - first, max(start, first) - first, min(stop, last) - first

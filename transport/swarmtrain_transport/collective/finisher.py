"""Owner's side of an op in cells: the mean of one slice, made of the sums of all cells (rule 8).

Sums are exact, so it does not matter which comes first, and a mean over all planned contributors is
made before FREEZE as without cells (T3). A sum is named by the set of contributors that it is over;
when the ledger decides another set for a cell, that cell's sum is awaited once more.
"""

from typing import NamedTuple

from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, set_id, window_of
from swarmtrain_transport.ledger.signed_roots import is_signature, sum_payload
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Verify

NO_SUM = set_id(())
"""Names the sum of a cell that nobody contributes in: it need not be sent."""


class _Taken(NamedTuple):
    name: int
    kept: Kept
    signature: bytes


class Finisher:
    """One attempt at the mean of one slice.

    Args:
        view: the ledger's view of the op.
        slice_index: index of the slice.
        attempt: number of the attempt at it.
        arithmetic: exact chunk arithmetic.
        retention: keeps the sums.
        verify: checks a signature.

    Attributes:
        result: encoded chunks that are made, by number; all of the set `name`.
        name: names the contributors whose mean it is.
    """

    def __init__(
        self,
        view: OpView,
        slice_index: int,
        attempt: int,
        arithmetic: Arithmetic,
        retention: Retention,
        verify: Verify,
    ) -> None:
        self.slice_index, self.attempt = slice_index, attempt
        self.result: dict[int, bytes] = {}
        self.name: int | None = None
        self._view, self._arithmetic, self._retention = view, arithmetic, retention
        self._verify = verify
        self._window = window_of(view.plan)
        self._num_chunks = num_chunks(view.plan, slice_index)
        self._sums: dict[tuple[int, int], _Taken] = {}

    @property
    def is_whole(self) -> bool:
        """True if all of the mean is made."""
        return len(self.result) == self._num_chunks

    @property
    def given(self) -> tuple[PeerId, ...] | None:
        """Contributors of our own cell whose parts are in the mean."""
        name, index = self._view.given_set_id(self.slice_index), self.slice_index
        decided = self._view.given_sets[index]
        return decided if decided is not None or name is None else self._view.givers(index)

    def take(self, cell: int, chunk: int, name: int, data: Buffer, signature: bytes) -> bool:
        """Take a cell's sum of one chunk, signed by the owner there; return True if it is new.

        Raises:
            RemoteFault: it is none that the cell's legal parts can have, or is not signed; it is
                not used.
        """
        if not 0 <= chunk < self._num_chunks:
            raise RemoteFault("member", f"sum of chunk {chunk} is not planned")
        known = self._sums.get((cell, chunk))
        # One that counts may be in the mean already, and is what an auditor is to see.
        if known is not None and known.name in (name, self._expected(cell)):
            return False
        place = self._view.cells.owned(cell, self.slice_index)
        weight = sum(self._view.weights[peer] for peer in self._view.givers(place))
        self._arithmetic.check_sum(data, self._values(chunk), self._window, weight)
        own = place, self._view.attempts[place]
        payload = sum_payload(
            self._view.plan_hash, own, (self.slice_index, chunk), name, content_hash(data)
        )
        owner = self._view.owners[place]
        if not is_signature(signature) or not self._verify(owner, signature, payload):
            raise RemoteFault("signature", "a sum that is not signed by who sends it")
        if known is not None:
            known.kept.release()
        self._sums[cell, chunk] = _Taken(name, self._retention.keep(data), signature)
        return True

    def sums_of(self, chunk: int) -> dict[int, tuple[bytes, bytes]]:
        """The cells' sums that a chunk is made of, each with its signature."""
        taken = {cell: one for (cell, at), one in self._sums.items() if at == chunk}
        return {cell: (bytes(one.kept.read()), one.signature) for cell, one in taken.items()}

    def missing(self, cell: int) -> tuple[bool, ...]:
        """Tell for each chunk if the cell's sum that now counts is here; () if none is awaited."""
        name = self._expected(cell)
        if name in (None, NO_SUM) or self.is_whole:
            return ()
        held = tuple(self._name(cell, chunk) == name for chunk in range(self._num_chunks))
        return () if all(held) else held

    @property
    def lacks(self) -> tuple[int, ...]:
        """Cells whose sums should be here, as it is decided what is in them, and are not."""
        given, cells = self._view.given_sets, self._view.cells
        decided = [
            c for c in range(cells.count) if given[cells.owned(c, self.slice_index)] is not None
        ]
        return tuple(cell for cell in decided if self.missing(cell))

    def make(self) -> list[tuple[int, bytes]]:
        """Make what can be made now; return the new chunks of the mean, by number."""
        name = self._view.result_set_id(self.slice_index)
        if name != self.name:
            self.name, self.result = name, {}
        if name is None or self.is_whole:
            return []
        cells = [(cell, self._expected(cell)) for cell in range(self._view.cells.count)]
        awaited = [one for one in cells if one[1] != NO_SUM]
        made = []
        for chunk in range(self._num_chunks):
            if chunk in self.result or any(self._name(c, chunk) != named for c, named in awaited):
                continue
            sums = [self._sums[cell, chunk].kept.read() for cell, _ in awaited]
            data = self._arithmetic.finish_sums(
                sums, self._values(chunk), self._window, self._weight
            )
            self.result[chunk] = data
            made.append((chunk, data))
        return made

    def release(self) -> None:
        """The op has an outcome, or the slice another owner."""
        for one in self._sums.values():
            one.kept.release()
        self._sums = {}

    @property
    def _weight(self) -> int:
        named = self._view.slice_sets[self.slice_index]
        return sum(self._view.weights[p] for p in (self._view.weights if named is None else named))

    def _expected(self, cell: int) -> int | None:
        """Names the set whose sum a cell is to give, None while that is open."""
        return self._view.given_set_id(self._view.cells.owned(cell, self.slice_index))

    def _name(self, cell: int, chunk: int) -> int:
        known = self._sums.get((cell, chunk))
        return NO_SUM if known is None else known.name

    def _values(self, chunk: int) -> int:
        start, stop = chunk_range(self._view.plan, self.slice_index, chunk)
        return stop - start

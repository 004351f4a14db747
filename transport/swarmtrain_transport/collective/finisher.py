"""Owner's side of an op in cells: the mean of one slice, made of the sums of all cells (rule 8).

Sums are exact, so it does not matter which comes first, and a mean over all planned contributors is
made before FREEZE as without cells (T3). A sum is named by the set of contributors that it is over;
when the ledger decides another set for a cell, that cell's sum is awaited once more.

It also keeps, for audits, the sum that the owner of the slice before has made of its own cell.
"""

from typing import NamedTuple

from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.cell_sums import check_sum, mean_of_sums
from swarmtrain_transport.ledger.fold import OpView, num_chunks, set_id
from swarmtrain_transport.links.link import PeerId

NO_SUM = set_id(())
"""Names the sum of a cell that nobody contributes in: it need not be sent."""

Source = tuple[int, int]
"""A slice, and the cell whose sum it is."""


class _Taken(NamedTuple):
    name: int
    kept: Kept
    digest: bytes


class Finisher:
    """One attempt at the mean of one slice.

    Args:
        view: the ledger's view of the op.
        slice_index: index of the slice.
        attempt: number of the attempt at it.
        arithmetic: exact chunk arithmetic.
        retention: keeps the sums.

    Attributes:
        sources: sums that are to come: those of all cells, and last the one that is only kept.
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
    ) -> None:
        self.slice_index, self.attempt = slice_index, attempt
        self.result: dict[int, bytes] = {}
        self.name: int | None = None
        self._view, self._arithmetic, self._retention = view, arithmetic, retention
        count = view.cells.count
        before = (slice_index - 1) % count
        self.sources: list[Source] = [(slice_index, cell) for cell in range(count)]
        self.sources.append((view.cells.owned(before, slice_index), before))
        self._sums: dict[tuple[Source, int], _Taken] = {}

    @property
    def is_whole(self) -> bool:
        """True if all of the mean is made."""
        return len(self.result) == num_chunks(self._view.plan, self.slice_index)

    @property
    def given(self) -> tuple[PeerId, ...] | None:
        """Contributors of our own cell whose parts are in the mean."""
        name, index = self._view.given_set_id(self.slice_index), self.slice_index
        decided = self._view.given_sets[index]
        return decided if decided is not None or name is None else self._view.givers(index)

    def take(
        self, source: Source, chunk: int, name: int, data: Buffer, digest: bytes = b""
    ) -> bool:
        """Take a sum of one chunk; return True if it is new.

        Raises:
            RemoteFault: it is none that the cell's legal parts can have; it is not used.
        """
        if source not in self.sources or not 0 <= chunk < num_chunks(self._view.plan, source[0]):
            raise RemoteFault("member", f"sum of chunk {chunk} is not planned")
        known = self._sums.get((source, chunk))
        # One that counts may be in the mean already, and is what an auditor is to see.
        if known is not None and known.name in (name, self._expected(source)):
            return False
        check_sum(self._view, *source, chunk, data, self._arithmetic)
        if known is not None:
            known.kept.release()
        kept = self._retention.keep(data)
        self._sums[source, chunk] = _Taken(name, kept, digest or content_hash(data))
        return True

    def hashes_of(self, source: Source) -> tuple[bytes, ...] | None:
        """Return the hashes of the sum that counts, chunk by chunk, none where nobody gives; None
        while some of it is not here."""
        name = self._expected(source)
        if name == NO_SUM:
            return ()
        taken = [self._sums.get((source, chunk)) for chunk in self._chunks(source)]
        found = tuple(one.digest for one in taken if one is not None and one.name == name)
        return found if len(found) == len(taken) else None

    def sum_of(self, source: Source, chunk: int) -> Buffer:
        """Return the sum of a chunk, which is here."""
        return self._sums[source, chunk].kept.read()

    def missing(self, source: Source) -> tuple[bool, ...]:
        """Tell for each chunk if the sum that now counts is here; () if none is awaited."""
        name = self._expected(source)
        if name in (None, NO_SUM) or (source != self.sources[-1] and self.is_whole):
            return ()
        held = tuple(self._name(source, chunk) == name for chunk in self._chunks(source))
        return () if all(held) else held

    @property
    def lacks(self) -> tuple[int, ...]:
        """Cells whose sums should be here, as it is decided what is in them, and are not."""
        given, owned = self._view.given_sets, self._view.cells.owned
        decided = [(index, c) for index, c in self.sources if given[owned(c, index)] is not None]
        return tuple(sorted({source[1] for source in decided if self.missing(source)}))

    def make(self) -> list[tuple[int, bytes]]:
        """Make what can be made now; return the new chunks of the mean, by number."""
        name = self._view.result_set_id(self.slice_index)
        if name != self.name:
            self.name, self.result = name, {}
        if name is None or self.is_whole:
            return []
        cells = [(one, self._expected(one)) for one in self.sources[:-1]]
        awaited = [one for one in cells if one[1] != NO_SUM]
        made = []
        for chunk in self._chunks(self.sources[0]):
            if chunk in self.result or any(self._name(c, chunk) != named for c, named in awaited):
                continue
            sums = [(source[1], self.sum_of(source, chunk)) for source, _ in awaited]
            data = mean_of_sums(self._view, self.slice_index, chunk, sums, self._arithmetic)
            self.result[chunk] = data
            made.append((chunk, data))
        return made

    def release(self) -> None:
        """The op has an outcome, or the slice another owner."""
        for one in self._sums.values():
            one.kept.release()
        self._sums = {}

    def _chunks(self, source: Source) -> range:
        return range(num_chunks(self._view.plan, source[0]))

    def _expected(self, source: Source) -> int | None:
        """Names the set whose sum a cell is to give, None while that is open."""
        return self._view.given_set_id(self._view.cells.owned(source[1], source[0]))

    def _name(self, source: Source, chunk: int) -> int:
        known = self._sums.get((source, chunk))
        return NO_SUM if known is None else known.name

"""Inputs of a rule beyond the parts of its chunk: inner products of whole vectors, and the centre.

An owner measures its slice while parts arrive (`inner_products`). A chunk is measured when it
comes, with the same chunk of everybody who has given theirs before: so the work is spread over the
scatter, and when a contributor is complete its numbers only have to be added up. They are added in
the order of chunks, whichever came first.

Centered clipping moves a centre, and beginning from the last result of the same values is what
makes slow attacks cost time (protocol.md rule 7). The result is committed and named by hashes, so
everybody means the same bytes; all who took part in the op, or have caught up with it, have them.
PLAN names the op. It does so only if all contributors have said with READY that they have its
result; if one has not, such as a joiner that took a later state, or all of them after a restart,
the rule begins from zero in that round.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Window
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.retention import Kept
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.ledger.fold import GroupView, OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.ledger.inner_products import (
    CENTRE,
    CENTRED,
    NORMS,
    Pair,
    chosen,
    columns,
    pack_row,
    pair_of,
    vectors,
)
from swarmtrain_transport.ledger.plan_rules import centre_of
from swarmtrain_transport.links.link import PeerId
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
        blobs: store of its chunks.
    """

    def __init__(self, view: OpView, blobs: Blobs) -> None:
        self._view = view
        self._blobs = blobs

    @property
    def window(self) -> Window:
        """Window by which the vector is encoded."""
        return window_of(self._view.plan)

    @property
    def is_here(self) -> bool:
        """True if all of it can be read."""
        return self.covers(0, self._view.plan.slices[-1].stop)

    def covers(self, start: int, stop: int) -> bool:
        """Return True if values [start, stop) can be read."""
        return all(digest in self._blobs for digest, *_ in self._places(start, stop))

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces that cover values [start, stop), in order.

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


class RuleInputs:
    """Inputs of the rule of one attempt at one slice: its scalars and its centre.

    Args:
        view: the ledger's view of the op; it changes as records are folded.
        slice_index: index of the slice.
        arithmetic: arithmetic of its chunks.
        centre: start of the plan's rule; None for zero.

    Attributes:
        is_blind: the plan's rule begins from a result that is not here, so nothing can be measured
            or made, and the slice goes to somebody else.
    """

    def __init__(
        self, view: OpView, slice_index: int, arithmetic: Arithmetic, centre: Centre | None
    ) -> None:
        self._view = view
        self._index = slice_index
        self._arithmetic = arithmetic
        self._centre = centre if view.plan.centre else None
        self._window = window_of(view.plan)
        self._vectors = vectors(view.weights, view.plan.centre)
        self._found: dict[Pair, dict[int, float]] = {}
        self._rows: dict[PeerId, bytes] = {}
        spec = view.plan.slices[slice_index]
        self.is_blind = bool(view.plan.centre) and (
            centre is None or not centre.covers(spec.start, spec.stop)
        )

    @property
    def _is_over(self) -> bool:
        """True if nobody asks for anything: no rule does, or FREEZE has the totals."""
        return not self._view.plan.scalars or self._view.frozen is not None or self.is_blind

    def arrived(
        self, peer: PeerId, chunk: int, part: Buffer, before: Mapping[PeerId, Kept]
    ) -> None:
        """A legal chunk is here.

        Args:
            peer: contributor.
            chunk: index of the chunk in the slice.
            part: bytes of the part.
            before: the same chunk of those who have given it.
        """
        if self._is_over:
            return
        known = {} if self._view.plan.scalars == NORMS else before
        start, stop = chunk_range(self._view.plan, self._index, chunk)
        centre = self.centre_values(chunk)
        parts = [part, *(kept.read() for kept in known.values())]
        found = self._arithmetic.products(part, parts, stop - start, self._window, centre)
        others = [peer, *known, *([CENTRE] if centre else [])]
        for other, number in zip(others, found, strict=True):
            self._found.setdefault(pair_of(peer, other), {})[chunk] = number

    def rows(self, complete: Sequence[PeerId], *, again: bool) -> dict[PeerId, bytes]:
        """Return GOT's scalars: a row per contributor that has become complete since the last call,
        or of everybody who is, and the centre's."""
        if self._is_over:
            return {}
        news = [peer for peer in complete if peer not in self._rows]
        if news and self._centre is not None and CENTRE not in self._rows:
            self._rows[CENTRE] = self._row(CENTRE, {CENTRE: self._centre_square()})
            news.append(CENTRE)
        for peer in news:
            if peer != CENTRE:
                self._rows[peer] = b""  # its row has an entry for itself
                row = {other: self._total(pair_of(peer, other)) for other in self._with(peer)}
                self._rows[peer] = self._row(peer, row)
        return {peer: self._rows[peer] for peer in (self._rows if again else news)}

    def _with(self, peer: PeerId) -> Sequence[PeerId]:
        """Return those with whom it is measured by now."""
        return (peer,) if self._view.plan.scalars == NORMS else tuple(self._rows)

    def _row(self, peer: PeerId, row: Mapping[PeerId, float]) -> bytes:
        return pack_row(row, columns(self._view.plan.scalars, peer, self._vectors))

    def _total(self, pair: Pair) -> float:
        total, found = 0.0, self._found[pair]
        for chunk in range(num_chunks(self._view.plan, self._index)):
            total += found[chunk]
        return total

    def _centre_square(self) -> float:
        total = 0.0
        for chunk in range(num_chunks(self._view.plan, self._index)):
            total += self._arithmetic.square(self.centre_values(chunk))
        return total

    def centre_values(self, chunk: int) -> bytes:
        """A chunk of what the rule begins from, float32; b"" for zero.

        Raises:
            LocalFault: it is not here (`is_blind`).
        """
        if self._centre is None:
            return b""
        window, values = self._centre.window, self._arithmetic.values
        return b"".join(
            values(piece.chunk, piece.num_values, window)[4 * piece.low : 4 * piece.high]
            for piece in self._centre.pieces(*chunk_range(self._view.plan, self._index, chunk))
        )

    def of(self, contributors: Sequence[PeerId]) -> tuple[float, ...]:
        """Return FREEZE's scalars of these contributors' vectors, in the order of their keys."""
        frozen, plan = self._view.frozen, self._view.plan
        if not plan.scalars or frozen is None:
            return ()
        all_of, some_of = (vectors(one, plan.centre) for one in (frozen, contributors))
        return chosen(plan.scalars, all_of, self._view.scalars, some_of)

"""Owner's side of an op: summing one slice exactly and publishing its mean (T2, T5, T6).

Parts are checked on arrival, in whatever order, and kept. A chunk is summed when the last part of
it is here; after FREEZE it is summed again, over exactly the set, where that names somebody less.
Sums are exact, so one that was made without a part has the bits of one that it was taken out of.
Sums that are not exact (protocol.md rule 7) are made once, after FREEZE, in the order of keys.
Where their rule needs numbers of whole vectors, contributions are measured as they become complete.
"""

from collections.abc import Mapping

from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.centre import Centre
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.fold import OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.retention import Kept, Retention
from swarmtrain_transport.scalars import (
    CENTRE,
    NORMS,
    chosen,
    columns,
    pack_row,
    vectors,
)
from swarmtrain_transport.signed import inputs_of, root_over


class SliceOwner:
    """One attempt at one slice.

    Args:
        view: what the ledger says of the op.
        slice_index: which slice.
        attempt: which attempt of it.
        arithmetic: exact chunk arithmetic.
        retention: keeps the parts.
        centre: what the plan's rule begins from; None for zero.

    Attributes:
        retained_bytes: parts of others that are kept.
    """

    def __init__(
        self,
        view: OpView,
        slice_index: int,
        attempt: int,
        arithmetic: Arithmetic,
        retention: Retention,
        centre: Centre | None = None,
    ) -> None:
        self.slice_index = slice_index
        self.attempt = attempt
        self.refused: dict[PeerId, str] = {}
        self.result: tuple[bytes, ...] | None = None
        self.contributors: tuple[PeerId, ...] = ()
        self.retained_bytes = 0
        self._view, self._plan = view, view.plan
        self._weights: Mapping[PeerId, int] = view.weights
        self._window = window_of(view.plan)
        self._arithmetic = arithmetic
        self._retention = retention
        self._num_chunks = num_chunks(view.plan, slice_index)
        self._parts: dict[PeerId, dict[int, Kept]] = {peer: {} for peer in self._weights}
        self._held: list[Kept] = []
        self._digests: dict[PeerId, dict[int, bytes]] = {peer: {} for peer in self._weights}
        self._roots: dict[PeerId, bytes] = {}
        self._rows: dict[PeerId, bytes] = {}
        self._centre = centre
        self._early: dict[int, bytes] = {}
        self._complete: tuple[PeerId, ...] | None = None

    def _values(self, chunk: int) -> int:
        start, stop = chunk_range(self._plan, self.slice_index, chunk)
        return stop - start

    def accept(
        self,
        peer: PeerId,
        chunk: int,
        body: Buffer,
        digest: bytes = b"",
        *,
        kept: Kept | None = None,
    ) -> bool:
        """Take one part: check, keep and mark it in one step.

        Args:
            peer: whose.
            chunk: which of the slice's.
            body: the encoded chunk.
            digest: its content hash, if it has been taken already.
            kept: where somebody else keeps it, as long as the op lasts.

        Returns:
            Whether it was new. A part that came before, or of a refused peer, changes nothing.

        Raises:
            RemoteFault: the part is illegal; the whole contribution is refused from now on.
        """
        if peer not in self._weights or not 0 <= chunk < self._num_chunks:
            raise RemoteFault("member", f"part of chunk {chunk} is not planned")
        if self.result is not None or peer in self.refused or chunk in self._parts[peer]:
            return False
        try:
            self._arithmetic.check(body, self._values(chunk), self._window)
        except RemoteFault as fault:
            self.refused[peer] = fault.reason
            self._complete = None
            raise
        if kept is None:
            kept = self._retention.keep(body)
            self._held.append(kept)
            self.retained_bytes += len(body)
        self._parts[peer][chunk] = kept
        self._digests[peer][chunk] = digest or content_hash(body)
        if len(self._parts[peer]) == self._num_chunks:
            self._complete = None
        return True

    def early(self, chunk: int) -> bytes | None:
        """T3: a chunk's mean over all planned contributors, once; None while one is missing.

        It is the result if FREEZE names them all; if not, the chunk is summed again from the kept
        parts.
        """
        if not self._plan.exact or self.result is not None or chunk in self._early:
            return None
        if any(chunk not in parts for parts in self._parts.values()) or self.refused:
            return None
        self._early[chunk] = self._summed(chunk, tuple(self._parts))
        for parts in self._parts.values():
            parts[chunk].cool()
        return self._early[chunk]

    @property
    def early_chunks(self) -> tuple[bytes, ...]:
        """What `early` has given so far, in order."""
        return tuple(self._early[chunk] for chunk in sorted(self._early))

    @property
    def is_early_whole(self) -> bool:
        """Whether every chunk's mean over all planned contributors has been made."""
        return len(self._early) == self._num_chunks

    def flags(self, peer: PeerId) -> tuple[bool, ...]:
        """Which chunks of a contributor are here."""
        parts = self._parts.get(peer, {})
        return tuple(chunk in parts for chunk in range(self._num_chunks))

    @property
    def complete(self) -> tuple[PeerId, ...]:
        """Contributors whose every chunk is here and legal."""
        if self._complete is None:
            whole = [p for p, parts in self._parts.items() if len(parts) == self._num_chunks]
            self._complete = tuple(peer for peer in whole if peer not in self.refused)
        return self._complete

    @property
    def received(self) -> dict[PeerId, bytes]:
        """Slice root of what has come of everybody who is complete; also after `finish`."""
        for peer in self.complete:
            if peer not in self._roots:
                digests = self._digests[peer]
                self._roots[peer] = root_over([digests[k] for k in range(self._num_chunks)])
        return {peer: root for peer, root in self._roots.items() if peer not in self.refused}

    @property
    def is_blind(self) -> bool:
        """Whether the plan's rule begins from a result that is not here: then nothing can be
        measured or made, and the slice goes to somebody else."""
        if not self._plan.centre:
            return False
        spec = self._plan.slices[self.slice_index]
        return self._centre is None or not self._centre.covers(spec.start, spec.stop)

    def measured(self, *, again: bool = False) -> dict[PeerId, bytes]:
        """What the plan's rule needs of whole vectors: a row per contributor that has become
        complete since the last call, or of everybody who is. Nobody asks for it after FREEZE."""
        if not self._plan.scalars or self._view.frozen is not None:
            return {}
        news = [peer for peer in self.complete if peer not in self._rows]
        if not (news or again) or self.is_blind:
            return {}
        if self._plan.centre and CENTRE not in self._rows:
            self._rows[CENTRE] = self._centre_row()
            news.append(CENTRE)
        for peer in news:
            if peer not in self._rows:
                self._rows[peer] = self._row(peer)
        return {peer: self._rows[peer] for peer in (self._rows if again else news)}

    def _packed(self, peer: PeerId, row: Mapping[PeerId, float]) -> bytes:
        planned = vectors(self._weights, self._plan.centre)
        return pack_row(row, columns(self._plan.scalars, peer, planned))

    def _centre_row(self) -> bytes:
        total = 0.0
        for chunk in range(self._num_chunks):
            total += self._arithmetic.square(self._centre_values(chunk))
        return self._packed(CENTRE, {CENTRE: total})

    def _centre_values(self, chunk: int) -> bytes:
        """The same chunk of what the rule begins from; b"" for zero.

        Raises:
            LocalFault: it is not here (`is_blind`).
        """
        if self._centre is None or not self._plan.centre:
            return b""
        span = chunk_range(self._plan, self.slice_index, chunk)
        window, values = self._centre.window, self._arithmetic.values
        return b"".join(
            values(piece.chunk, piece.num_values, window)[4 * piece.low : 4 * piece.high]
            for piece in self._centre.pieces(*span)
        )

    def _row(self, peer: PeerId) -> bytes:
        """Inner products of this contribution with itself, with those measured before it and with
        the centre."""
        before = [] if self._plan.scalars == NORMS else [one for one in self._rows if one != CENTRE]
        others = [peer, *before, *([CENTRE] if self._plan.centre else [])]
        sums = [0.0] * len(others)
        for chunk in range(self._num_chunks):
            part, *parts = [self._parts[one][chunk].read() for one in (peer, *before)]
            found = self._arithmetic.products(
                part, [part, *parts], self._values(chunk), self._window, self._centre_values(chunk)
            )
            sums = [total + number for total, number in zip(sums, found, strict=True)]
        return self._packed(peer, dict(zip(others, sums, strict=True)))

    def inputs(self, contributors: tuple[PeerId, ...]) -> bytes:
        """One hash over what these complete contributors have given to the slice."""
        received = self.received
        return inputs_of({peer: received[peer] for peer in contributors})

    def finish(self, contributors: tuple[PeerId, ...]) -> tuple[bytes, ...]:
        """T5: the encoded mean over exactly these contributors, chunk by chunk.

        Raises:
            LocalFault: a contributor is not complete here, or another set was frozen before.
        """
        if self.result is not None:
            if contributors != self.contributors:
                raise LocalFault("a second set was frozen for one attempt of a slice")
            return self.result
        if not set(contributors) <= set(self.complete):
            raise LocalFault("the frozen set names a contribution that is not here")
        self._roots = self.received
        self.result = tuple(
            self._finished(chunk, contributors) for chunk in range(self._num_chunks)
        )
        self.contributors = contributors
        self.release()
        self._early, self._digests = {}, {}
        self._complete = None
        return self.result

    def release(self) -> None:
        """Parts are not needed any more: there is a result, or it will never be ours."""
        for kept in self._held:
            kept.release()
        self._held, self._parts = [], {}
        self.retained_bytes = 0

    def _finished(self, chunk: int, contributors: tuple[PeerId, ...]) -> bytes:
        """One chunk's mean over exactly these contributors."""
        if chunk in self._early and len(contributors) == len(self._weights):
            return self._early[chunk]
        return self._summed(chunk, contributors)

    def _summed(self, chunk: int, contributors: tuple[PeerId, ...]) -> bytes:
        """The mean of these contributors' parts, added in the order of their keys."""
        scalars, named = self._scalars_of(contributors), sorted(contributors)
        accumulator = self._arithmetic.accumulator(
            self._values(chunk), self._window, scalars, self._centre_values(chunk)
        )
        for peer in named:
            accumulator.add(self._parts[peer][chunk].read(), self._weights[peer])
        return accumulator.finish(sum(self._weights[peer] for peer in contributors))

    def _scalars_of(self, contributors: tuple[PeerId, ...]) -> tuple[float, ...]:
        """What FREEZE says of these contributors' whole vectors, in the order of their keys."""
        frozen, scalars = self._view.frozen, self._plan.scalars
        if not scalars or frozen is None:
            return ()
        all_of, some_of = (vectors(one, self._plan.centre) for one in (frozen, contributors))
        return chosen(scalars, all_of, self._view.scalars, some_of)

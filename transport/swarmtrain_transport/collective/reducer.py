"""Owner's side of an op: summing one slice exactly and publishing its mean (T2, T5, T6).

Parts are checked on arrival, in whatever order, and kept. A chunk is summed when the last part of
it is here; after FREEZE it is summed again, over exactly the set, where that lacks somebody. Sums
are exact, so one that was made without a part has the bits of one that it was taken out of. Sums
that are not exact (protocol.md rule 7) are made once, after FREEZE, in the order of keys. Where
their rule needs numbers of whole vectors, parts are measured as they come (`rule_inputs`).
"""

import enum
from collections.abc import Mapping

from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.collective.gauges import likenesses
from swarmtrain_transport.collective.rule_inputs import Centre, RuleInputs
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.cells import summed_chunks
from swarmtrain_transport.ledger.fold import OpView, chunk_range, window_of
from swarmtrain_transport.ledger.signed_roots import inputs_of, root_over
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import Table, entered
from swarmtrain_transport.wire.messages import SliceDone


class Reducing(enum.Enum):
    """Progress of one attempt at a slice."""

    COLLECTING = enum.auto()
    FORESEEN = enum.auto()
    """There is a result over all planned contributors; FREEZE may name fewer (T3)."""
    MADE = enum.auto()
    """There is a result over exactly the decided contributors."""
    RELEASED = enum.auto()
    """The op has an outcome, or the slice another owner."""


_NEXT: Table[Reducing] = {
    Reducing.COLLECTING: {Reducing.FORESEEN, Reducing.MADE, Reducing.RELEASED},
    Reducing.FORESEEN: {Reducing.MADE, Reducing.RELEASED},
    Reducing.MADE: {Reducing.RELEASED},
}


class Reducer:
    """One attempt at one slice.

    Args:
        view: the ledger's view of the op.
        slice_index: index of the slice.
        attempt: number of the attempt at it.
        arithmetic: exact chunk arithmetic.
        retention: keeps the parts.
        centre: start of the plan's rule; None for zero.

    Attributes:
        places: the chunks that are summed, as slice and chunk of it.
        done: newest publication of it.
        retained_bytes: parts of others that are kept.
        seen: facts of contributions for people (`gauges`), if `finish` was to look.
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
        self.phase = Reducing.COLLECTING
        self.result: tuple[bytes, ...] = ()
        self.contributors: tuple[PeerId, ...] = ()
        self.done: SliceDone | None = None
        self.retained_bytes = 0
        self.seen: dict[PeerId, tuple[float, float]] = {}
        self._plan = view.plan
        self._rule_inputs = RuleInputs(view, slice_index, arithmetic, centre)
        self._weights: Mapping[PeerId, int] = {
            peer: view.weights[peer] for peer in view.givers(slice_index)
        }
        self._is_partial = view.cells.count > 1
        self._owner = view.owners[slice_index]
        self._window = window_of(view.plan)
        self._arithmetic = arithmetic
        self._retention = retention
        self.places = summed_chunks(view.plan, slice_index)
        self._num_chunks = len(self.places)
        self._parts: dict[PeerId, dict[int, Kept]] = {peer: {} for peer in self._weights}
        self._lacking = [len(self._weights)] * self._num_chunks
        self._held: list[Kept] = []
        self._digests: dict[PeerId, dict[int, bytes]] = {peer: {} for peer in self._weights}
        self._roots: dict[PeerId, bytes] = {}
        self._early: dict[int, bytes] = {}
        self._sums: dict[int, tuple[Kept, bytes]] = {}
        self._complete: tuple[PeerId, ...] | None = None

    def _values(self, chunk: int) -> int:
        start, stop = chunk_range(self._plan, *self.places[chunk])
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
            peer: contributor.
            chunk: index of the chunk in the slice.
            body: the encoded chunk.
            digest: content hash of the bytes, if it has been taken already.
            kept: bytes that somebody else keeps as long as the op lasts.

        Returns:
            True if it was new. A part that came before, or of a refused peer, changes nothing.

        Raises:
            RemoteFault: the part is illegal; the whole contribution is refused from now on.
        """
        if peer not in self._weights or not 0 <= chunk < self._num_chunks:
            raise RemoteFault("member", f"part of chunk {chunk} is not planned")
        if self.phase is Reducing.MADE or peer in self.refused or chunk in self._parts[peer]:
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
        if self._plan.scalars:
            held = {one: parts[chunk] for one, parts in self._parts.items() if chunk in parts}
            self._rule_inputs.arrived(peer, chunk, body, held)
        self._parts[peer][chunk] = kept
        self._lacking[chunk] -= 1
        self._digests[peer][chunk] = digest or content_hash(body)
        if len(self._parts[peer]) == self._num_chunks:
            self._complete = None
        return True

    def early(self, chunk: int) -> bytes | None:
        """T3: a chunk's mean (in cells: sum) over all planned contributors, once; None while one is
        missing.

        It is the result if FREEZE names them all; if not, the chunk is summed again from the kept
        parts.
        """
        if not self._plan.exact or self.phase is Reducing.MADE or chunk in self._early:
            return None
        if not self.is_there(chunk) or self.refused:
            return None
        data = self._summed(chunk, tuple(self._parts))
        self._early[chunk] = data if not self._is_partial else b""
        if self._is_partial:
            self._keep_sum(chunk, data)
        for parts in self._parts.values():
            parts[chunk].cool()
        if len(self._early) == self._num_chunks:
            self._enter(Reducing.FORESEEN)
        return data

    def is_there(self, chunk: int) -> bool:
        """Return True if all planned contributors' parts of a chunk have come."""
        return self._lacking[chunk] == 0

    def sum_of(self, chunk: int) -> Buffer | None:
        """Return the sum of one chunk for the owner of its piece, as it counts now; None while it
        is not made."""
        kept = self._sums.get(chunk)
        return None if kept is None else kept[0].read()

    def hashes_to(self, piece: int) -> tuple[bytes, ...] | None:
        """Return the hashes of the sums for a piece, chunk by chunk, none where nobody gives; None
        while one is not made."""
        if self.phase is Reducing.MADE and not self.contributors:
            return ()
        numbers = [number for number, (at, _) in enumerate(self.places) if at == piece]
        found = [self._sums[number][1] for number in numbers if number in self._sums]
        return tuple(found) if len(found) == len(numbers) else None

    @property
    def early_chunks(self) -> tuple[bytes, ...]:
        """Return the chunks that `early` has given so far, in order."""
        return tuple(self._early[chunk] for chunk in sorted(self._early))

    def flags(self, peer: PeerId) -> tuple[bool, ...]:
        """Tell for each chunk of a contributor if it is here."""
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
        """True if the plan's rule cannot be followed here, for want of its starting point."""
        return self._rule_inputs.is_blind

    def measured(self, *, again: bool = False) -> dict[PeerId, bytes]:
        """Return the measurements of whole vectors for the plan's rule (`RuleInputs.rows`)."""
        return self._rule_inputs.rows(self.complete, again=again)

    def inputs(self, contributors: tuple[PeerId, ...]) -> bytes:
        """One hash over what these complete contributors have given to the slice, in cells without
        the owner."""
        received = self.received
        own = self._owner if self._is_partial else None
        return inputs_of({peer: received[peer] for peer in contributors if peer != own})

    def finish(
        self, contributors: tuple[PeerId, ...], *, gauges: bool = False
    ) -> tuple[bytes, ...]:
        """T5: the encoded mean (in cells: the sum) over exactly these contributors, chunk by chunk.

        Args:
            gauges: True to look at one chunk of them (`seen`).

        Raises:
            LocalFault: a contributor is not complete here, or another set was frozen before.
        """
        if self.phase is Reducing.MADE:
            if contributors != self.contributors:
                raise LocalFault("a second set was frozen for one attempt of a slice")
            return self.result
        if not set(contributors) <= set(self.complete):
            raise LocalFault("the frozen set names a contribution that is not here")
        self._enter(Reducing.MADE)
        self._roots = self.received
        self.contributors = contributors
        if self._is_partial:
            self._sum_again(contributors)
        else:
            chunks = range(self._num_chunks)
            self.result = tuple(self._finished(chunk, contributors) for chunk in chunks)
        if gauges and len(contributors) > 1 and not self._is_partial:
            self.seen = self._gauged(contributors, self.result)
        self._release_parts()
        self._early, self._digests = {}, {}
        self._complete = None
        return self.result

    def _sum_again(self, contributors: tuple[PeerId, ...]) -> None:
        """Sum what was not summed over exactly these before; nobody's sum is none."""
        if len(contributors) < len(self._weights):
            self._release_sums()
        for chunk in range(self._num_chunks if contributors else 0):
            if chunk not in self._sums:
                self._keep_sum(chunk, self._summed(chunk, contributors))

    def _keep_sum(self, chunk: int, data: bytes) -> None:
        self._sums[chunk] = self._retention.keep(data), content_hash(data)

    def _gauged(
        self, contributors: tuple[PeerId, ...], result: tuple[bytes, ...]
    ) -> dict[PeerId, tuple[float, float]]:
        """Figures of these contributions for people: from one chunk, drawn by what came."""
        drawn = content_hash(b"".join(self._roots[peer] for peer in contributors))
        chunk = int.from_bytes(drawn[:8], "little") % self._num_chunks
        parts = [self._parts[peer][chunk].read() for peer in contributors]
        rows = self._arithmetic.gauges(parts, result[chunk], self._values(chunk), self._window)
        weights = [self._weights[peer] for peer in contributors]
        found = likenesses(rows, weights, is_mean=not self._window.rule)
        return dict(zip(contributors, found, strict=True))

    def release(self) -> None:
        """The op has an outcome, or the slice another owner."""
        self._enter(Reducing.RELEASED)
        self._release_parts()
        self._release_sums()

    def _release_sums(self) -> None:
        for kept, _ in self._sums.values():
            kept.release()
        self._sums = {}

    def _release_parts(self) -> None:
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
        """The mean of these contributors' parts, added in the order of their keys; in cells the sum
        of those that are not the owner's, and behind it the owner's (`cell_sums`)."""
        accumulator = self._arithmetic.accumulator(
            self._values(chunk), self._window, self._rule_inputs.of(contributors),
            self._rule_inputs.centre_values(chunk),
        )  # fmt: skip
        own = self._owner if self._is_partial else None
        for peer in sorted(contributors):
            if peer != own:
                accumulator.add(self._parts[peer][chunk].read(), self._weights[peer])
        if self._is_partial:
            part = self._parts[self._owner][chunk].read() if own in contributors else b""
            return b"".join((accumulator.unrounded(), part))
        return accumulator.finish(sum(self._weights[peer] for peer in contributors))

    def _enter(self, phase: Reducing) -> None:
        self.phase = entered(phase, self.phase, _NEXT)

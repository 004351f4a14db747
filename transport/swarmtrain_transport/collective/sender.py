"""Contributor's side of an op: sending the parts of one difference to the slices' owners (T2, T6).

An owner invites with RANGES: what it holds already and how many bytes it takes. So a reconnect
repeats only what was lost, and a new attempt is a new invitation. PLAN is the first invitation of
all its owners, for so much that a peer can keep it until it has that PLAN, too. Encoded parts are
kept unchanged until the op ends, because a repair must send the same bytes again; it seldom does,
so what was sent may lie in a file.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.cells import places_of
from swarmtrain_transport.ledger.fold import OpView, chunk_range, window_of
from swarmtrain_transport.ledger.signed_roots import root_over
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges

_RESEND_AFTER_S = 2 * limits.NUDGE_S
_RESEND_AFTER_MAX_S = limits.EVICT_S
"""A chunk is taken to be under way still for so long after it was sent, and after anything of ours
arrived: a link keeps the order. Each time that this is not enough it doubles, because frames are
lost only when a connection breaks, while a chunk over a slow link may well take that long."""


@dataclass(slots=True)
class _OwnerLine:
    credit_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    progress_s: float = float("-inf")
    patience_s: float = _RESEND_AFTER_S
    pending: list[tuple[int, int, int]] = field(default_factory=list)


def uninvited_bytes(view: OpView) -> int:
    """Bytes that a contributor may send an owner that has not invited it yet."""
    others = max(1, -(-len(view.weights) // view.cells.count) - 1)
    return min(limits.CREDIT_WINDOW_BYTES, limits.UNINVITED_BYTES // others)


class Sender:
    """One contributor in one op.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes under us as records arrive.
        contribution: the values, encoded on demand.
        run_tag: fence of the run.
        is_waiting: True if something for this peer is known to be still on its way.
        retention: keeps the parts; None keeps them in memory.
        arithmetic: measures the parts where the plan asks for scalars.
        uninvited: bytes that may go to each owner before it has invited us.
    """

    def __init__(
        self,
        me: PeerId,
        view: OpView,
        contribution: Contribution,
        run_tag: int,
        is_waiting: Callable[[PeerId], bool] = lambda owner: False,
        retention: Retention | None = None,
        arithmetic: Arithmetic | None = None,
        uninvited: int = 0,
    ) -> None:
        self._me = me
        self._view = view
        self._contribution: Contribution | None = contribution
        self._run_tag = run_tag
        self._is_waiting = is_waiting
        self._retention = retention or Retention()
        self._parts: dict[tuple[int, int], Kept] = {}
        self._digests: dict[tuple[int, int], bytes] = {}
        self._squares: dict[tuple[int, int], float] = {}
        self._arithmetic = arithmetic if view.plan.scalars else None
        self._window = window_of(view.plan)
        self._places = places_of(view.plan, view.cells.cell_of(me))
        self._chunks = {index: len(places) for index, places in self._places.items()}
        self._slice_roots: tuple[bytes, ...] | None = None
        self._owners: dict[PeerId, _OwnerLine] = {}
        self._sent_s: dict[tuple[int, int, int], float] = {}
        order = [member.peer for member in view.plan.members]
        rank = order.index(me)
        self._order = order[rank + 1 :] + order[:rank]
        for index, count in self._chunks.items():
            owner = view.plan.slices[index].owner
            if uninvited and owner != me:
                line = self._owners.setdefault(owner, _OwnerLine(uninvited))
                line.pending += [(index, 0, chunk) for chunk in range(count)]

    def digest(self, slice_index: int, chunk: int) -> bytes:
        """Content hash of an encoded chunk."""
        return self._digests[slice_index, chunk]

    def part(self, slice_index: int, chunk: int) -> Buffer:
        """The encoded chunk, the same bytes whenever it is asked for.

        Raises:
            ContributionRefused: the values cannot be sent.
        """
        key = (slice_index, chunk)
        if key in self._parts:
            return self._parts[key].read()
        assert self._contribution is not None, "the op is over"
        start, stop = chunk_range(self._view.plan, *self._places[slice_index][chunk])
        part = self._contribution.encode(start, stop, self._window)
        if self._arithmetic is not None:
            (square,) = self._arithmetic.products(part, [part], stop - start, self._window)
            self._squares[key] = square
        self._parts[key], self._digests[key] = self._retention.keep(part), content_hash(part)
        return part

    def kept(self, slice_index: int, chunk: int) -> Kept:
        """An encoded chunk as it is kept."""
        return self._parts[slice_index, chunk]

    def _part_bytes(self, slice_index: int, chunk: int) -> int:
        """Length of an encoded chunk.

        Raises:
            ContributionRefused: the values cannot be sent.
        """
        if (slice_index, chunk) not in self._parts:
            self.part(slice_index, chunk)
        return self._parts[slice_index, chunk].num_bytes

    def release(self) -> None:
        """The op has an outcome, nothing is sent any more. The values go at once: they are as large
        as the model, and whoever holds this may be collected late."""
        for kept in self._parts.values():
            kept.release()
        self._parts, self._contribution = {}, None

    @property
    def slice_roots(self) -> tuple[bytes, ...] | None:
        """Return the roots to sign, one per owner in our cell; None while some chunk is not encoded
        yet."""
        if self._slice_roots is None and len(self._digests) == sum(self._chunks.values()):
            self._slice_roots = tuple(root_over(self.chunk_hashes(index)) for index in self._chunks)
        return self._slice_roots

    def chunk_hashes(self, slice_index: int) -> tuple[bytes, ...]:
        """Hashes of the encoded chunks that a slice's owner sums, in order; all of them must have
        been encoded."""
        count = self._chunks[slice_index]
        return tuple(self._digests[slice_index, chunk] for chunk in range(count))

    @property
    def norms(self) -> tuple[float, ...]:
        """The squared norm of what each slice gets, where the plan asks for scalars; everything
        must have been encoded. Added as owners add, so both find the same bits."""
        if not self._view.plan.scalars:
            return ()
        return tuple(self._norm(index) for index in self._chunks)

    def _norm(self, slice_index: int) -> float:
        total = 0.0
        for chunk in range(self._chunks[slice_index]):
            total += self._squares[slice_index, chunk]
        return total

    def encode_more(self) -> None:
        """Encode what no owner asks for: without it there is nothing to sign.

        Raises:
            ContributionRefused: the values cannot be sent.
        """
        places = ((index, chunk) for index, n in self._chunks.items() for chunk in range(n))
        missing = (place for place in places if place not in self._parts)
        for index, chunk in islice(missing, limits.ENCODE_AHEAD_CHUNKS):
            self.part(index, chunk)

    def invited(self, owner: PeerId, frame: Frame, now_s: float) -> None:
        """RANGES from an owner. Stale attempts are ignored.

        Raises:
            RemoteFault: the body is malformed.
        """
        index, attempt = frame.slice_index, frame.attempt
        if not self._is_wanted(owner, index, attempt):
            return
        count = self._chunks[index]
        if len(frame.body) != Ranges.num_bytes(count):
            raise RemoteFault("length", f"RANGES of {len(frame.body)} bytes for {count} chunks")
        ranges = Ranges.unpack(frame.body)
        if len(ranges.chunks) != count:
            return
        line = self._owners.setdefault(owner, _OwnerLine())
        line.credit_bytes = max(line.credit_bytes, ranges.credit_bytes)
        if self._is_waiting(owner) or ranges.received_bytes > line.received_bytes:
            line.progress_s = now_s
        line.received_bytes = max(line.received_bytes, ranges.received_bytes)
        line.pending = [
            key for key in line.pending if key[:2] != (index, attempt) or not ranges.chunks[key[2]]
        ]
        queued = set(line.pending)
        under_way = 0
        has_lost = False
        for chunk, here in enumerate(ranges.chunks):
            key = (index, attempt, chunk)
            if here or key in queued:
                continue
            if self._is_under_way(line, key, now_s):
                under_way += self._part_bytes(index, chunk)
            else:
                has_lost = has_lost or key in self._sent_s
                line.pending.append(key)
        if has_lost:
            line.patience_s = min(_RESEND_AFTER_MAX_S, 2 * line.patience_s)
        used = ranges.received_bytes + under_way
        elsewhere = self._under_way_elsewhere(owner, line, (index, attempt), now_s)
        line.sent_bytes = max(used, min(used + elsewhere, line.sent_bytes))

    def _is_under_way(self, line: _OwnerLine, key: tuple[int, int, int], now_s: float) -> bool:
        """Return True if a chunk that has not arrived may still do so."""
        sent_s = self._sent_s.get(key)
        return sent_s is not None and now_s < max(sent_s, line.progress_s) + line.patience_s

    def _under_way_elsewhere(
        self, owner: PeerId, line: _OwnerLine, here: tuple[int, int], now_s: float
    ) -> int:
        """Bytes under way to this owner for other slices of its; they share its credit."""
        return sum(
            self._parts[key[0], key[2]].num_bytes
            for key in self._sent_s
            if key[:2] != here
            and self._is_wanted(owner, key[0], key[1])
            and self._is_under_way(line, key, now_s)
        )

    def credited(self, owner: PeerId, credit_bytes: int) -> None:
        """CREDIT from an owner; cumulative, so a lost one costs nothing."""
        line = self._owners.setdefault(owner, _OwnerLine())
        line.credit_bytes = max(line.credit_bytes, credit_bytes)

    def pump(self, now_s: float) -> list[tuple[PeerId, Frame]]:
        """Frames that may go now: one chunk per owner in turn, starting after our own rank.

        If PUMP_CHUNKS or more are given there may be more at once.

        Raises:
            ContributionRefused: the values cannot be sent.
        """
        frames: list[tuple[PeerId, Frame]] = []
        progressed = True
        while progressed and len(frames) < limits.PUMP_CHUNKS:
            progressed = False
            for owner in self._order:
                if owner not in self._owners or not self._owners[owner].pending:
                    continue
                frame = self._next_for(owner, now_s)
                if frame is not None:
                    frames.append((owner, frame))
                    progressed = True
        return frames

    def _next_for(self, owner: PeerId, now_s: float) -> Frame | None:
        line = self._owners.get(owner)
        while line is not None and line.pending:
            index, attempt, chunk = line.pending[0]
            if not self._is_wanted(owner, index, attempt):
                line.pending.pop(0)
                continue
            num_bytes = self._part_bytes(index, chunk)
            if line.sent_bytes + num_bytes > line.credit_bytes:
                return None
            line.pending.pop(0)
            line.sent_bytes += num_bytes
            self._sent_s[(index, attempt, chunk)] = now_s
            body = self.part(index, chunk)
            self._parts[index, chunk].cool()
            return Frame(
                FrameKind.PART, self._run_tag, self._view.plan_id, index, attempt, chunk,
                body=body, digest=self._digests[index, chunk],
            )  # fmt: skip
        return None

    def _is_wanted(self, owner: PeerId, index: int, attempt: int) -> bool:
        """Return True if this owner still sums this attempt and may still use our parts."""
        view = self._view
        if index not in self._chunks:
            return False
        if view.owners[index] != owner or view.attempts[index] != attempt:
            return False
        if view.frozen is not None and self._me not in view.frozen:
            return False
        return view.given_sets[index] is None

    @property
    def chunks_total(self) -> int:
        """Chunks that go to other owners if nobody dies."""
        slices = self._view.plan.slices
        return sum(n for index, n in self._chunks.items() if slices[index].owner != self._me)

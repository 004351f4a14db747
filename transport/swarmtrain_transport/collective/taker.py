"""Taker's side of an op: chunks of the results, pushed by their owners or pulled (T3).

An owner pushes a chunk as soon as it can, before FREEZE and before its hash is known here. So a
chunk is filed by (slice, attempt, set, chunk), one of each, from the slice's owner alone, and
counts only once HASHES names it. Chunks that do not come by themselves are asked for by hash.
Memory: at most one encoded result.

A hash says that bytes are what the owner published, not that they can be decoded. So every chunk is
checked before it is kept: an illegal one is not served and never reported by HAVE, and a slice that
nobody but its owner holds goes to another owner when the gather deadline has passed.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from operator import attrgetter

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerFault
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Window
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.retention import Kept
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import (
    OpView,
    chunk_range,
    num_chunks,
    slice_root,
    window_of,
)
from swarmtrain_transport.ledger.transfers import Transfer
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import Table, entered
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import Hashes, Have


class Taking(enum.Enum):
    """Progress of one slice's result here."""

    UNNAMED = enum.auto()
    """Hashes are not known; what is pushed is filed."""
    AWAITED = enum.auto()
    """Pushed by its owner, without being asked."""
    ASKED = enum.auto()
    WHOLE = enum.auto()


_NEXT: Table[Taking] = {
    Taking.UNNAMED: {Taking.AWAITED, Taking.ASKED, Taking.WHOLE},
    Taking.AWAITED: {Taking.ASKED, Taking.WHOLE, Taking.UNNAMED},
    Taking.ASKED: {Taking.WHOLE, Taking.UNNAMED},
    Taking.WHOLE: {Taking.UNNAMED},
}


@dataclass(slots=True, eq=False)
class _Taken:
    """One slice's result, as far as it is here.

    Attributes:
        check: refuses a chunk of it that nobody could decode.
        named: hashes of its slice, once its owner has published them.
        missing: hashes of named chunks that are not here.
        illegal: hashes among these of chunks that nobody could decode.
        pushed: hash and bytes of chunks that came before they were named.
        foreseen: HAVE of all of them, once they are here.
        reported: chunks that the coordinator was told of.
        heard_s: time at which its owner pushed something last.
    """

    transfer: Transfer
    check: Callable[[Buffer, int, Window], None]
    phase: Taking = Taking.UNNAMED
    named: Hashes | None = None
    missing: set[bytes] = field(default_factory=set)
    illegal: set[bytes] = field(default_factory=set)
    pushed: dict[int, tuple[bytes, Buffer]] = field(default_factory=dict)
    foreseen: Have | None = None
    reported: tuple[bool, ...] = ()
    heard_s: float = 0.0

    def wants(self, digest: bytes) -> bool:
        """True if a chunk is missing and may be found."""
        return digest in self.missing and digest not in self.illegal


_heard_s = attrgetter("heard_s")


class Taker:
    """One peer's result of one op, as far as it is here.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes under us as records arrive.
        transfers: the op's slices.
        blobs: store of verified chunks.
        fetcher: asks others for what is missing.
        arithmetic: knows which chunks can be decoded.
        now_s: the time.
        early: chunks that were here before the op, by hash; they are checked when they are named,
            and released with the op.
    """

    def __init__(
        self,
        me: PeerId,
        view: OpView,
        transfers: Sequence[Transfer],
        blobs: Blobs,
        fetcher: Fetcher,
        arithmetic: Arithmetic,
        now_s: float,
        early: Mapping[bytes, Kept] | None = None,
    ) -> None:
        self._me = me
        self._view = view
        self._blobs = blobs
        self._fetcher = fetcher
        self._window = window_of(view.plan)
        # A verbatim transfer consists of parts; a mean is made of parts by its owner.
        checks = arithmetic.check_result, arithmetic.check
        self._slices = [_Taken(transfer, checks[transfer.is_verbatim]) for transfer in transfers]
        self._awaited: list[_Taken] = []
        self._faults: list[PeerFault] = []
        self._heard_s = now_s
        self.early = dict(early or {})

    # ---- events

    def decided(self) -> None:
        """The view has changed: what was pushed or named for another attempt or set is void."""
        for index, one in enumerate(self._slices):
            named = one.named
            if named is not None and not self._view.may_count(index, named.attempt, named.set_id):
                self._fetcher.cancel(named.chunk_hashes)
                self._void(one)
                one.illegal.clear()
            if not self._may_be_pushed(one):
                one.pushed.clear()
                one.foreseen = None

    def pushed(self, peer: PeerId, frame: Frame, now_s: float) -> list[Have]:
        """RESULT: a chunk that its owner did not wait to be asked for.

        Raises:
            RemoteFault: not the owner, not a chunk of this op, or not the bytes that it published.
        """
        index, chunk = frame.slice_index, frame.chunk
        view = self._view
        if not 0 <= index < len(view.owners) or chunk >= num_chunks(view.plan, index):
            raise RemoteFault("member", f"result of chunk {chunk} is not planned")
        start, stop = chunk_range(view.plan, index, chunk)
        if len(frame.body) > limits.RESULT_VALUE_BYTES * (stop - start + view.plan.block):
            raise RemoteFault("length", f"result chunk of {len(frame.body)} bytes")
        if not self._is_from_owner(peer, index):
            return []  # it was, when this was sent
        if not view.may_count(index, frame.attempt, frame.set_id):
            return []
        one = self._slices[index]
        self._heard_s = one.heard_s = now_s
        if one.named is None:
            if chunk not in one.pushed and one.foreseen is None:
                one.pushed[chunk] = (frame.digest or content_hash(frame.body), frame.body)
                return self._foresee(one, frame)
            return []
        if not one.wants(one.named.chunk_hashes[chunk]):
            return []
        digest = frame.digest or content_hash(frame.body)
        if digest != one.named.chunk_hashes[chunk]:
            if view.owners[index] != peer:
                return []  # who passes it on knows no better
            raise RemoteFault("hash", f"chunk {chunk} of slice {index} is not what was published")
        self._fetcher.cancel((digest,))
        return self.arrived(digest, frame.body)

    def ahead(self, index: int, body: Buffer, digest: bytes) -> list[Have]:
        """A chunk that came before it was named, or is named now."""
        one = self._slices[index]
        if one.named is None:
            if digest not in self.early:
                self.early[digest] = self._blobs.retention.keep(body)
            return []
        if not one.wants(digest):
            return []
        self._fetcher.cancel((digest,))
        return self.arrived(digest, body)

    def hashes(self, message: Hashes, now_s: float) -> list[Have]:
        """An owner has published; its chunks count from now on, whoever brings them."""
        index, view = message.slice_index, self._view
        if not view.may_count(index, message.attempt, message.set_id):
            return []
        if len(message.chunk_hashes) != num_chunks(view.plan, index):
            return []
        one = self._slices[index]
        before = one.named
        if before is not None:
            if before.chunk_hashes != message.chunk_hashes:
                self._fetcher.cancel(before.chunk_hashes)
                one.illegal.clear()
            # Told again: whatever we reported before, the coordinator may not know it (it has
            # restarted).
            self._void(one)
        one.named = message
        self._blobs.keep_result(view.plan.op, b"".join(message.chunk_hashes))
        foreseen, one.foreseen = one.foreseen, None
        if foreseen is not None and foreseen.root == slice_root(message.chunk_hashes):
            one.reported = foreseen.chunks
            self._enter(one, Taking.WHOLE)
            return []
        pushed, one.pushed = dict(one.pushed.values()), {}
        for chunk, digest in enumerate(message.chunk_hashes):
            # It may also be here from something else: that says nothing of what it is here.
            found = pushed.get(digest, self._blobs.get(digest))
            if found is None and digest in self.early:
                found = self.early[digest].read()
            if found is not None and self._is_legal(one, chunk, found, digest):
                self._blobs.keep_result(view.plan.op, found, digest)
            else:
                one.missing.add(digest)
        is_pushed = one.transfer.is_verbatim or message.set_id == view.all_planned_id
        if not one.missing:
            self._enter(one, Taking.WHOLE)
        elif message.attempt == 0 and is_pushed:
            self._enter(one, Taking.AWAITED)
            self._heard_s = one.heard_s = now_s
        else:
            self._pull(one)
        return self._report(one)

    def wants(self, digest: bytes) -> bool:
        """Return True if a chunk with this hash is named and missing."""
        return any(digest in one.missing for one in self._slices)

    def arrived(self, digest: bytes, body: Buffer) -> list[Have]:
        """A wanted blob is here: keep it if it is legal, and report slices that are whole."""
        reports = []
        wanted_by = [one for one in self._slices if digest in one.missing]
        legal_in = [one for one in wanted_by if self._is_legal_wherever(one, body, digest)]
        for one in legal_in:
            one.missing.discard(digest)
            if not one.missing:
                self._enter(one, Taking.WHOLE)
            reports += self._report(one)
        if legal_in or not wanted_by:
            self._blobs.keep_result(self._view.plan.op, body, digest)
        return reports

    def take_faults(self) -> list[PeerFault]:
        """Owners that published what nobody can decode, since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def tick(self, now_s: float) -> None:
        """Ask for what is not pushed any more."""
        for one in sorted(self._awaited, key=lambda one: one.transfer.index):
            if now_s >= self._patience_s(one):
                self._pull(one)

    def ask_again(self) -> list[Have]:
        """Look for what is asked for, in case that another op, which may share chunks with this
        one, has them by now or has given them up."""
        reports = []
        for one in self._slices:
            if one.phase is not Taking.ASKED or one.named is None:
                continue
            for digest in dict.fromkeys(one.named.chunk_hashes):
                if not one.wants(digest) or self._fetcher.is_wanted(digest):
                    continue
                body = self._blobs.get(digest)
                if body is not None:
                    reports += self.arrived(digest, body)
                else:
                    self._fetcher.want(digest, self._holders(one.transfer.index), spread=False)
        return reports

    @property
    def next_wakeup_s(self) -> float:
        """Time at which tick() has something to do."""
        if not self._awaited:
            return math.inf
        return self._patience_s(min(self._awaited, key=_heard_s))

    def flow(self, now_s: float) -> None:
        """Note that something else of this op came in: our link is busy, pushed chunks may be
        behind it."""
        self._heard_s = now_s

    def reports(self, *, again: bool) -> list[Have]:
        """HAVE also of slices that are not whole yet.

        Args:
            again: whatever was reported before.
        """
        if again:
            for one in self._slices:
                one.reported = ()
        foreseen = [one.foreseen for one in self._slices if again and one.foreseen is not None]
        told = [have for one in self._slices for have in self._report(one, partial=True)]
        return foreseen + told

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        for one in self._slices:
            if one.named is not None:
                self._fetcher.cancel(one.named.chunk_hashes)
        for kept in self.early.values():
            kept.release()
        self.early.clear()

    # ---- parts

    def _enter(self, one: _Taken, phase: Taking) -> None:
        if one.phase is Taking.AWAITED:
            self._awaited.remove(one)
        one.phase = entered(phase, one.phase, _NEXT)
        if phase is Taking.AWAITED:
            self._awaited.append(one)

    def _void(self, one: _Taken) -> None:
        """Drop all that is named, missing or reported of it."""
        self._enter(one, Taking.UNNAMED)
        one.named, one.missing, one.reported, one.foreseen = None, set(), (), None

    def _foresee(self, one: _Taken, frame: Frame) -> list[Have]:
        """Say that all of a sum is here before its owner has named it: HASHES comes by way of the
        coordinator, which need not wait for our answer to it."""
        index, plan = one.transfer.index, self._view.plan
        count = num_chunks(plan, index)
        if len(one.pushed) < count or one.transfer.is_verbatim:
            return []
        for chunk, (_, body) in one.pushed.items():
            start, stop = chunk_range(plan, index, chunk)
            try:
                one.check(body, stop - start, self._window)
            except RemoteFault:
                return []  # it is refused once it is named
        digests = [one.pushed[chunk][0] for chunk in range(count)]
        # Whoever says HAVE serves, by the hashes that others will have heard of.
        for digest, body in one.pushed.values():
            self._blobs.keep_result(plan.op, body, digest)
        root = self._blobs.keep_result(plan.op, b"".join(digests))
        one.pushed = {}
        one.foreseen = Have(
            self._view.plan_id, index, frame.attempt, frame.set_id, (True,) * count, root
        )
        return [one.foreseen]

    def _is_legal(self, one: _Taken, chunk: int, body: Buffer, digest: bytes) -> bool:
        """Return True if a published chunk can be decoded; else it is not looked for any more."""
        index = one.transfer.index
        start, stop = chunk_range(self._view.plan, index, chunk)
        try:
            one.check(body, stop - start, self._window)
        except RemoteFault as fault:
            one.illegal.add(digest)
            self._faults.append(PeerFault(self._view.owners[index], fault.reason, fault.detail))
            return False
        return True

    def _is_legal_wherever(self, one: _Taken, body: Buffer, digest: bytes) -> bool:
        """Return True if it is a legal chunk in all places of a slice that are said to hold it:
        only the last one may have another length than the first."""
        assert one.named is not None
        hashes = one.named.chunk_hashes
        places = {hashes.index(digest)}
        if hashes[-1] == digest:
            places.add(len(hashes) - 1)
        return all(self._is_legal(one, chunk, body, digest) for chunk in sorted(places))

    def _may_be_pushed(self, one: _Taken) -> bool:
        """Return True if the owner may push the slice's chunks by itself: a mean over all planned
        contributors, or its own contribution, unless that is left out."""
        view, index = self._view, one.transfer.index
        if one.transfer.is_verbatim:
            return view.slice_sets[index] != ()
        return view.may_count(index, 0, view.all_planned_id)

    def _patience_s(self, one: _Taken) -> float:
        """Until when chunks of a slice are waited for: while they, or anything, still come."""
        quiet_s = self._heard_s + limits.PUSH_QUIET_S
        return min(quiet_s, one.heard_s + limits.FETCH_TIMEOUT_S)

    def _is_from_owner(self, peer: PeerId, index: int) -> bool:
        """Return True if a slice may be pushed by this peer: by its owner or, where that is of
        another cell, by who owns the same range in ours."""
        view = self._view
        return peer in (view.owners[index], view.owners[self._near(index)])

    def _near(self, index: int) -> int:
        """The slice of the same range that is owned in our cell."""
        return self._view.cells.owned(self._view.cells.cell_of(self._me), index)

    def _pull(self, one: _Taken) -> None:
        """Ask for what is missing: the owner first, then the others that take it."""
        self._enter(one, Taking.ASKED)
        assert one.named is not None
        sources = self._holders(one.transfer.index)
        for digest in one.named.chunk_hashes:
            if one.wants(digest):
                self._fetcher.want(digest, sources, spread=False)

    def _holders(self, index: int) -> list[PeerId]:
        """Name the peers that may have a slice: our own cell's owner of its range, its owner, then
        the members of our cell and of the owner's in turns, then the rest. A slice that we alone
        give is with nobody if not here.

        If its owner has died it may have reached some cells alone, and each dead peer that is asked
        costs a time-out, so not all of a cell that lacks it is asked before another. Those of
        others are named from our own place on, so that not all ask the same one.
        """
        view, takers = self._view, self._slices[index].transfer.takers
        if self._me not in takers:
            return []
        cells, place = view.cells, takers.index(self._me)
        others = takers[place:] + takers[:place] if cells.count > 1 else ()
        first = [view.owners[self._near(index)], view.owners[index]]
        turns = zip_longest(cells.near(self._me, takers), cells.among(others, index))
        named = dict.fromkeys([*first, *chain.from_iterable(turns), *others])
        return [peer for peer in named if peer is not None and peer != self._me]

    def _report(self, one: _Taken, *, partial: bool = False) -> list[Have]:
        named, missing = one.named, one.missing
        if named is None:
            return []
        if missing and not (partial and len(missing) < len(set(named.chunk_hashes))):
            return []
        flags = tuple(digest not in missing for digest in named.chunk_hashes)
        if flags == one.reported:
            return []
        one.reported = flags
        return [Have(self._view.plan_id, one.transfer.index, named.attempt, named.set_id, flags)]

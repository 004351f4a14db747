"""Receiver's side of an op: the result's chunks, pushed by their owners, and what is pulled (T3).

An owner pushes a chunk as soon as it can, before FREEZE and before its hash is known here. So a
chunk is filed by (slice, attempt, set, chunk), one of each, from the slice's owner alone, and
counts only once HASHES names it. What does not come by itself is asked for by hash. Memory: at
most one encoded result.

A hash says that bytes are what the owner published, not that they can be decoded. So every chunk
is checked before it is kept: an illegal one is not served and never reported by HAVE, and a slice
that nobody but its owner holds goes to another owner when the gather deadline has passed.
"""

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerFault
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.retention import Kept
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import Hashes, Have


class Gather:
    """One peer's result of one op, as far as it is here.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes under us as records arrive.
        blobs: where verified chunks are kept.
        fetcher: asks others for what is missing.
        arithmetic: knows which chunks can be decoded.
        now_s: the time.

    Attributes:
        early: chunks that were here before the op, by hash; they are checked when they are named.
    """

    def __init__(
        self,
        me: PeerId,
        view: OpView,
        blobs: Blobs,
        fetcher: Fetcher,
        arithmetic: Arithmetic,
        now_s: float,
    ) -> None:
        self._me = me
        self._view = view
        self._blobs = blobs
        self._fetcher = fetcher
        self._arithmetic = arithmetic
        self._window = window_of(view.plan)
        self._is_whole = view.plan.kind in WHOLE
        self._known: dict[int, Hashes] = {}
        self._missing: dict[int, set[bytes]] = {}
        self._pushed: dict[int, dict[int, tuple[bytes, Buffer]]] = {}
        self._reported: dict[int, tuple[bool, ...]] = {}
        self._illegal: dict[int, set[bytes]] = {}
        self._faults: list[PeerFault] = []
        self._awaited: set[int] = set()
        self._heard_s = now_s
        self._owner_heard_s: dict[int, float] = {}
        self.early: dict[bytes, Kept] = {}

    # ---- events

    def decided(self) -> None:
        """The view has changed: what was pushed or named for another attempt or set is void."""
        for index, message in list(self._known.items()):
            if not self._view.may_count(index, message.attempt, message.set_id):
                self._fetcher.cancel(message.chunk_hashes)
                for place in (self._known, self._missing, self._reported, self._illegal):
                    place.pop(index, None)
                self._awaited.discard(index)
        for index in list(self._pushed):
            if not self._may_be_pushed(index):
                del self._pushed[index]

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
        if view.owners[index] != peer or not view.may_count(index, frame.attempt, frame.set_id):
            return []  # it was, when this was sent
        self._heard_s = self._owner_heard_s[index] = now_s
        known = self._known.get(index)
        if known is None:
            filed = self._pushed.setdefault(index, {})
            if chunk not in filed:
                filed[chunk] = (frame.digest or content_hash(frame.body), frame.body)
            return []
        if known.chunk_hashes[chunk] not in self._obtainable(index):
            return []
        digest = frame.digest or content_hash(frame.body)
        if digest != known.chunk_hashes[chunk]:
            raise RemoteFault("hash", f"chunk {chunk} of slice {index} is not what was published")
        self._fetcher.cancel((digest,))
        return self.arrived(digest, frame.body)

    def ahead(self, index: int, body: Buffer, digest: bytes) -> list[Have]:
        """A chunk that came before it was named, or is named now."""
        if index not in self._known:
            if digest not in self.early:
                self.early[digest] = self._blobs.retention.keep(body)
            return []
        if digest not in self._obtainable(index):
            return []
        self._fetcher.cancel((digest,))
        return self.arrived(digest, body)

    def hashes(self, message: Hashes, now_s: float) -> list[Have]:
        """An owner has published; its chunks count from now on, whoever brings them."""
        index = message.slice_index
        if not self._view.may_count(index, message.attempt, message.set_id):
            return []
        if len(message.chunk_hashes) != num_chunks(self._view.plan, index):
            return []
        before = self._known.get(index)
        if before is not None and before.chunk_hashes != message.chunk_hashes:
            self._fetcher.cancel(before.chunk_hashes)
            self._illegal.pop(index, None)
        self._known[index] = message
        # Told again: whatever we reported before, the coordinator may not know it (it has
        # restarted).
        self._reported.pop(index, None)
        op = self._view.plan.op
        self._blobs.keep_result(op, b"".join(message.chunk_hashes))
        pushed = dict(self._pushed.pop(index, {}).values())
        missing = self._missing[index] = set()
        for chunk, digest in enumerate(message.chunk_hashes):
            # It may also be here from something else: that says nothing of what it is here.
            found = pushed.get(digest, self._blobs.get(digest))
            if found is None and digest in self.early:
                found = self.early[digest].read()
            if found is not None and self._is_legal(index, chunk, found, digest):
                self._blobs.keep_result(op, found, digest)
            else:
                missing.add(digest)
        if missing:
            is_pushed = self._is_whole or message.set_id == self._view.all_planned_id
            if message.attempt == 0 and is_pushed:
                self._awaited.add(index)
                self._heard_s = now_s
                self._owner_heard_s[index] = now_s
            else:
                self._pull(index)
        return self._report(index)

    def arrived(self, digest: bytes, body: Buffer) -> list[Have]:
        """A wanted blob is here: keep it if it is legal, and report slices that are whole."""
        reports = []
        wanted_by = [index for index, missing in self._missing.items() if digest in missing]
        legal_in = [index for index in wanted_by if self._is_legal_wherever(index, body, digest)]
        for index in legal_in:
            self._missing[index].discard(digest)
            reports += self._report(index)
        if legal_in or not wanted_by:
            self._blobs.keep_result(self._view.plan.op, body, digest)
        return reports

    def take_faults(self) -> list[PeerFault]:
        """Owners that published what nobody can decode, since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def _is_legal(self, index: int, chunk: int, body: Buffer, digest: bytes) -> bool:
        """Whether a published chunk can be decoded; if not, it is not looked for any more."""
        start, stop = chunk_range(self._view.plan, index, chunk)
        # A contribution's chunk is a part; a mean's is what owners make of parts.
        check = self._arithmetic.check if self._is_whole else self._arithmetic.check_result
        try:
            check(body, stop - start, self._window)
        except RemoteFault as fault:
            self._illegal.setdefault(index, set()).add(digest)
            self._faults.append(PeerFault(self._view.owners[index], fault.reason, fault.detail))
            return False
        return True

    def _is_legal_wherever(self, index: int, body: Buffer, digest: bytes) -> bool:
        """Whether it is a legal chunk in all places of a slice that are said to hold it: only
        the last one may have another length than the first."""
        hashes = self._known[index].chunk_hashes
        places = {hashes.index(digest)}
        if hashes[-1] == digest:
            places.add(len(hashes) - 1)
        return all(self._is_legal(index, chunk, body, digest) for chunk in sorted(places))

    def tick(self, now_s: float) -> None:
        """Ask for what is not pushed any more."""
        for index in sorted(self._awaited):
            if not self._missing[index]:
                self._awaited.discard(index)
            elif now_s >= self._patience_s(index):
                self._awaited.discard(index)
                self._pull(index)

    @property
    def next_wakeup_s(self) -> float:
        """When tick() has something to do."""
        if not self._awaited:
            return float("inf")
        return min((self._patience_s(index) for index in self._awaited), default=float("inf"))

    def flow(self, now_s: float) -> None:
        """Something else of this op came in: our link is busy, pushed chunks may be behind it."""
        self._heard_s = now_s

    def reports(self, *, again: bool) -> list[Have]:
        """HAVE also of slices that are not whole yet.

        Args:
            again: whatever was reported before.
        """
        if again:
            self._reported.clear()
        return [have for index in self._known for have in self._report(index, partial=True)]

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        for message in self._known.values():
            self._fetcher.cancel(message.chunk_hashes)
        for kept in self.early.values():
            kept.release()
        self.early.clear()

    # ---- parts

    def _may_be_pushed(self, index: int) -> bool:
        """Whether the owner may push the slice's chunks by itself: a mean over all planned
        contributors, or its own contribution, unless that is left out."""
        view = self._view
        if self._is_whole:
            return view.slice_sets[index] != ()
        return view.may_count(index, 0, view.all_planned_id)

    def _patience_s(self, index: int) -> float:
        """Until when chunks of a slice are waited for: while they, or anything, still come."""
        quiet_s = self._heard_s + limits.PUSH_QUIET_S
        return min(quiet_s, self._owner_heard_s[index] + limits.FETCH_TIMEOUT_S)

    def _pull(self, index: int) -> None:
        """Ask for what is missing: the owner first, then the other members."""
        sources = self._holders(index)
        obtainable = self._obtainable(index)
        for digest in self._known[index].chunk_hashes:
            if digest in obtainable:
                self._fetcher.want(digest, sources, spread=False)

    def _obtainable(self, index: int) -> set[bytes]:
        """What is missing of a slice and may be found."""
        return self._missing[index] - self._illegal.get(index, set())

    def _holders(self, index: int) -> list[PeerId]:
        owner = self._view.owners[index]
        is_pair = self._view.plan.kind == PAIR  # nobody else has what one gives to its partner
        others = [] if is_pair else [member.peer for member in self._view.plan.members]
        return [peer for peer in dict.fromkeys([owner, *others]) if peer != self._me]

    def _report(self, index: int, *, partial: bool = False) -> list[Have]:
        known, missing = self._known[index], self._missing[index]
        if missing and not (partial and len(missing) < len(set(known.chunk_hashes))):
            return []
        flags = tuple(digest not in missing for digest in known.chunk_hashes)
        if flags == self._reported.get(index):
            return []
        self._reported[index] = flags
        return [Have(self._view.plan_id, index, known.attempt, known.set_id, flags)]

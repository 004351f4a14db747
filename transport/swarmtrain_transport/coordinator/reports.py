"""What peers have reported of one op: who has whose part, what is published, who holds it.

All reports are monotone and idempotent. Nothing here is decided, and nothing of it survives a
restart: peers report again (protocol.md, COORDINATOR STATE).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from swarmtrain_transport.coordinator.arrivals import Arrivals, SliceTry
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import OpView, num_chunks, slice_root
from swarmtrain_transport.ledger.signed import (
    are_hashes,
    contribution_payload,
    is_signature,
    result_payload,
    root_over,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Hashes, Have, Roots, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Verify

Report = Roots | Got | SliceDone | Have | Withdraw


@dataclass(frozen=True, slots=True)
class Published:
    """An accepted SLICE_DONE."""

    set_id: int
    chunk_hashes: tuple[bytes, ...]
    inputs: bytes
    signature: bytes


def check_signed(view: OpView, peer: PeerId, message: Report, verify: Verify) -> None:
    """Whether what must be signed is signed by the peer that says it, for this very op.

    Raises:
        RemoteFault: reason ``signature``; or ``roots``, there is not one hash per slice.
    """
    if isinstance(message, Roots):
        if len(message.slice_roots) != len(view.plan.slices) or not are_hashes(message.slice_roots):
            raise RemoteFault("roots", f"{len(message.slice_roots)} slice roots, or not of hashes")
        payload = contribution_payload(view.plan_hash, root_over(message.slice_roots))
    elif isinstance(message, SliceDone):
        if not 0 <= message.slice_index < 1 << 32 or not 0 <= message.attempt < 1 << 32:
            raise RemoteFault("signature", "signed for no slice that there can be")
        root, place = slice_root(message.chunk_hashes), (message.slice_index, message.attempt)
        payload = result_payload(view.plan_hash, *place, root, message.inputs)
    else:
        return
    if not is_signature(message.signature) or not verify(peer, message.signature, payload):
        raise RemoteFault("signature", f"{type(message).__name__} is not signed by who says it")


class Reports:
    """One op's reports in this term; the rest is in the ledger's view.

    Args:
        view: the ledger's view of the op; it changes as decisions are folded.
        now_s: start of the op, or of this term's part of it.

    Attributes:
        arrivals: what owners have of whom, and what was signed.
        got: contributors whole at the owner, per try.
        published: accepted SLICE_DONE, per try.
        holders: who holds a chunk, by (slice, attempt, chunk).
        whole_s: since when a member holds all of a slice's result, per try.
        withdrawn: whose contribution is out by its own word, and why.
        lost: planned processes that are gone for good.
    """

    def __init__(self, view: OpView, now_s: float) -> None:
        self.view = view
        self.arrivals = Arrivals(view)
        self.got = self.arrivals.got
        self.published: dict[SliceTry, Published] = {}
        self.holders: dict[tuple[int, int, int], set[PeerId]] = {}
        self.whole_s: dict[SliceTry, dict[PeerId, float]] = {}
        self.withdrawn = self.arrivals.withdrawn
        self.lost: set[PeerId] = set()
        self._now_s = now_s
        self._idle: tuple[AbstractSet[PeerId], float] | None = None
        """With these alive nothing falls due before this time, unless something is reported."""

    # ---- reports

    def hear(self, peer: PeerId, message: Report, now_s: float) -> Hashes | None:
        """A report on this op; the answer is what its members must hear of it.

        Raises:
            RemoteFault: reason ``roots``: the peer has signed two contributions; or ``scalars``.
        """
        self._now_s = now_s
        if isinstance(message, Withdraw):
            self._idle = None
            self.arrivals.report_withdrawn(peer, message.reason)
            return None
        if isinstance(message, Roots):
            self._idle = None
            self.arrivals.report_roots(peer, message, now_s)
            return None
        slice_try = (message.slice_index, message.attempt)
        if isinstance(message, Got):
            self.report_got(peer, slice_try, message.complete, message.refused, message.scalars)
        elif isinstance(message, Have):
            self.report_have(peer, slice_try, message.set_id, message.chunks)
        else:
            published = Published(
                message.set_id, message.chunk_hashes, message.inputs, message.signature
            )
            if self.report_done(peer, slice_try, published) is not None:
                return self._hashes(slice_try)
        return None

    def concerns(self, peer: PeerId, news: Hashes) -> bool:
        """Whether a peer must hear what `hear` has answered: every member of the op."""
        return peer in self.view.boots

    def returned(self, peer: PeerId, boot: bytes) -> list[Hashes]:
        """A peer said HELLO: what it must hear of this op, if it is still the planned process.

        A restarted process has lost what the op's member held (protocol.md, IDS: boot).
        """
        planned = self.view.boots.get(peer)
        if planned is None:
            return []
        if planned != boot:
            self.report_lost(peer)
            return []
        current = enumerate(self.view.attempts)
        told = [self._hashes(slice_try) for slice_try in current if self._current(slice_try[0])]
        return [news for news in told if self.concerns(peer, news)]

    def _hashes(self, slice_try: SliceTry) -> Hashes:
        published = self.published[slice_try]
        return Hashes(self.view.plan_id, *slice_try, published.set_id, published.chunk_hashes)

    def report_got(
        self, owner: PeerId, slice_try: SliceTry, complete: Mapping[PeerId, bytes],
        refused: Mapping[PeerId, str], scalars: Mapping[PeerId, bytes],
    ) -> None:  # fmt: skip
        """An owner holds these contributions whole and valid, with these slice roots and scalars.

        Raises:
            RemoteFault: reason ``scalars``.
        """
        if self._is_owner(owner, slice_try):
            self._idle = None
            self.arrivals.report_got(slice_try, complete, refused, scalars, self._now_s)

    def owes(self, peer: PeerId, witnesses: AbstractSet[PeerId]) -> bool:
        """Return True if enough other owners (`matrix.voices_needed`) lack this contributor's part.

        An owner that has not those of most is the odd one out, and no witness against anybody.

        Args:
            peer: the contributor.
            witnesses: who was heard of lately.
        """
        if peer not in self._contributors(set(self.view.boots)):
            return False
        named, rows = self.view.slice_sets, self.arrivals.rows()
        waiting = {
            owner
            for index, owner in enumerate(self.view.owners)
            if named[index] is None
            and not self.arrivals.has_come(peer, index)
            and 2 * len(rows[index]) > len(self.view.weights)
        }
        return len((waiting & witnesses) - {peer}) >= self.view.words.needed(peer)

    def report_done(
        self, owner: PeerId, slice_try: SliceTry, published: Published
    ) -> Published | None:
        """An owner has published; the answer is what to relay, None if it is not news.

        Before FREEZE it may do so for all planned contributors (T3); that counts if FREEZE names
        them all, and else is void. Who was not connected at the time is told at HELLO, so a
        repetition is not relayed.
        """
        index, hashes = slice_try[0], published.chunk_hashes
        if not self._is_owner(owner, slice_try):
            return None
        if published.set_id != self.view.result_set_id(index):
            return None
        if len(hashes) != num_chunks(self.view.plan, index) or not are_hashes(hashes):
            return None
        if self._current(index) is not None or not self._is_sum_of(index, published):
            return None
        self.whole_s.pop(slice_try, None)
        for chunk in range(len(hashes)):  # an earlier one was over another set
            self.holders.pop((*slice_try, chunk), None)
        self._idle = None
        self.published[slice_try] = published
        self.report_have(owner, slice_try, published.set_id, (True,) * len(hashes))
        return published

    def report_have(
        self, peer: PeerId, slice_try: SliceTry, name: int, chunks: tuple[bool, ...]
    ) -> None:
        """A member holds verified result chunks."""
        published = self.published.get(slice_try)
        if published is None or published.set_id != name or peer not in self.view.boots:
            return
        self._holds(peer, slice_try, chunks, len(published.chunk_hashes))

    def _holds(
        self, peer: PeerId, slice_try: SliceTry, chunks: tuple[bool, ...], count: int
    ) -> None:
        self._idle = None
        for chunk, here in enumerate(chunks[:count]):
            if here:
                self.holders.setdefault((*slice_try, chunk), set()).add(peer)
        if len(chunks) >= count and all(chunks[:count]):
            self.whole_s.setdefault(slice_try, {}).setdefault(peer, self._now_s)

    def report_lost(self, peer: PeerId) -> None:
        """The process that was planned is gone for good (new boot id, left, evicted)."""
        self._idle = None
        self.lost.add(peer)
        for holders in self.holders.values():
            holders.discard(peer)
        for times in self.whole_s.values():
            times.pop(peer, None)

    def _current(self, index: int) -> Published | None:
        """What stands as a slice's result: of its current attempt, over the right set."""
        published = self.published.get((index, self.view.attempts[index]))
        if published is None or published.set_id != self.view.result_set_id(index):
            return None
        return published if self._is_sum_of(index, published) else None

    def _is_sum_of(self, index: int, published: Published) -> bool:
        """Whether the owner says to have summed what its contributors have signed.

        After a restart a dead contributor's word is missing; what it signed stood in FREEZE's way
        then, so it is not asked for again.
        """
        named = self.view.slice_sets[index] or tuple(self.view.weights)
        inputs = self.arrivals.inputs(index, named)
        return inputs is None or inputs == published.inputs

    def _is_owner(self, peer: PeerId, slice_try: SliceTry) -> bool:
        index, attempt = slice_try
        return (
            0 <= index < len(self.view.owners)
            and self.view.attempts[index] == attempt
            and self.view.owners[index] == peer
        )

    # ---- what follows from them

    def _contributors(self, live: AbstractSet[PeerId]) -> set[PeerId]:
        """Peers whose contribution may still enter some slice."""
        if self.view.frozen is None:
            return (set(self.view.weights) & live) - set(self.withdrawn)
        return set(self.view.frozen)

    def _chunk_holders(self, index: int) -> list[set[PeerId]] | None:
        slice_try = (index, self.view.attempts[index])
        published = self._current(index)
        if published is None:
            return None
        count = len(published.chunk_hashes)
        return [self.holders.get((*slice_try, chunk), set()) for chunk in range(count)]

    def _all_held(self, index: int, live: set[PeerId], needed: int) -> bool:
        """Whether the slice is published and each chunk has this many live holders."""
        for held in (holders := self._chunk_holders(index)) or ():
            if len(held & live) < needed:
                return False
        return holders is not None

    def _held_by(self, index: int, peers: set[PeerId]) -> bool:
        """Whether all of these peers hold every chunk of the slice."""
        for held in (holders := self._chunk_holders(index)) or ():
            if not peers <= held:
                return False
        return holders is not None

"""Reports of peers on one op: who has given what, what is published, who holds it.

Reports are monotone and idempotent. Nothing is decided here, and nothing survives a restart: peers
report again (protocol.md, COORDINATOR STATE). Every slice is a transfer (`ledger.transfers`), so
ops of all kinds are heard alike.

A contribution is complete at a slice's owner when the owner reports its slice root and that is the
one which the contributor has signed. Either message may come first. Where the plan's rule needs
scalars of whole vectors, the owner must also have measured it, with all who are complete, and found
it as long as its contributor says (`inner_products`). A contributor that is not complete at an
owner may be slow, or send it other bytes than it has signed; or the owner may lie. It is one's word
against the other's (`exclusion_rule`).

Where a slice cannot move, its contributor is its owner: by publishing it gives and signs at once.
"""

import math
from collections.abc import Collection
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.validation import shown
from swarmtrain_transport.coordinator.ops.timers import most_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.cell_sums import differences, num_named
from swarmtrain_transport.ledger.exclusion_rule import ABSENT, REFUSED, ROOTS, SCALARS, WITHDREW
from swarmtrain_transport.ledger.fold import OpView, num_chunks, slice_root
from swarmtrain_transport.ledger.inner_products import Table, are_norms, totals, vectors
from swarmtrain_transport.ledger.signed_roots import (
    are_hashes,
    contribution_payload,
    inputs_of,
    is_signature,
    made_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED, content_name, transfers_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import (
    Got,
    Hashes,
    Have,
    Roots,
    SliceDone,
    Withdraw,
    each_of,
)
from swarmtrain_transport.wire.records import SignedRoot, Verify

Report = Roots | Got | SliceDone | Have | Withdraw

SliceTry = tuple[int, int]
"""(slice, attempt)."""


def check_signed(view: OpView, peer: PeerId, message: Report, verify: Verify) -> None:
    """Check that what must be signed is signed by the peer that says it, for this very op.

    Raises:
        RemoteFault: reason ``signature``; ``roots``, there is not one hash per slice; or ``sums``,
            not one for each sum that an owner in cells has to name.
    """
    if isinstance(message, Roots):
        count = len(view.plan.slices) // view.cells.count
        if len(message.slice_roots) != count or not are_hashes(message.slice_roots):
            raise RemoteFault("roots", f"{len(message.slice_roots)} slice roots, or not of hashes")
        payload = contribution_payload(view.plan_hash, root_over(message.slice_roots))
    elif isinstance(message, SliceDone):
        if not 0 <= message.slice_index < 1 << 32 or not 0 <= message.attempt < 1 << 32:
            raise RemoteFault("signature", "signed for no slice that there can be")
        if len(message.sums) != num_named(view.cells.count) or not are_hashes(message.sums):
            raise RemoteFault("sums", f"{len(message.sums)} roots of sums, or not of hashes")
        root, place = slice_root(message.chunk_hashes), (message.slice_index, message.attempt)
        signed = made_of(message.inputs, message.sums)
        payload = result_payload(view.plan_hash, *place, root, signed)
    else:
        return
    if not is_signature(message.signature) or not verify(peer, message.signature, payload):
        raise RemoteFault("signature", f"{type(message).__name__} is not signed by who says it")


class Reports:
    """One op's reports in this term; the rest is in the ledger's view.

    Args:
        view: the ledger's view of the op; it changes as decisions are folded.

    Attributes:
        transfers: the op's slices as they were planned.
        withdrawn: contributors that cannot send their own values, and why, by their own word.
        signed: the roots that contributors have signed.
        got: contributors that are complete at the owner, per try.
        came_s: time when a contributor was complete at the owner, per try.
        signed_s: time when a contributor has signed.
        last_s: time when an owner last had something of a contributor whole.
        given_s: time when it was whole with most owners: one that is slow to say so sets no pace.
        published: SLICE_DONE of the owners that have published, per try.
        holders: members that hold a chunk, by (slice, attempt, chunk).
        held_s: time from which a member holds all of a slice's result, per try.
        lost: planned processes that are gone for good.
        lacks: cells whose sums an owner says that it lacks, per try.
        differing: first slices of ranges whose owners have named a sum differently.
        untold: HASHES that are still to go to members, and when (`announcing`).
        changes: grows with every report that says something new.
        lacking: slice that COMMIT waited for when it was last asked.
    """

    def __init__(self, view: OpView) -> None:
        self.view = view
        self.transfers = transfers_of(view.plan)
        self.withdrawn: dict[PeerId, str] = {}
        self.signed: dict[PeerId, Roots] = {}
        self.got: dict[SliceTry, set[PeerId]] = {}
        self.came_s: dict[SliceTry, dict[PeerId, float]] = {}
        self.signed_s: dict[PeerId, float] = {}
        self.last_s: dict[PeerId, float] = {}
        self.given_s: dict[PeerId, float] = {}
        self.published: dict[SliceTry, SliceDone] = {}
        self.holders: dict[tuple[int, int, int], set[PeerId]] = {}
        self.held_s: dict[SliceTry, dict[PeerId, float]] = {}
        self.lost: set[PeerId] = set()
        self.lacks: dict[SliceTry, frozenset[int]] = {}
        self.differing: set[int] = set()
        self.untold: list[tuple[float, Hashes]] = []
        self.changes = 0
        self.lacking = 0
        self._givers = [frozenset(transfer.givers) for transfer in self.transfers]
        self._gives_to: dict[PeerId, list[int]] = {}
        for transfer in self.transfers:
            for giver in transfer.givers:
                self._gives_to.setdefault(giver, []).append(transfer.index)
        self._is_summed = not all(transfer.is_verbatim for transfer in self.transfers)
        self._foreseen: dict[SliceTry, dict[PeerId, tuple[int, bytes]]] = {}
        self._claims: dict[SliceTry, dict[PeerId, bytes]] = {}
        self._refusals: dict[SliceTry, dict[PeerId, str]] = {}
        self._tables: dict[SliceTry, Table] = {}
        self._inputs: dict[tuple[int, tuple[PeerId, ...]], bytes] = {}

    # ---- what peers say

    def hear(self, peer: PeerId, message: Report, now_s: float) -> Hashes | None:
        """Take a report on this op; the answer is what peers must hear of it.

        Raises:
            RemoteFault: reason ``roots``: the peer has signed two contributions; or ``scalars``: it
                says no norms where the plan asks for them, or others than there can be; or
                ``slices``: it has results of more slices than there are.
        """
        match message:
            case Withdraw():
                self.withdrawn.setdefault(peer, WITHDREW + shown(message.reason, 32))
                self.changes += 1
            case Roots():
                self._sign(peer, message, now_s)
            case Got():
                self._receive(peer, message, now_s)
            case Have():
                if len(message.more) >= len(self.transfers):
                    raise RemoteFault("slices", f"HAVE of {len(message.more) + 1} slices")
                for one in each_of(message):
                    self._have(peer, one, now_s)
            case SliceDone():
                if self._publish(peer, message, now_s):
                    return self._news(message)
        return None

    def concerns(self, peer: PeerId, news: Hashes) -> bool:
        """Return True if a peer must hear what `hear` has answered: who publishes or takes it."""
        index = news.slice_index
        return peer == self.view.owners[index] or peer in self.transfers[index].takers

    def stands(self, news: Hashes) -> bool:
        """Return True if what was published so still counts."""
        standing = self.current(news.slice_index)
        return standing is not None and self._news(standing) == news

    def holds(self, peer: PeerId, news: Hashes) -> bool:
        """Return True if a peer has said that it holds all that was published so."""
        return peer in self.held_s.get((news.slice_index, news.attempt), {})

    def returned(self, peer: PeerId, boot: bytes) -> list[Hashes]:
        """Return all that a peer must hear of this op after HELLO, if it is the planned process.

        A restarted process has lost what the op's member held (protocol.md, IDS: boot).
        """
        planned = self.view.boots.get(peer)
        if planned is None:
            return []
        if planned != boot:
            self.lose(peer)
            return []
        standing = [self.current(transfer.index) for transfer in self.transfers]
        told = [self._news(published) for published in standing if published is not None]
        return [news for news in told if self.concerns(peer, news)]

    def lose(self, peer: PeerId) -> None:
        """The process that was planned is gone for good (new boot id, left, evicted).

        It serves nobody any more. In a pair op nobody else needs it to, and what it has said that
        it holds stands: it was able to make its step, and its partner need not undo anything.
        """
        self.changes += 1
        self.lost.add(peer)
        if self.view.plan.kind == PAIR:
            return
        for holders in self.holders.values():
            holders.discard(peer)
        for times in self.held_s.values():
            times.pop(peer, None)
        for foreseen in self._foreseen.values():
            foreseen.pop(peer, None)

    # ---- what is given

    def _sign(self, peer: PeerId, message: Roots, now_s: float) -> None:
        """A contributor has signed its contribution; the first word stands."""
        if not self._is_summed:
            return
        if len(message.norms) != len(self.transfers) * bool(self.view.plan.scalars):
            raise RemoteFault("scalars", f"{len(message.norms)} norms")
        if not are_norms(message.norms):
            raise RemoteFault("scalars", "a norm that nothing can have")
        known = self.signed.setdefault(peer, message)
        if known.slice_roots != message.slice_roots:
            raise RemoteFault("roots", "two contributions to one op are signed")
        self.changes += 1
        self.signed_s.setdefault(peer, now_s)
        for slice_try, claims in self._claims.items():
            if peer in claims:
                self._compare(peer, slice_try, now_s)

    def _receive(self, owner: PeerId, message: Got, now_s: float) -> None:
        """An owner has these contributions whole and legal, with these slice roots and scalars."""
        if not self._is_summed or not self._is_owner(owner, message):
            return
        self.changes += 1
        slice_try = (message.slice_index, message.attempt)
        self._table(slice_try).report(message.scalars)
        self.lacks[slice_try] = frozenset(message.lacks) & set(range(self.view.cells.count))
        self.got.setdefault(slice_try, set())
        claims = self._claims.setdefault(slice_try, {})
        givers = self._givers[message.slice_index]
        for peer in message.complete.keys() & givers:
            if claims.setdefault(peer, message.complete[peer]) == message.complete[peer]:
                self._compare(peer, slice_try, now_s)
        refusals = self._refusals.setdefault(slice_try, {})
        for peer, reason in message.refused.items():
            if peer in givers:
                refusals.setdefault(peer, REFUSED + shown(reason, 32))

    def _compare(self, peer: PeerId, slice_try: SliceTry, now_s: float) -> None:
        signed, row = self.signed.get(peer), self.got[slice_try]
        if peer in row or signed is None:
            return
        if self._signed_root(signed, slice_try[0]) != self._claims[slice_try][peer]:
            return
        if not self._is_measured(peer, signed, slice_try):
            return
        row.add(peer)
        self.last_s[peer] = self.came_s.setdefault(slice_try, {})[peer] = now_s
        owed = self._gives_to[peer]
        if sum(peer in self.row(index) for index in owed) >= most_of(len(owed)):
            self.given_s.setdefault(peer, now_s)

    def _signed_root(self, signed: Roots, index: int) -> bytes:
        """Return what a contributor has signed for the owner of a slice."""
        return signed.slice_roots[self.view.cells.range_of(index)]

    def _table(self, slice_try: SliceTry) -> Table:
        plan = self.view.plan
        planned = vectors(self.view.weights, plan.centre)
        return self._tables.setdefault(slice_try, Table(plan.scalars, planned))

    def _is_measured(self, peer: PeerId, signed: Roots, slice_try: SliceTry) -> bool:
        """Return True if FREEZE may count on what the owner has measured; later nobody measures."""
        if not self.view.plan.scalars or self.view.frozen is not None:
            return True
        norm, row = signed.norms[slice_try[0]], self.got[slice_try]
        return self._table(slice_try).fits(peer, norm, vectors(row, self.view.plan.centre))

    # ---- what is published

    def _publish(self, owner: PeerId, message: SliceDone, now_s: float) -> bool:
        """An owner has published; return True if it is news.

        Before FREEZE it may do so for all planned contributors (T3); that counts if FREEZE names
        them all, and else is void. A peer that was not connected at the time is told at HELLO, so a
        repetition is no news.
        """
        index, hashes = message.slice_index, message.chunk_hashes
        if not self._is_owner(owner, message) or owner in self.lost:
            return False
        if len(hashes) != num_chunks(self.view.plan, index) or not are_hashes(hashes):
            return False
        slice_try = (index, message.attempt)
        if self._is_summed:
            if not self._is_new_sum(index, message):
                return False
            self.held_s.pop(slice_try, None)
            for chunk in range(len(hashes)):  # an earlier one was over another set
                self.holders.pop((*slice_try, chunk), None)
        else:
            if not self._is_new_gift(owner, message):
                return False
            self.got[slice_try], self.came_s[slice_try] = {owner}, {owner: now_s}
            self.last_s[owner] = self.given_s[owner] = now_s
        self.published[slice_try] = message
        if self.differences(index):
            self.differing.add(self.view.cells.pieces(index).start)
        whole = (True,) * len(hashes)
        self._hold(owner, slice_try, whole, now_s)
        named = message.set_id, slice_root(hashes)
        for peer, foreseen in self._foreseen.get(slice_try, {}).items():
            if foreseen == named:
                self._hold(peer, slice_try, whole, now_s)
        return True

    def _is_new_sum(self, index: int, message: SliceDone) -> bool:
        """Return True if it is over the right set, and nothing stands that is."""
        if message.set_id != self.view.result_set_id(index) or self.current(index) is not None:
            return False
        return self._is_over_signed(index, message)

    def _is_new_gift(self, owner: PeerId, message: SliceDone) -> bool:
        """Return True if a contributor publishes its own for the first time, and not too late.

        Raises:
            RemoteFault: reason ``roots``: it has published something else before.
        """
        root = slice_root(message.chunk_hashes)
        is_due = owner in self.transfers[message.slice_index].givers
        if not is_due or message.inputs != NOTHING_SUMMED or message.set_id != content_name(root):
            return False
        known = self.published.get((message.slice_index, message.attempt))
        signed = self.view.roots.get(owner)
        is_other = known is not None and known.chunk_hashes != message.chunk_hashes
        if is_other or (signed is not None and signed.root != root):
            raise RemoteFault("roots", "two contributions to one op are signed")
        return known is None and (self.view.frozen is None or signed is not None)

    def _have(self, peer: PeerId, message: Have, now_s: float) -> None:
        """A member holds verified chunks of what stands."""
        index, attempt = message.slice_index, message.attempt
        if peer not in self.view.boots or peer in self.lost:
            return
        if not self._is_current(index, attempt):
            return
        standing = self.current(index)
        is_foreseen = self._is_summed and len(message.root) == limits.HASH_BYTES
        if is_foreseen and message.set_id == self.view.result_set_id(index):
            self._foreseen.setdefault((index, attempt), {})[peer] = message.set_id, message.root
            if standing is None or slice_root(standing.chunk_hashes) != message.root:
                return  # it counts if just this is published
        if message.set_id != self.name_of(index):
            return
        self._hold(peer, (index, attempt), message.chunks, now_s)

    def _hold(
        self, peer: PeerId, slice_try: SliceTry, chunks: tuple[bool, ...], now_s: float
    ) -> None:
        self.changes += 1
        count = num_chunks(self.view.plan, slice_try[0])
        for chunk, here in enumerate(chunks[:count]):
            if here:
                self.holders.setdefault((*slice_try, chunk), set()).add(peer)
        if len(chunks) >= count and all(chunks[:count]):
            self.held_s.setdefault(slice_try, {}).setdefault(peer, now_s)

    def _news(self, message: SliceDone) -> Hashes:
        place = (message.slice_index, message.attempt)
        return Hashes(self.view.plan_id, *place, message.set_id, message.chunk_hashes)

    def _is_owner(self, peer: PeerId, message: Got | SliceDone) -> bool:
        index = message.slice_index
        return self._is_current(index, message.attempt) and self.view.owners[index] == peer

    def _is_current(self, index: int, attempt: int) -> bool:
        return 0 <= index < len(self.transfers) and self.view.attempts[index] == attempt

    # ---- what follows about contributions

    def contributors(self, live: AbstractSet[PeerId]) -> set[PeerId]:
        """Peers whose contribution may still enter some slice."""
        if self.view.frozen is None:
            return (self.view.weights.keys() & live) - self.withdrawn.keys()
        return set(self.view.frozen)

    @property
    def awaited(self) -> set[PeerId]:
        """Planned contributors whose contribution somebody takes."""
        taken = [transfer for transfer in self.transfers if transfer.takers]
        return {giver for transfer in taken for giver in transfer.givers}

    def row(self, index: int) -> set[PeerId]:
        """Return the contributors that are complete at a slice, under its current attempt."""
        return self.got.get((index, self.view.attempts[index]), set())

    def gives_to(self, peer: PeerId) -> list[int]:
        """Return the slices to whose owners a contributor gives its parts."""
        return self._gives_to.get(peer, [])

    def missing(self, index: int, among: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those of some peers that are to give to a slice's owner and are not complete."""
        row, givers = self.row(index), self._givers[index]
        return set() if len(row) == len(givers) else {*among} & givers - row

    def given(self, indexes: Collection[int]) -> set[PeerId]:
        """Return those who have given all that they had to give to these slices, alive or not."""
        givers = set[PeerId]().union(*[self._givers[index] for index in indexes])
        return givers.difference(self.withdrawn, *[self.missing(i, givers) for i in indexes])

    def word(self, peer: PeerId, index: int) -> str:
        """Return the owner's word on a contribution that is not complete at its slice
        (`exclusion_rule`); only what is absent may still come."""
        slice_try = (index, self.view.attempts[index])
        refusal = self._refusals.get(slice_try, {}).get(peer)
        if refusal is not None:
            return refusal
        claim, signed = self._claims.get(slice_try, {}).get(peer), self.signed.get(peer)
        if claim is None or signed is None:
            return ABSENT
        if self._signed_root(signed, index) != claim:
            return ROOTS
        if not self.view.plan.scalars:
            return ABSENT
        is_other = self._table(slice_try).contradicts(peer, signed.norms[index])
        return SCALARS if is_other else ABSENT

    def has_come(self, peer: PeerId, index: int) -> bool:
        """Return True if the slice's owner has the contributor's bytes whole, right or wrong."""
        return peer in self._claims.get((index, self.view.attempts[index]), {})

    def owes(self, peer: PeerId, witnesses: AbstractSet[PeerId]) -> bool:
        """Return True if enough other owners (`matrix.voices_needed`) lack this contributor's part.

        An owner that has not those of most is the odd one out, and no witness against anybody. A
        contributor that publishes its own is late from D_scatter on, and owes nothing before.

        Args:
            peer: the contributor.
            witnesses: peers that were heard of lately.
        """
        if peer not in self.contributors(self.view.boots.keys()):
            return False
        named = self.view.given_sets
        waiting = {
            self.view.owners[index]
            for index in self.gives_to(peer)
            if named[index] is None
            and not self.has_come(peer, index)
            and 2 * len(self.row(index)) > len(self.transfers[index].givers)
        }
        return len((waiting & witnesses) - {peer}) >= self.view.words.needed(peer)

    def roots_of(self, peers: tuple[PeerId, ...]) -> dict[PeerId, SignedRoot]:
        """Return the signed roots that FREEZE keeps of these contributors."""
        if not self._is_summed:
            done = {self.view.owners[index]: one for (index, _), one in self.published.items()}
            given = {peer: (done[peer].chunk_hashes, done[peer].signature) for peer in peers}
        else:
            known = {peer: self.signed[peer] for peer in peers if peer in self.signed}
            given = {peer: (one.slice_roots, one.signature) for peer, one in known.items()}
        return {peer: SignedRoot(root_over(hashes), sign) for peer, (hashes, sign) in given.items()}

    def totals(self, contributors: tuple[PeerId, ...]) -> bytes:
        """Return the scalars that FREEZE carries of contributors who are complete with every owner
        there is."""
        if not self.view.plan.scalars:
            return b""
        tables = [self._table(slice_try) for slice_try in enumerate(self.view.attempts)]
        named = vectors(contributors, self.view.plan.centre)
        return totals(self.view.plan.scalars, named, tables)

    def half_given_s(self) -> float:
        """Return when more than half of the first owners had the parts of more than half; -inf if
        they have not."""
        halves, few = list[float](), len(self.transfers) // 2
        for index, givers in enumerate(self._givers):
            came_s = sorted(self.came_s.get((index, 0), {}).values())
            halves += came_s[len(givers) // 2 :][:1]
        return sorted(halves)[few] if len(halves) > few else -math.inf

    # ---- what follows about results

    def current(self, index: int) -> SliceDone | None:
        """Return the slice's standing publication: of its current attempt, over the right set."""
        attempt = self.view.attempts[index]
        published = self.published.get((index, attempt))
        if published is None or not self.view.may_count(index, attempt, published.set_id):
            return None
        return published if self._is_over_signed(index, published) else None

    def _is_over_signed(self, index: int, published: SliceDone) -> bool:
        """Return True if the owner says that it has summed what those who give to it have signed.

        After a restart a dead contributor's word is missing; what it signed stood in FREEZE's way
        then, so it is not asked for again.
        """
        given = self.view.given_sets[index]
        summed = self.view.givers(index) if given is None else given
        if self.view.cells.count > 1:
            summed = tuple(peer for peer in summed if peer != self.view.owners[index])
        key = (index, summed)
        if key not in self._inputs:
            if not self.signed.keys() >= set(summed):
                return True
            named = {peer: self._signed_root(self.signed[peer], index) for peer in summed}
            self._inputs[key] = inputs_of(named)
        return self._inputs[key] == published.inputs

    def differences(self, index: int) -> list[tuple[int, int]]:
        """Pairs of slices of one range whose owners name the same sum differently, as far as what
        they have published stands."""
        pieces = self.view.cells.pieces(index)
        if len(pieces) == 1:
            return []
        published = [self.current(piece) for piece in pieces]
        found = differences([None if one is None else one.sums for one in published])
        return [(pieces[one], pieces[other]) for one, other in found]

    def name_of(self, index: int) -> int | None:
        """Return the name of a slice's standing publication, None without one.

        FREEZE names by its content a publication that a contributor has made itself: it stands in a
        later term too, whoever tells of it.
        """
        published = self.current(index)
        if published is not None:
            return published.set_id
        if not self.transfers[index].is_verbatim:
            return None
        signed = self.view.roots.get(self.view.owners[index])
        return content_name(signed.root) if signed is not None else None

    def is_held(self, index: int, among: AbstractSet[PeerId], needed: int) -> bool:
        """Return True if a result stands and each chunk has so many holders among these."""
        chunks = self._chunk_holders(index)
        if chunks is None or any(len(held) < needed for held in chunks):
            return False
        return all(len(held & among) >= needed for held in chunks)

    def is_with(self, index: int, peers: AbstractSet[PeerId]) -> bool:
        """Return True if a result stands and all of these hold every chunk of it."""
        chunks = self._chunk_holders(index)
        return chunks is not None and all(peers <= held for held in chunks)

    def _chunk_holders(self, index: int) -> list[set[PeerId]] | None:
        if self.name_of(index) is None:
            return None
        place = (index, self.view.attempts[index])
        count = num_chunks(self.view.plan, index)
        return [self.holders.get((*place, chunk), set()) for chunk in range(count)]

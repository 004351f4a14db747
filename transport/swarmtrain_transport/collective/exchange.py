"""A peer's side of one op, from PLAN to its outcome, whatever the op's kind.

Each slice is a transfer (`transfers`), and a peer has up to four parts in an op: its `Sender` gives
parts to the owners of slices, a `Reducer` makes the result of a slice that is ours (in cells with a
`Finisher`), a `Publisher` gives away a slice that is all our own, and the `Taker` takes results.
None of them knows kinds.

The machine follows the ledger's view of the op (which the participant folds) and turns frames,
hashes and the passing of time into frames and reports. It never decides what is in the result.
"""

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution, ContributionRefused
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.ahead import Ahead, check_chunk
from swarmtrain_transport.collective.finisher import Finisher
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.collective.publisher import Publisher
from swarmtrain_transport.collective.reducer import Reducer, Reducing
from swarmtrain_transport.collective.rule_inputs import Centre
from swarmtrain_transport.collective.sender import Sender, uninvited_bytes
from swarmtrain_transport.collective.taker import Taker
from swarmtrain_transport.collective.withheld import Withheld
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import OpView, num_chunks, set_id, slice_root
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    made_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED, content_name, transfers_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import Table, entered
from swarmtrain_transport.wire.frames import (
    Frame,
    FrameKind,
    Ranges,
    pack_credit,
    pack_flags,
    unpack_credit,
    unpack_flags,
)
from swarmtrain_transport.wire.messages import (
    Gauged,
    Got,
    Hashes,
    Have,
    Roots,
    SliceDone,
    Withdraw,
    each_of,
)
from swarmtrain_transport.wire.records import Sign


class Giving(enum.Enum):
    """Progress of our own contribution."""

    NOTHING = enum.auto()
    """We give nothing to this op."""
    ENCODING = enum.auto()
    SIGNED = enum.auto()
    """All of it is encoded, and our name is under it."""
    WITHDRAWN = enum.auto()
    CLOSED = enum.auto()
    """The op has an outcome."""


_NEXT: Table[Giving] = {
    Giving.NOTHING: {Giving.CLOSED},
    Giving.ENCODING: {Giving.SIGNED, Giving.WITHDRAWN, Giving.CLOSED},
    Giving.SIGNED: {Giving.CLOSED},
    Giving.WITHDRAWN: {Giving.CLOSED},
}


class Exchange:
    """One peer in one op.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes as records are folded.
        run_tag: fence of the run.
        arithmetic: exact chunk arithmetic.
        contribution: own values, or None for a receiver.
        blobs: store of results, which serves them.
        fetcher: shared with catch-up and sync, so that windows hold per peer.
        now_s: the time.
        sign: signs with our own key.
        local: facts of our link, with a counter of frames that change nothing.
        commits: committed ops, by whose result the plan's rule may begin.
        ahead: frames that came and went before the op, None for nothing.

    Attributes:
        sender: gives parts to owners; None if we give none (any more).
        giving: progress of our contribution.
    """

    def __init__(
        self,
        me: PeerId,
        view: OpView,
        run_tag: int,
        arithmetic: Arithmetic,
        contribution: Contribution | None,
        blobs: Blobs,
        fetcher: Fetcher,
        now_s: float,
        sign: Sign,
        local: LocalStats,
        commits: Mapping[int, OpView],
        ahead: Ahead | None = None,
    ) -> None:
        self.view = view
        self._me, self._run_tag, self._sign, self._local = me, run_tag, sign, local
        self._arithmetic, self._blobs = arithmetic, blobs
        self._ignored = local.ignored
        begins_from = commits.get(view.plan.centre)
        self._centre = None if begins_from is None else Centre(begins_from, blobs)
        order = [member.peer for member in view.plan.members]
        rank = order.index(me)
        self._others = order[rank + 1 :] + order[:rank]
        self._near = view.cells.near(me, self._others)

        transfers = transfers_of(view.plan)
        mine = [one for one in transfers if me in one.givers]
        self._movable = [one.index for one in transfers if one.movable]
        self._foreign = {one.index for one in transfers if me not in (*one.givers, *one.takers)}
        private = [one for one in transfers if one.is_verbatim and one.takers == (me,)]
        self._partner = private[0].givers[0] if private else None
        """Return the peer that gives a slice to nobody but us: it may have begun before the op."""
        self._partners_chunks: set[int] = set()
        here, gone = ahead.taken(view, self._partner) if ahead is not None else ({}, set())

        self._taker = Taker(me, view, transfers, blobs, fetcher, arithmetic, now_s, here)
        self._reducers: dict[int, Reducer] = {}
        self._finishers: dict[int, Finisher] = {}
        self._passed_s: dict[tuple[int, int, int, int, int], float] = {}
        self._relayed: set[tuple[int, int, int]] = set()
        self.sender: Sender | None = None
        self._publisher: Publisher | None = None
        if contribution is None or not mine:
            self.giving = Giving.NOTHING
        elif mine[0].is_verbatim:
            self.giving = Giving.ENCODING
            self._publisher = Publisher(view, mine[0], contribution, blobs, gone)
        else:
            self.giving = Giving.ENCODING
            # Not a method of ours: in a circle with us a whole vector would wait for the collector.
            self.sender = Sender(
                me, view, contribution, run_tag, lambda owner: owner in local.waiting,
                retention=blobs.retention, arithmetic=arithmetic, uninvited=uninvited_bytes(view),
            )  # fmt: skip
        is_in_cells = view.cells.count > 1
        self._withheld = Withheld(len(view.plan.slices)) if is_in_cells else None
        self._word: Roots | Withdraw | None = None
        self._own: deque[tuple[Reducer, int]] = deque()
        self._has_more = False
        self._refusals_told: dict[int, int] = {}
        self._received: dict[PeerId, int] = {}
        self._credited: dict[PeerId, int] = {}
        self._heard_s: dict[tuple[int, PeerId], float] = {}
        self._nudge_s = now_s + limits.NUDGE_S
        self._now_s = now_s

    # ---- events

    def decided(self, now_s: float) -> list[PeerAction]:
        """The view has changed: PLAN, REASSIGN, FREEZE or SFREEZE was folded."""
        self._now_s = now_s
        actions: list[PeerAction] = []
        for index in self._movable:
            owner, attempt = self.view.owners[index], self.view.attempts[index]
            reducer = self._reducers.get(index)
            if reducer is not None and (owner, attempt) != (self._me, reducer.attempt):
                self._reducers.pop(index).release()
                if index in self._finishers:
                    self._finishers.pop(index).release()
            if owner == self._me and index not in self._reducers:
                actions += self._begin(index, attempt)
        self._taker.decided()
        if self._publisher is not None:
            self._publisher.decided()
        return actions + self._finish_owned() + self._pump()

    def is_early(self, frame: Frame) -> bool:
        """Return True if a frame of this op is an invitation whose REASSIGN has not come yet."""
        if frame.kind is not FrameKind.RANGES:
            return False
        attempts, index = self.view.attempts, frame.slice_index
        return 0 <= index < len(attempts) and frame.attempt > attempts[index]

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A frame of this op.

        Raises:
            RemoteFault: the peer broke the protocol; what it sent is not used.
        """
        self._now_s = now_s
        kind = frame.kind
        if kind is FrameKind.PART:
            self._taker.flow(now_s)
            return self._on_part(peer, frame)
        if kind is FrameKind.RESULT and frame.slice_index not in self._foreign:
            told = self._told(self._taker.pushed(peer, frame, now_s))
            return told + self._relay(peer, frame)
        if kind is FrameKind.SUM:
            self._taker.flow(now_s)
            return self._on_sum(peer, frame)
        if kind is FrameKind.SUMS:
            return self._on_sums(peer, frame)
        if kind is FrameKind.RANGES and self.sender is not None:
            self.sender.invited(peer, frame, now_s)
            return self._pump()
        if kind is FrameKind.CREDIT and self.sender is not None:
            self.sender.credited(peer, unpack_credit(frame.body))
            return self._pump()
        if kind is FrameKind.AHEAD and peer == self._partner:
            return self._on_ahead(peer, frame)
        self._ignored["stale"] += 1
        return []

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """An owner has published; its chunks can be fetched from anybody who has them."""
        self._now_s = now_s
        told: list[PeerAction] = []
        for news in each_of(message):
            if news.slice_index in self._foreign:
                continue
            told += self._told(self._taker.hashes(news, now_s))
            if self._publisher is not None:
                self._publisher.told(news)
                told += self._pump()
        return told

    def wants(self, digest: bytes) -> bool:
        """Return True if a chunk of a result is missing here."""
        return self._taker.wants(digest)

    def blob_arrived(self, digest: bytes, body: Buffer, now_s: float) -> list[PeerAction]:
        """A wanted blob is here; keep it and report slices that are whole."""
        self._now_s = now_s
        return self._told(self._taker.arrived(digest, body))

    def tick(self, now_s: float) -> list[PeerAction]:
        """Go on with what could not be done at once, invite silent contributors again, and report
        partial slices."""
        self._now_s = now_s
        self._taker.tick(now_s)
        is_pumping = self._has_more or self._publisher is not None
        actions = self._pump() if is_pumping else self._take_own(limits.PUMP_CHUNKS)
        actions += self._say_withheld()
        if now_s < self._nudge_s:
            return actions
        self._nudge_s = now_s + limits.NUDGE_S
        for index, reducer in self._reducers.items():
            for peer in self._missing_from(reducer):
                if now_s >= self._heard_s.get((index, peer), 0.0) + limits.NUDGE_S:
                    actions.append(self._ranges(reducer, peer))
        for finisher in self._finishers.values():
            asked = self._ask_for_sums(finisher)
            if asked and finisher.lacks:
                actions.append(self._got(self._reducers[finisher.slice_index]))
            actions += asked
        if self.sender is not None and self.giving is Giving.ENCODING:
            actions += self._encode_more(self.sender)
        actions += self._told(self._taker.ask_again() + self._taker.reports(again=False))
        return actions + self._pump() if self.sender is not None else actions

    @property
    def next_wakeup_s(self) -> float:
        """Time at which tick() has something to do."""
        publisher = self._publisher
        if self._has_more or self._own or (publisher is not None and publisher.is_busy):
            return self._now_s
        say_s = math.inf if self._withheld is None else self._withheld.due_s
        return min(self._nudge_s, self._taker.next_wakeup_s, say_s)

    def resend(self, now_s: float) -> list[PeerAction]:
        """Return all that the coordinator may have missed (after HELLO)."""
        self._now_s = now_s
        actions: list[PeerAction] = [SendControl(self._word)] if self._word is not None else []
        if self._withheld is not None:
            self._withheld.take()
        for reducer in self._reducers.values():
            actions.append(self._got(reducer, again=True))
            if reducer.done is not None:
                actions.append(SendControl(reducer.done))
        if self._publisher is not None and self._publisher.done is not None:
            actions.append(SendControl(self._publisher.done))
        return actions + self._told(self._taker.reports(again=True))

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        self.giving = entered(Giving.CLOSED, self.giving, _NEXT)
        self._taker.close()
        for reducer in self._reducers.values():
            reducer.release()
        for finisher in self._finishers.values():
            finisher.release()
        if self.sender is not None:
            self.sender.release()
        self._publisher = None

    @property
    def retained_bytes(self) -> int:
        """Parts of others that are kept, wherever they are."""
        retained_bytes = 0
        for reducer in self._reducers.values():  # asked after every event in simulations
            retained_bytes += reducer.retained_bytes
        return retained_bytes

    # ---- what we make of others' parts

    def _begin(self, index: int, attempt: int) -> list[PeerAction]:
        """Become the owner of a slice: most of our own part is taken after the others are invited,
        while nothing waits for the link."""
        retention = self._blobs.retention
        reducer = Reducer(self.view, index, attempt, self._arithmetic, retention, self._centre)
        self._reducers[index] = reducer
        if self.view.cells.count > 1:
            self._finishers[index] = Finisher(
                self.view, index, attempt, self._arithmetic, retention
            )
        if self.sender is not None and self._may_contribute(self._me):
            self._own.extend((reducer, chunk) for chunk in range(len(reducer.places)))
        taken = self._take_own(limits.OWN_AT_ONCE)
        actions: list[PeerAction] = [self._ranges(reducer, p) for p in self._missing_from(reducer)]
        if self._me not in reducer.complete:
            actions += self._progressed(reducer)
        if attempt and index in self._finishers:
            actions += self._ask_for_sums(self._finishers[index])
        return actions + taken

    def _take_own(self, most: int) -> list[PeerAction]:
        """Feed some chunks of our own part to our own reducers."""
        actions: list[PeerAction] = []
        for _ in range(min(most, len(self._own))):
            reducer, chunk = self._own.popleft()
            index = reducer.slice_index
            if self.sender is None or self._reducers.get(index) is not reducer:
                continue
            try:
                part = self.sender.part(index, chunk)
            except ContributionRefused as refused:
                return actions + self._withdraw(refused.reason)
            digest, kept = self.sender.digest(index, chunk), self.sender.kept(index, chunk)
            reducer.accept(self._me, chunk, part, digest, kept=kept)
            if self._me in reducer.complete:
                actions += self._progressed(reducer)
            actions += self._foresee(reducer, chunk) + self._signed(self.sender)
        return actions

    def _on_part(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        reducer = self._reducers.get(frame.slice_index)
        if reducer is None or reducer.attempt != frame.attempt:
            self._ignored["stale"] += 1
            return []
        self._received[peer] = self._received.get(peer, 0) + len(frame.body)
        self._heard_s[(frame.slice_index, peer)] = self._now_s
        before = reducer.complete
        if not reducer.accept(peer, frame.chunk, frame.body, frame.digest):
            self._ignored["repeated"] += 1
        actions = self._extend_credit(peer)
        if reducer.complete != before:
            actions += self._progressed(reducer)
        return actions + self._foresee(reducer, frame.chunk)

    def _foresee(self, reducer: Reducer, chunk: int) -> list[PeerAction]:
        """T3: a chunk that nobody's part is missing of goes to everybody at once, and with the
        last one the slice is published, before FREEZE."""
        if reducer.slice_index in self._finishers:
            return self._foresee_sum(reducer, chunk)
        name = self.view.all_planned_id
        if self.view.result_set_id(reducer.slice_index) != name:
            return []
        data = reducer.early(chunk)
        if data is None:
            return []
        actions: list[PeerAction] = []
        if reducer.phase is Reducing.FORESEEN:  # said first, so that it does not wait behind bulk
            actions += self._made(reducer, tuple(self.view.weights), reducer.early_chunks)
        return actions + self._push(reducer, name, chunk, data, self._others)

    def fault_report(self, slice_index: int) -> list[PeerAction]:
        """GOT with the refusals, after a part was found illegal; nothing if nobody new is refused.

        A member may send us bad frames without end; the coordinator hears of it once.
        """
        reducer = self._reducers.get(slice_index)
        if reducer is None or self._refusals_told.get(slice_index) == len(reducer.refused):
            return []
        return [self._got(reducer)]

    def _extend_credit(self, peer: PeerId) -> list[PeerAction]:
        """Grant more once half of the window is used up."""
        wanted = self._received[peer] + limits.CREDIT_WINDOW_BYTES
        if wanted - self._credited.get(peer, 0) < limits.CREDIT_WINDOW_BYTES // 2:
            return []
        self._credited[peer] = wanted
        body = pack_credit(wanted)
        frame = Frame(FrameKind.CREDIT, self._run_tag, self.view.plan_id, body=body)
        return [SendFrame(peer, frame)]

    def _ranges(self, reducer: Reducer, peer: PeerId) -> PeerAction:
        received = self._received.get(peer, 0)
        self._heard_s[(reducer.slice_index, peer)] = self._now_s  # give it time to answer
        self._credited[peer] = received + limits.CREDIT_WINDOW_BYTES
        ranges = Ranges(self._credited[peer], received, reducer.flags(peer))
        return SendFrame(
            peer,
            Frame(FrameKind.RANGES, self._run_tag, self.view.plan_id, reducer.slice_index,
                  reducer.attempt, body=ranges.pack()),
        )  # fmt: skip

    def _missing_from(self, reducer: Reducer) -> Iterable[PeerId]:
        """Other contributors whose part of the slice is still to come."""
        index = reducer.slice_index
        if self.view.given_sets[index] is not None:
            return []
        done = {*reducer.complete, *reducer.refused, self._me}
        return [p for p in self.view.givers(index) if p not in done and self._may_contribute(p)]

    def _may_contribute(self, peer: PeerId) -> bool:
        return self.view.frozen is None or peer in self.view.frozen

    def _got(self, reducer: Reducer, *, again: bool = False) -> PeerAction:
        self._refusals_told[reducer.slice_index] = len(reducer.refused)
        finisher = self._finishers.get(reducer.slice_index)
        return SendControl(
            Got(self.view.plan_id, reducer.slice_index, reducer.attempt, reducer.received,
                dict(reducer.refused), reducer.measured(again=again),
                finisher.lacks if finisher is not None else ())
        )  # fmt: skip

    def _progressed(self, reducer: Reducer) -> list[PeerAction]:
        """GOT of one more that is complete: in cells only once all are, or else with what others
        have given meanwhile."""
        settled = len(reducer.complete) + len(reducer.refused)
        if self._withheld is None or settled >= len(self.view.givers(reducer.slice_index)):
            return [self._got(reducer)]
        self._withheld.hold_got(reducer.slice_index, self._now_s)
        return []

    def _say_withheld(self) -> list[PeerAction]:
        """Say what was kept back, if it is due."""
        if self._withheld is None or self._now_s < self._withheld.due_s:
            return []
        owned = [self._reducers[i] for i in sorted(self._withheld.owned) if i in self._reducers]
        haves = self._withheld.take()
        return [*map(self._got, owned), *map(SendControl, haves)]

    def _finish_owned(self) -> list[PeerAction]:
        """T5 for every slice of ours whose contributors are known."""
        actions: list[PeerAction] = []
        for index, reducer in self._reducers.items():
            contributors = self.view.given_sets[index]
            if contributors is None or reducer.phase is Reducing.MADE or reducer.is_blind:
                continue
            if index in self._finishers:
                reducer.finish(contributors)
                actions += self._pass_on(reducer, range(len(reducer.places)))
                continue
            result = reducer.finish(contributors, gauges=self._local.gauged is None)
            if reducer.seen and self._local.gauged is None:
                plan = self.view.plan
                self._local.gauged = Gauged(plan.op, self.view.plan_id, index, reducer.seen)
            if reducer.done is None or reducer.done.set_id != set_id(contributors):
                actions += self._made(reducer, contributors, result)
        for finisher in self._finishers.values():
            actions += self._finish_more(finisher)
        return actions

    def _made(
        self, reducer: Reducer, contributors: tuple[PeerId, ...], chunks: tuple[bytes, ...]
    ) -> list[PeerAction]:
        """Keep and publish a result of these contributors' parts."""
        op = self.view.plan.op
        digests = tuple(self._blobs.keep_result(op, chunk) for chunk in chunks)
        inputs = reducer.inputs(contributors)
        return self._publish(reducer, set_id(contributors), digests, inputs)

    # ---- sums of cells

    def _foresee_sum(self, reducer: Reducer, chunk: int) -> list[PeerAction]:
        """T3 in cells: a sum that nobody's part is missing of goes to the owner of its piece."""
        index = reducer.slice_index
        if not reducer.is_there(chunk):
            return []
        if self.view.given_set_id(index) != set_id(self.view.givers(index)):
            return []
        if reducer.early(chunk) is None:
            return []
        return self._pass_on(reducer, [chunk])

    def _pass_on(self, reducer: Reducer, chunks: Iterable[int]) -> list[PeerAction]:
        """Give sums of our cell to the owners of their pieces, each once; of our own piece also to
        who keeps it."""
        name, actions = self.view.given_set_id(reducer.slice_index), list[PeerAction]()
        if name is None:
            return []
        for number in chunks:
            (piece, chunk), data = reducer.places[number], reducer.sum_of(number)
            key = self._passing(piece, chunk, name)
            if data is None or key in self._passed_s:
                continue
            self._passed_s[key] = self._now_s
            actions.append(self._sum(piece, chunk, name, data))
            if piece == reducer.slice_index:
                finisher = self._finishers[piece]
                finisher.take((piece, self.view.cells.cell_of(self._me)), chunk, name, data)
                actions += self._finish_more(finisher)
        return actions

    def _passing(self, piece: int, chunk: int, name: int) -> tuple[int, int, int, int, int]:
        """Return what a sum of ours is known by: a new owner is sent it again."""
        taker = self.view.cells.taker(self.view.cells.cell_of(self._me), piece)
        return taker, self.view.attempts[taker], piece, chunk, name

    def _sum(self, piece: int, chunk: int, name: int, data: Buffer) -> PeerAction:
        attempt, cells = self.view.attempts[piece], self.view.cells
        frame = Frame(
            FrameKind.SUM, self._run_tag, self.view.plan_id, piece, attempt, chunk, name, data
        )
        return SendFrame(self.view.owners[cells.taker(cells.cell_of(self._me), piece)], frame)

    def sums_of(self, index: int, chunk: int) -> dict[int, tuple[tuple[bytes, ...], Buffer]]:
        """Sums of a chunk of a slice that we have made or were sent, by cell: with the hashes of
        all chunks, and the sum itself."""
        found = {}
        for finisher in self._finishers.values():
            for source in finisher.sources:
                if source[0] == index and (hashes := finisher.hashes_of(source)):
                    found[source[1]] = hashes, finisher.sum_of(source, chunk)
        cell = self.view.cells.cell_of(self._me)
        reducer = self._reducers.get(self.view.cells.owned(cell, index))
        hashes = None if reducer is None or not self._finishers else reducer.hashes_to(index)
        if reducer is not None and hashes:
            data = reducer.sum_of(reducer.places.index((index, chunk)))
            if data is not None:
                found[cell] = hashes, data
        return found

    def _on_sum(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        """A sum of another cell, from the peer that owns the range there."""
        view, index, cell = self.view, frame.slice_index, self.view.cells.cell_of(peer)
        is_known = index < len(view.owners) and view.attempts[index] == frame.attempt
        finisher = self._finishers.get(view.cells.taker(cell, index)) if is_known else None
        if finisher is None or view.owners[view.cells.owned(cell, index)] != peer:
            self._ignored["stale"] += 1
            return []
        if not finisher.take((index, cell), frame.chunk, frame.set_id, frame.body, frame.digest):
            self._ignored["repeated"] += 1
            return []
        return self._finish_more(finisher)

    def _finish_more(self, finisher: Finisher) -> list[PeerAction]:
        """Make, keep and push what all cells have given; publish it once it is whole."""
        made, actions = finisher.make(), list[PeerAction]()
        reducer, given, name = self._reducers[finisher.slice_index], finisher.given, finisher.name
        is_due = reducer.done is None or reducer.done.set_id != name
        if (
            is_due
            and finisher.is_whole
            and given is not None
            and name is not None
            and (set(given) <= reducer.received.keys())
            and (sums := self._named_sums(finisher, reducer)) is not None
        ):
            chunks = [finisher.result[chunk] for chunk in sorted(finisher.result)]
            op = self.view.plan.op
            digests = tuple(self._blobs.keep_result(op, chunk) for chunk in chunks)
            actions += self._publish(reducer, name, digests, reducer.inputs(given), sums)
        if name is not None and name == self.view.all_planned_id:
            to = self._hearers(finisher.slice_index)
            for chunk, data in made:
                actions += self._push(reducer, name, chunk, data, to)
        return actions

    def _named_sums(self, finisher: Finisher, reducer: Reducer) -> tuple[bytes, ...] | None:
        """Roots of the sums that a mean is made of, and of those that we have given, or keep in
        the place of our own (`cell_sums`); None while one is not here."""
        *used, kept = map(finisher.hashes_of, finisher.sources)
        pieces, own = self.view.cells.pieces(reducer.slice_index), reducer.slice_index
        given = [kept if piece == own else reducer.hashes_to(piece) for piece in pieces]
        known = [hashes for hashes in (*used, *given) if hashes is not None]
        return tuple(map(root_over, known)) if len(known) == 2 * self.view.cells.count else None

    def _hearers(self, index: int) -> list[PeerId]:
        """Peers to whom the owner of a slice pushes it: its cell, and an owner in each other."""
        view = self.view
        relays = {view.owners[piece] for piece in view.cells.pieces(index)}
        hearers = relays.union(self._near)
        return [peer for peer in self._others if peer in hearers]

    def _relay(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        """Pass what another cell's owner has pushed on to our own cell, if that is ours to do."""
        view, index = self.view, frame.slice_index
        if view.cells.count == 1 or not 0 <= index < len(view.owners):
            return []
        cell, key = view.cells.cell_of(self._me), (index, frame.attempt, frame.chunk)
        is_ours = view.owners[view.cells.owned(cell, index)] == self._me
        is_owner = view.owners[index] == peer and view.cells.cell_of(peer) != cell
        if not is_ours or not is_owner or key in self._relayed:
            return []
        if not view.may_count(index, frame.attempt, frame.set_id):
            return []
        self._relayed.add(key)
        return [SendFrame(one, frame) for one in self._near]

    def _ask_for_sums(self, finisher: Finisher) -> list[PeerAction]:
        """Ask the owners in other cells for sums that should have come."""
        view, actions = self.view, list[PeerAction]()
        for source in finisher.sources:
            index, cell = source
            place, held = view.cells.owned(cell, index), finisher.missing(source)
            name = view.given_set_id(place)
            if held and name is not None and view.owners[place] != self._me:
                frame = Frame(
                    FrameKind.SUMS, self._run_tag, view.plan_id, index, view.attempts[index], 0,
                    name, pack_flags(held),
                )  # fmt: skip
                actions.append(SendFrame(view.owners[place], frame))
        return actions

    def _on_sums(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        """Sums of our cell have not come where they should: those that were lost go again, each
        once in a while, whoever asks how often."""
        view, index = self.view, frame.slice_index
        if not 0 <= index < len(view.owners) or view.cells.count == 1:
            raise RemoteFault("member", f"SUMS of slice {index} is not planned")
        cell = view.cells.cell_of(self._me)
        taker = view.owners[view.cells.taker(cell, index)]
        if (taker, view.attempts[index]) != (peer, frame.attempt):
            self._ignored["stale"] += 1
            return []
        place = view.cells.owned(cell, index)
        reducer = self._reducers.get(place)
        held = unpack_flags(frame.body, num_chunks(view.plan, index))
        if reducer is None or frame.set_id != view.given_set_id(place):
            return []
        actions: list[PeerAction] = []
        for number, (piece, chunk) in enumerate(reducer.places):
            data = None if piece != index or held[chunk] else reducer.sum_of(number)
            key = self._passing(piece, chunk, frame.set_id)
            if data is None or self._now_s < self._passed_s.get(key, -math.inf) + limits.NUDGE_S:
                continue
            self._passed_s[key] = self._now_s
            actions.append(self._sum(piece, chunk, frame.set_id, data))
        return actions

    # ---- what we publish

    def _publish(
        self, made: Reducer | Publisher, name: int, digests: tuple[bytes, ...], inputs: bytes,
        sums: tuple[bytes, ...] = (),
    ) -> list[PeerAction]:  # fmt: skip
        """Serve a slice by its hashes, and say so with our name under it."""
        self._blobs.keep_result(self.view.plan.op, b"".join(digests))
        place = made.slice_index, made.attempt
        signed = made_of(inputs, sums)
        signature = self._sign(
            result_payload(self.view.plan_hash, *place, slice_root(digests), signed)
        )
        made.done = SliceDone(self.view.plan_id, *place, name, digests, inputs, signature, sums)
        return [SendControl(made.done)]

    def _push(
        self, made: Reducer | Publisher, name: int, chunk: int, data: Buffer, to: Iterable[PeerId]
    ) -> list[PeerAction]:
        """A chunk that we have published, or will, to those who take it."""
        frame = Frame(
            FrameKind.RESULT, self._run_tag, self.view.plan_id, made.slice_index, made.attempt,
            chunk, name, data,
        )  # fmt: skip
        return [SendFrame(peer, frame) for peer in to]

    # ---- what we give

    def _pump(self) -> list[PeerAction]:
        """A little of what we give: encoded, sent or pushed."""
        try:
            if self._publisher is not None:
                return self._give_whole(self._publisher)
            if self.sender is None:
                return []
            sent = [SendFrame(peer, frame) for peer, frame in self.sender.pump(self._now_s)]
            self._has_more = len(sent) >= limits.PUMP_CHUNKS
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)
        return sent + self._signed(self.sender)

    def _give_whole(self, publisher: Publisher) -> list[PeerAction]:
        """A slice that is all our own: encoded first, then pushed to who takes it."""
        if publisher.done is None:
            digests = publisher.encode()
            if digests is None:
                return []
            self.giving = entered(Giving.SIGNED, self.giving, _NEXT)
            name = content_name(slice_root(digests))
            return self._publish(publisher, name, digests, NOTHING_SUMMED)
        actions: list[PeerAction] = []
        to = [peer for peer in self._others if peer in publisher.takers]
        for chunk, data in publisher.push():
            actions += self._push(publisher, publisher.done.set_id, chunk, data, to)
        return actions

    def _signed(self, sender: Sender) -> list[PeerAction]:
        """Once all is encoded: what it is, with our name under it. It leaves beside the last
        parts, so that nobody waits for it."""
        slice_roots = sender.slice_roots if self.giving is Giving.ENCODING else None
        if slice_roots is None:
            return []
        self.giving = entered(Giving.SIGNED, self.giving, _NEXT)
        payload = contribution_payload(self.view.plan_hash, root_over(slice_roots))
        self._word = Roots(self.view.plan_id, slice_roots, self._sign(payload), sender.norms)
        return [SendControl(self._word)]

    def _encode_more(self, sender: Sender) -> list[PeerAction]:
        try:
            sender.encode_more()
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)
        return []

    def _withdraw(self, reason: str) -> list[PeerAction]:
        self.giving = entered(Giving.WITHDRAWN, self.giving, _NEXT)
        self.sender = self._publisher = None
        self._has_more = False
        self._own.clear()
        self._word = Withdraw(self.view.plan_id, reason)
        return [SendControl(self._word)]

    # ---- what we take

    def _on_ahead(self, partner: PeerId, frame: Frame) -> list[PeerAction]:
        """A chunk that was sent before PLAN, and was overtaken by it."""
        index = self.view.owners.index(partner)
        check_chunk(self.view.plan, self.view.plan.slices[index].stop, frame)
        if frame.chunk in self._partners_chunks:
            self._ignored["repeated"] += 1
            return []
        self._partners_chunks.add(frame.chunk)
        digest = frame.digest or content_hash(frame.body)
        return self._told(self._taker.ahead(index, frame.body, digest))

    def _told(self, reports: list[Have]) -> list[PeerAction]:
        if self._withheld is None:
            return [*map(SendControl, reports), *self._taker.take_faults()]
        self._withheld.hold(reports, self._now_s)
        return [*self._say_withheld(), *self._taker.take_faults()]

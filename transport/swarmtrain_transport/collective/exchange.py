"""A peer's side of one op, from PLAN to its outcome: contributor, owner and receiver at once.

It follows the ledger's view of the op (which the participant folds) and turns frames, hashes and
the passing of time into frames and reports. It never decides what is in the result.
"""

from collections import Counter, deque
from collections.abc import Iterable

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution, ContributionRefused
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.centre import Centre
from swarmtrain_transport.collective.gathering import Gather
from swarmtrain_transport.collective.local import LocalStats
from swarmtrain_transport.collective.ownership import SliceOwner
from swarmtrain_transport.collective.scatter import Scatter
from swarmtrain_transport.ledger.fold import OpView, num_chunks, set_id, slice_root
from swarmtrain_transport.ledger.signed import contribution_payload, result_payload, root_over
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, pack_credit, unpack_credit
from swarmtrain_transport.wire.messages import Gauged, Got, Hashes, Have, Roots, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Sign


class Exchange:
    """One peer in one op.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes as records are folded.
        run_tag: fence of the run.
        arithmetic: exact chunk arithmetic.
        contribution: own values, or None for a receiver.
        blobs: where results are kept and served from.
        fetcher: shared with catch-up and sync, so that windows hold per peer.
        now_s: the time.
        sign: signs with our own key.
        ignored: where parts are counted that change nothing: ``stale`` ones of another attempt,
            ``repeated`` ones.
        stats: what the shell knows of our link.
        centre: what the plan's rule begins from, None for zero.
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
        ignored: Counter[str],
        stats: LocalStats | None = None,
        centre: Centre | None = None,
    ) -> None:
        self.view = view
        self.scatter: Scatter | None = None
        self._me = me
        self._run_tag = run_tag
        self._arithmetic = arithmetic
        self._blobs = blobs
        self._gather = Gather(me, view, blobs, fetcher, arithmetic, now_s)
        order = [member.peer for member in view.plan.members]
        rank = order.index(me)
        self._others = order[rank + 1 :] + order[:rank]
        self._owned: dict[int, SliceOwner] = {}
        self._published: dict[int, SliceDone] = {}
        self._refusals_told: dict[int, int] = {}
        self._withdrawn = ""
        self._received: dict[PeerId, int] = {}
        self._credited: dict[PeerId, int] = {}
        self._heard_s: dict[tuple[int, PeerId], float] = {}
        self._nudge_s = now_s + limits.NUDGE_S
        self._own: deque[tuple[SliceOwner, int]] = deque()
        self._has_more = False
        self._now_s = now_s
        self._sign, self._ignored, self._centre = sign, ignored, centre
        self._roots: Roots | None = None
        self._encode_more_s = now_s + limits.NUDGE_S
        self._stats = told = stats or LocalStats()
        if contribution is not None and view.weights.get(me):
            # Not a method of ours: in a circle with us a whole vector would wait for the collector.
            self.scatter = Scatter(
                me, view, contribution, run_tag, lambda owner: owner in told.waiting,
                retention=blobs.retention, arithmetic=arithmetic,
            )  # fmt: skip

    # ---- events

    def decided(self, now_s: float) -> list[PeerAction]:
        """The view has changed: PLAN, REASSIGN, FREEZE or SFREEZE was folded."""
        self._now_s = now_s
        actions: list[PeerAction] = []
        for index, owner in enumerate(self.view.owners):
            attempt = self.view.attempts[index]
            owned = self._owned.get(index)
            if owned is not None and (owner, attempt) != (self._me, owned.attempt):
                self._owned.pop(index).release()
            if owner == self._me and index not in self._owned:
                actions += self._begin(index, attempt)
        self._gather.decided()
        return actions + self._finish_owned() + self._pump()

    def is_early(self, frame: Frame) -> bool:
        """Whether a frame is of another plan, or an invitation whose REASSIGN has not come yet."""
        attempts, index = self.view.attempts, frame.slice_index
        is_later = 0 <= index < len(attempts) and frame.attempt > attempts[index]
        invites = frame.kind is FrameKind.RANGES
        return frame.plan_id != self.view.plan_id or (invites and is_later)

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A PART, RESULT, CREDIT or RANGES of this op.

        Raises:
            RemoteFault: the peer broke the protocol; what it sent is not used.
        """
        self._now_s = now_s
        if frame.kind is FrameKind.PART:
            self._gather.flow(now_s)
            return self._on_part(peer, frame)
        if frame.kind is FrameKind.RESULT:
            return self._told(self._gather.pushed(peer, frame, now_s))
        if self.scatter is not None:
            if frame.kind is FrameKind.RANGES:
                self.scatter.invited(peer, frame, now_s)
            else:
                self.scatter.credited(peer, unpack_credit(frame.body))
        return self._pump()

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """An owner has published; its chunks can be fetched from anybody who has them."""
        self._now_s = now_s
        return self._told(self._gather.hashes(message, now_s))

    def blob_arrived(self, digest: bytes, body: Buffer, now_s: float) -> list[PeerAction]:
        """A wanted blob is here; keep it and report slices that are whole."""
        self._now_s = now_s
        return self._told(self._gather.arrived(digest, body))

    def _told(self, reports: list[Have]) -> list[PeerAction]:
        return [*_controls(reports), *self._gather.take_faults()]

    def tick(self, now_s: float) -> list[PeerAction]:
        """Encode what could not be at once, invite silent contributors again, and report partial
        slices."""
        self._now_s = now_s
        self._gather.tick(now_s)
        actions = self._pump() if self._has_more else self._take_own(limits.PUMP_CHUNKS)
        if now_s < self._nudge_s:
            return actions
        self._nudge_s = now_s + limits.NUDGE_S
        for index, owned in self._owned.items():
            for peer in self._missing_from(owned):
                if now_s >= self._heard_s.get((index, peer), 0.0) + limits.NUDGE_S:
                    actions.append(self._ranges(owned, peer))
        if self.scatter and self._roots is None and now_s >= self._encode_more_s:
            actions += self._encode_more(self.scatter)
        return actions + _controls(self._gather.reports(again=False)) + self._pump()

    @property
    def next_wakeup_s(self) -> float:
        """When tick() has something to do."""
        if self._has_more or self._own:
            return self._now_s
        return min(self._nudge_s, self._gather.next_wakeup_s)

    def resend(self, now_s: float) -> list[PeerAction]:
        """Everything that the coordinator may have missed (after HELLO)."""
        self._now_s = now_s
        actions: list[PeerAction] = []
        if self._withdrawn:
            actions += self._withdraw(self._withdrawn)
        if self._roots is not None:
            actions.append(SendControl(self._roots))
        for owned in self._owned.values():
            actions.append(self._got(owned, again=True))
            if owned.slice_index in self._published:
                actions.append(self._done(owned))
        return actions + _controls(self._gather.reports(again=True))

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        self._gather.close()
        for owned in self._owned.values():
            owned.release()
        if self.scatter is not None:
            self.scatter.release()

    @property
    def retained_bytes(self) -> int:
        """Parts of others that are kept, wherever they are."""
        return sum(owned.retained_bytes for owned in self._owned.values())

    # ---- owner

    def _begin(self, index: int, attempt: int) -> list[PeerAction]:
        """Become the owner of a slice: most of our own part is taken after the others are invited,
        while nothing waits for the link."""
        retention = self._blobs.retention
        owned = SliceOwner(self.view, index, attempt, self._arithmetic, retention, self._centre)
        self._owned[index] = owned
        self._published.pop(index, None)
        if self.scatter is not None and self._may_contribute(self._me):
            self._own.extend((owned, chunk) for chunk in range(num_chunks(self.view.plan, index)))
        taken = self._take_own(limits.OWN_AT_ONCE)
        actions: list[PeerAction] = [self._ranges(owned, p) for p in self._missing_from(owned)]
        if self._me not in owned.complete:
            actions.append(self._got(owned))
        return actions + taken

    def _take_own(self, most: int) -> list[PeerAction]:
        """Some chunks of our own part."""
        actions: list[PeerAction] = []
        for _ in range(min(most, len(self._own))):
            owned, chunk = self._own.popleft()
            if self.scatter is None or self._owned.get(owned.slice_index) is not owned:
                continue
            try:
                part = self.scatter.part(owned.slice_index, chunk)
            except ContributionRefused as refused:
                return actions + self._withdraw(refused.reason)
            digest = self.scatter.digest(owned.slice_index, chunk)
            kept = self.scatter.kept(owned.slice_index, chunk)
            owned.accept(self._me, chunk, part, digest, kept=kept)
            if self._me in owned.complete:
                actions.append(self._got(owned))
            actions += self._push_early(owned, chunk) + self._signed(self.scatter)
        return actions

    def _on_part(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        owned = self._owned.get(frame.slice_index)
        if owned is None or owned.attempt != frame.attempt:
            self._ignored["stale"] += 1
            return []
        self._received[peer] = self._received.get(peer, 0) + len(frame.body)
        self._heard_s[(frame.slice_index, peer)] = self._now_s
        before = owned.complete
        if not owned.accept(peer, frame.chunk, frame.body, frame.digest):
            self._ignored["repeated"] += 1
        actions = self._extend_credit(peer, owned)
        if owned.complete != before:
            actions.append(self._got(owned))
        return actions + self._push_early(owned, frame.chunk)

    def _push_early(self, owned: SliceOwner, chunk: int) -> list[PeerAction]:
        """T3: a chunk that nobody's part is missing of goes to everybody at once, and with the
        last one the slice is published, before FREEZE."""
        if self._may_foresee(owned) and (data := owned.early(chunk)) is not None:
            actions = self._push(owned, chunk, data)
            if owned.is_early_whole:
                actions += self._publish(owned, tuple(self.view.weights), owned.early_chunks)
            return actions
        return []

    def _may_foresee(self, owned: SliceOwner) -> bool:
        return self.view.result_set_id(owned.slice_index) == self.view.all_planned_id

    def _push(self, owned: SliceOwner, chunk: int, data: bytes) -> list[PeerAction]:
        frame = Frame(
            FrameKind.RESULT, self._run_tag, self.view.plan_id, owned.slice_index, owned.attempt,
            chunk, self.view.all_planned_id, data,
        )  # fmt: skip
        return [SendFrame(peer, frame) for peer in self._others]

    def fault_report(self, slice_index: int) -> list[PeerAction]:
        """GOT with the refusals, after a part was found illegal; nothing if nobody new is refused.

        A member may send us bad frames without end; the coordinator hears of it once.
        """
        owned = self._owned.get(slice_index)
        if owned is None or self._refusals_told.get(slice_index) == len(owned.refused):
            return []
        return [self._got(owned)]

    def _extend_credit(self, peer: PeerId, owned: SliceOwner) -> list[PeerAction]:
        """Grant more once half of the window is used up."""
        wanted = self._received[peer] + limits.CREDIT_WINDOW_BYTES
        if wanted - self._credited.get(peer, 0) < limits.CREDIT_WINDOW_BYTES // 2:
            return []
        self._credited[peer] = wanted
        body = pack_credit(wanted)
        frame = Frame(FrameKind.CREDIT, self._run_tag, self.view.plan_id, body=body)
        return [SendFrame(peer, frame)]

    def _ranges(self, owned: SliceOwner, peer: PeerId) -> PeerAction:
        received = self._received.get(peer, 0)
        self._heard_s[(owned.slice_index, peer)] = self._now_s  # give it time to answer
        self._credited[peer] = received + limits.CREDIT_WINDOW_BYTES
        ranges = Ranges(self._credited[peer], received, owned.flags(peer))
        return SendFrame(
            peer,
            Frame(FrameKind.RANGES, self._run_tag, self.view.plan_id, owned.slice_index,
                  owned.attempt, body=ranges.pack()),
        )  # fmt: skip

    def _missing_from(self, owned: SliceOwner) -> Iterable[PeerId]:
        """Other contributors whose part of the slice is still to come."""
        if owned.result is not None or self.view.slice_sets[owned.slice_index] is not None:
            return []
        done = {*owned.complete, *owned.refused, self._me}
        return [p for p in self.view.weights if p not in done and self._may_contribute(p)]

    def _may_contribute(self, peer: PeerId) -> bool:
        return self.view.frozen is None or peer in self.view.frozen

    def _got(self, owned: SliceOwner, *, again: bool = False) -> PeerAction:
        self._refusals_told[owned.slice_index] = len(owned.refused)
        return SendControl(
            Got(self.view.plan_id, owned.slice_index, owned.attempt, owned.received,
                dict(owned.refused), owned.measured(again=again))
        )  # fmt: skip

    def _finish_owned(self) -> list[PeerAction]:
        """T5 for every slice of ours whose contributors are known."""
        actions: list[PeerAction] = []
        for index, owned in self._owned.items():
            contributors = self.view.slice_sets[index]
            if contributors is None or owned.result is not None or owned.is_blind:
                continue
            result = owned.finish(contributors, gauges=self._stats.gauged is None)
            if owned.seen and self._stats.gauged is None:
                plan = self.view.plan
                self._stats.gauged = Gauged(plan.op, self.view.plan_id, index, owned.seen)
            published = self._published.get(index)
            if published is None or published.set_id != set_id(contributors):
                actions += self._publish(owned, contributors, result)
        return actions

    def _publish(
        self, owned: SliceOwner, contributors: tuple[PeerId, ...], chunks: tuple[bytes, ...]
    ) -> list[PeerAction]:
        """Keep the slice's result, serve it by hash, and say so."""
        op = self.view.plan.op
        digests = tuple(self._blobs.keep_result(op, chunk) for chunk in chunks)
        self._blobs.keep_result(op, b"".join(digests))
        inputs, place = owned.inputs(contributors), (owned.slice_index, owned.attempt)
        payload = result_payload(self.view.plan_hash, *place, slice_root(digests), inputs)
        self._published[owned.slice_index] = SliceDone(
            self.view.plan_id, *place, set_id(contributors), digests, inputs, self._sign(payload)
        )
        return [self._done(owned)]

    def _done(self, owned: SliceOwner) -> PeerAction:
        return SendControl(self._published[owned.slice_index])

    # ---- contributor

    def _pump(self) -> list[PeerAction]:
        if self.scatter is None:
            return []
        try:
            sent = [SendFrame(peer, frame) for peer, frame in self.scatter.pump(self._now_s)]
            self._has_more = len(sent) >= limits.PUMP_CHUNKS
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)
        return sent + self._signed(self.scatter)

    def _signed(self, scatter: Scatter) -> list[PeerAction]:
        """Once all is encoded: what it is, with our name under it. It leaves beside the last
        parts, so that nobody waits for it."""
        slice_roots = scatter.slice_roots
        if self._roots is not None or slice_roots is None:
            return []
        payload = contribution_payload(self.view.plan_hash, root_over(slice_roots))
        self._roots = Roots(self.view.plan_id, slice_roots, self._sign(payload), scatter.norms)
        return [SendControl(self._roots)]

    def _encode_more(self, scatter: Scatter) -> list[PeerAction]:
        try:
            scatter.encode_more()
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)
        return []

    def _withdraw(self, reason: str) -> list[PeerAction]:
        self.scatter = self._roots = None
        self._has_more = False
        self._own.clear()
        self._withdrawn = reason
        return [SendControl(Withdraw(self.view.plan_id, reason))]


def _controls(reports: list[Have]) -> list[PeerAction]:
    return [SendControl(have) for have in reports]

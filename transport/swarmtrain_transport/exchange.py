"""A peer's side of one op, from PLAN to its outcome: contributor, owner and receiver at once.

It follows the ledger's view of the op (which the participant folds) and turns frames, hashes and
the passing of time into frames and reports. It never decides what is in the result.
"""

import hashlib
from collections.abc import Iterable

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Contribution, ContributionRefused
from swarmtrain_transport.blobs import Blobs
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.fold import OpView, num_chunks, set_id
from swarmtrain_transport.frames import Frame, FrameKind, Ranges, pack_credit, unpack_credit
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Got, Hashes, Have, SliceDone, Withdraw
from swarmtrain_transport.ownership import SliceOwner
from swarmtrain_transport.scatter import Scatter


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
    ) -> None:
        self.view = view
        self.scatter: Scatter | None = None
        self._me = me
        self._run_tag = run_tag
        self._arithmetic = arithmetic
        self._blobs = blobs
        self._fetcher = fetcher
        self._owned: dict[int, SliceOwner] = {}
        self._hashes: dict[int, Hashes] = {}
        self._reported: dict[int, tuple[bool, ...]] = {}
        self._refusals_told: dict[int, int] = {}
        self._withdrawn = ""
        self._received: dict[PeerId, int] = {}
        self._credited: dict[PeerId, int] = {}
        self._heard_s: dict[tuple[int, PeerId], float] = {}
        self._nudge_s = now_s
        self._now_s = now_s
        if contribution is not None and view.weights.get(me):
            self.scatter = Scatter(me, view, contribution, run_tag)

    # ---- events

    def decided(self, now_s: float) -> list[PeerAction]:
        """The view has changed: PLAN, REASSIGN, FREEZE or SFREEZE was folded."""
        self._now_s = now_s
        actions: list[PeerAction] = []
        for index, owner in enumerate(self.view.owners):
            attempt = self.view.attempts[index]
            owned = self._owned.get(index)
            if owner != self._me:
                self._owned.pop(index, None)
            elif owned is None or owned.attempt != attempt:
                actions += self._begin(index, attempt)
            known = self._hashes.get(index)
            if known is not None and known.attempt != attempt:
                self._fetcher.cancel(known.chunk_hashes)
                del self._hashes[index]
        return actions + self._finish_owned() + self._pump()

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A PART, CREDIT or RANGES of this op.

        Raises:
            RemoteFault: the peer broke the protocol; what it sent is not used.
        """
        self._now_s = now_s
        if frame.kind is FrameKind.PART:
            return self._on_part(peer, frame)
        if self.scatter is not None:
            if frame.kind is FrameKind.RANGES:
                self.scatter.invited(peer, frame, now_s)
            else:
                self.scatter.credited(peer, unpack_credit(frame.body))
        return self._pump()

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """An owner has published; its chunks can be fetched from anybody who has them."""
        self._now_s = now_s
        index = message.slice_index
        if not 0 <= index < len(self.view.owners):
            return []
        if message.attempt != self.view.attempts[index]:
            return []
        if len(message.chunk_hashes) != num_chunks(self.view.plan, index):
            return []
        self._hashes[index] = message
        # Told again, or of another attempt: whatever we reported before, the coordinator may not
        # know it (it has restarted), or it does not count any more.
        self._reported.pop(index, None)
        self._blobs.keep_result(self.view.plan.op, b"".join(message.chunk_hashes))
        sources = self._holders(index)
        for digest in message.chunk_hashes:
            if self._blobs.get(digest) is None:
                self._fetcher.want(digest, sources, spread=False)
        return self._report_have(index)

    def blob_arrived(self, now_s: float) -> list[PeerAction]:
        """Some wanted blob is now in `blobs`; report slices that are whole."""
        self._now_s = now_s
        return [action for index in self._hashes for action in self._report_have(index)]

    def tick(self, now_s: float) -> list[PeerAction]:
        """Invite silent contributors again, and report partial slices."""
        self._now_s = now_s
        if now_s < self._nudge_s:
            return []
        self._nudge_s = now_s + limits.NUDGE_S
        actions: list[PeerAction] = []
        for index, owned in self._owned.items():
            for peer in self._missing_from(owned):
                if now_s >= self._heard_s.get((index, peer), 0.0) + limits.NUDGE_S:
                    actions.append(self._ranges(owned, peer))
        for index in self._hashes:
            actions += self._report_have(index, partial=True)
        return actions + self._pump()

    @property
    def next_wakeup_s(self) -> float:
        """When tick() has something to do."""
        return self._nudge_s

    def resend(self, now_s: float) -> list[PeerAction]:
        """Everything that the coordinator may have missed (after HELLO)."""
        self._now_s = now_s
        self._reported.clear()
        actions: list[PeerAction] = []
        if self._withdrawn:
            actions += self._withdraw(self._withdrawn)
        for owned in self._owned.values():
            actions.append(self._got(owned))
            if owned.result is not None:
                actions.append(self._done(owned))
        for index in self._hashes:
            actions += self._report_have(index, partial=True)
        return actions

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        for known in self._hashes.values():
            self._fetcher.cancel(known.chunk_hashes)

    # ---- owner

    def _begin(self, index: int, attempt: int) -> list[PeerAction]:
        """Become the owner of a slice: take our own part at once, invite the others."""
        owned = SliceOwner(self.view, index, attempt, self._arithmetic)
        self._owned[index] = owned
        actions: list[PeerAction] = []
        if self.scatter is not None and self._may_contribute(self._me):
            actions += self._take_own(owned)
        actions += [self._ranges(owned, peer) for peer in self._missing_from(owned)]
        return [*actions, self._got(owned)]

    def _take_own(self, owned: SliceOwner) -> list[PeerAction]:
        assert self.scatter is not None
        try:
            for chunk in range(num_chunks(self.view.plan, owned.slice_index)):
                owned.accept(self._me, chunk, self.scatter.part(owned.slice_index, chunk))
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)
        return []

    def _on_part(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        owned = self._owned.get(frame.slice_index)
        if owned is None or owned.attempt != frame.attempt:
            return []
        self._received[peer] = self._received.get(peer, 0) + len(frame.body)
        self._heard_s[(frame.slice_index, peer)] = self._now_s
        before = owned.complete
        owned.accept(peer, frame.chunk, frame.body)
        actions = self._extend_credit(peer, owned)
        if owned.complete != before:
            actions.append(self._got(owned))
        return actions

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

    def _got(self, owned: SliceOwner) -> PeerAction:
        self._refusals_told[owned.slice_index] = len(owned.refused)
        return SendControl(
            Got(self.view.plan_id, owned.slice_index, owned.attempt, owned.complete,
                dict(owned.refused))
        )  # fmt: skip

    def _finish_owned(self) -> list[PeerAction]:
        """T5 for every slice of ours whose contributors are known."""
        actions: list[PeerAction] = []
        for index, owned in self._owned.items():
            contributors = self.view.slice_sets[index]
            if contributors is None or owned.result is not None:
                continue
            op = self.view.plan.op
            digests = [self._blobs.keep_result(op, chunk) for chunk in owned.finish(contributors)]
            self._blobs.keep_result(op, b"".join(digests))
            actions.append(self._done(owned))
        return actions

    def _done(self, owned: SliceOwner) -> PeerAction:
        assert owned.result is not None
        hashes = tuple(hashlib.sha256(chunk).digest() for chunk in owned.result)
        name = set_id(owned.contributors)
        return SendControl(
            SliceDone(self.view.plan_id, owned.slice_index, owned.attempt, name, hashes)
        )

    # ---- contributor

    def _pump(self) -> list[PeerAction]:
        if self.scatter is None:
            return []
        try:
            return [SendFrame(peer, frame) for peer, frame in self.scatter.pump(self._now_s)]
        except ContributionRefused as refused:
            return self._withdraw(refused.reason)

    def _withdraw(self, reason: str) -> list[PeerAction]:
        self.scatter = None
        self._withdrawn = reason
        return [SendControl(Withdraw(self.view.plan_id, reason))]

    # ---- receiver

    def _holders(self, index: int) -> list[PeerId]:
        """Who may have a result chunk: its owner first, then the other members."""
        owner = self.view.owners[index]
        others = [member.peer for member in self.view.plan.members]
        return [peer for peer in dict.fromkeys([owner, *others]) if peer != self._me]

    def _report_have(self, index: int, *, partial: bool = False) -> list[PeerAction]:
        known = self._hashes[index]
        flags = tuple(self._blobs.get(digest) is not None for digest in known.chunk_hashes)
        if flags == self._reported.get(index) or not (all(flags) or (partial and any(flags))):
            return []
        self._reported[index] = flags
        return [SendControl(Have(self.view.plan_id, index, known.attempt, known.set_id, flags))]

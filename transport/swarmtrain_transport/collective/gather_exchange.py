"""A peer's side of one gather op: it publishes its own contribution and gets everybody else's.

There is nothing to scatter and nothing to sum. The contribution is encoded chunk by chunk, kept and
served by hash like any result, and signed as a whole. When the coordinator tells of it, which it
does to everybody at once and after the PLAN, its chunks are pushed, so that nobody need ask; what
gets lost, or is too much to be pushed, is asked for of whoever has it (`gathering`).
"""

from collections import Counter

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution, ContributionRefused
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.gathering import Gather
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, slice_root, window_of
from swarmtrain_transport.ledger.gathered import NOTHING_SUMMED, content_name
from swarmtrain_transport.ledger.signed import result_payload
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Sign


class GatherExchange:
    """One peer in one gather op.

    Args:
        me: own id.
        view: the ledger's view of the op; it changes as records are folded.
        run_tag: fence of the run.
        arithmetic: knows which chunks can be decoded.
        contribution: own values, or None for a receiver.
        blobs: where contributions are kept and served from.
        fetcher: shared with catch-up and sync, so that windows hold per peer.
        now_s: the time.
        sign: signs with our own key.
        ignored: where frames are counted that change nothing.

    Attributes:
        scatter: nothing is scattered, so nothing is audited.
        retained_bytes: parts of others that are kept for a sum: there is none.
    """

    scatter = None
    retained_bytes = 0

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
    ) -> None:
        self.view = view
        self._run_tag = run_tag
        self._blobs = blobs
        self._gather = Gather(me, view, blobs, fetcher, arithmetic, now_s)
        self._sign, self._ignored = sign, ignored
        order = [member.peer for member in view.plan.members]
        rank = order.index(me)
        self._others = order[rank + 1 :] + order[:rank]
        is_given = contribution is not None and me in view.weights
        self._contribution = contribution if is_given else None
        self._index = view.owners.index(me) if is_given else -1
        self._digests: list[bytes] = []
        self._done: SliceDone | None = None
        self._withdrawn: Withdraw | None = None
        self._pushed_bytes = 0
        self._to_push: list[int] | None = None
        """Own chunks that are to be pushed, the next one last; None before we may begin."""
        self._nudge_s = now_s + limits.NUDGE_S
        self._now_s = now_s

    # ---- events

    def decided(self, now_s: float) -> list[PeerAction]:
        """The view has changed: PLAN or FREEZE was folded."""
        self._now_s = now_s
        self._gather.decided()
        if self.view.frozen is not None and self._index >= 0 and not self._is_in:
            self._to_push = []
        return self._pump()

    def is_early(self, frame: Frame) -> bool:
        """Whether a frame is of another plan."""
        return frame.plan_id != self.view.plan_id

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A RESULT of this op; whatever else comes is of no use.

        Raises:
            RemoteFault: the peer broke the protocol; what it sent is not used.
        """
        self._now_s = now_s
        if frame.kind is not FrameKind.RESULT:
            self._ignored["stale"] += 1
            return []
        self._gather.flow(now_s)
        return self._told(self._gather.pushed(peer, frame, now_s))

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """A contributor has published; its chunks can be fetched from anybody who has them."""
        self._now_s = now_s
        told = self._told(self._gather.hashes(message, now_s))
        is_ours = self._done is not None and message.set_id == self._done.set_id
        if is_ours and message.slice_index == self._index and self._to_push is None:
            self._to_push = self._unsent()
        return told + self._pump()

    def blob_arrived(self, digest: bytes, body: Buffer, now_s: float) -> list[PeerAction]:
        """A wanted blob is here; keep it and report contributions that are whole."""
        self._now_s = now_s
        return self._told(self._gather.arrived(digest, body))

    def _told(self, reports: list[Have]) -> list[PeerAction]:
        return [*(SendControl(have) for have in reports), *self._gather.take_faults()]

    def tick(self, now_s: float) -> list[PeerAction]:
        """Go on encoding and pushing, ask for what is not pushed, report what is here in part."""
        self._now_s = now_s
        self._gather.tick(now_s)
        actions = self._pump()
        if now_s >= self._nudge_s:
            self._nudge_s = now_s + limits.NUDGE_S
            actions += self._told(self._gather.reports(again=False))
        return actions

    @property
    def next_wakeup_s(self) -> float:
        """When tick() has something to do."""
        if self._is_encoding or self._to_push:
            return self._now_s
        return min(self._nudge_s, self._gather.next_wakeup_s)

    def resend(self, now_s: float) -> list[PeerAction]:
        """Everything that the coordinator may have missed (after HELLO)."""
        self._now_s = now_s
        said = self._withdrawn or self._done
        own: list[PeerAction] = [SendControl(said)] if said is not None else []
        return own + self._told(self._gather.reports(again=True))

    def fault_report(self, slice_index: int) -> list[PeerAction]:
        """Nothing: whose bytes cannot be decoded is held by nobody, and left out for that."""
        return []

    def close(self) -> None:
        """The op has an outcome; what is still missing of it is catch-up's business."""
        self._gather.close()
        self._contribution, self._to_push = None, []

    # ---- contributor

    def _unsent(self) -> list[int]:
        """Own chunks that nobody has yet, the first one last."""
        return list(reversed(range(len(self._digests))))

    @property
    def _is_in(self) -> bool:
        return self.view.slice_sets[self._index] != ()

    @property
    def _is_encoding(self) -> bool:
        return self._contribution is not None and self._done is None

    def _pump(self) -> list[PeerAction]:
        """A little of what is to be done: encoding first, then pushing."""
        if self._is_encoding:
            return self._encode_some()
        if not self._to_push:
            return []
        actions: list[PeerAction] = []
        for _ in range(min(limits.PUMP_CHUNKS, len(self._to_push))):
            actions += self._push(self._to_push.pop())
        if self._pushed_bytes >= limits.GATHER_PUSH_BYTES:
            self._to_push = []
        return actions

    def _encode_some(self) -> list[PeerAction]:
        contribution, plan = self._contribution, self.view.plan
        assert contribution is not None
        count = num_chunks(plan, self._index)
        for chunk in range(len(self._digests), count)[: limits.PUMP_CHUNKS]:
            start, stop = chunk_range(plan, self._index, chunk)
            try:
                data = contribution.encode(start, stop, window_of(plan))
            except ContributionRefused as refused:
                self._contribution = None
                self._withdrawn = Withdraw(self.view.plan_id, refused.reason)
                return [SendControl(self._withdrawn)]
            self._digests.append(self._blobs.keep_result(plan.op, data))
        return [self._publish()] if len(self._digests) == count else []

    def _publish(self) -> PeerAction:
        """Serve it by hash, and say so with our name under it."""
        digests = tuple(self._digests)
        self._blobs.keep_result(self.view.plan.op, b"".join(digests))
        root, place = slice_root(digests), (self._index, 0)
        payload = result_payload(self.view.plan_hash, *place, root, NOTHING_SUMMED)
        self._done = SliceDone(
            self.view.plan_id, *place, content_name(root), digests, NOTHING_SUMMED,
            self._sign(payload),
        )  # fmt: skip
        self._contribution = None
        return SendControl(self._done)

    def _push(self, chunk: int) -> list[PeerAction]:
        """A chunk of ours to everybody else."""
        data = self._blobs.get(self._digests[chunk])
        if self._done is None or data is None:
            return []
        self._pushed_bytes += len(data)
        frame = Frame(
            FrameKind.RESULT, self._run_tag, self.view.plan_id, self._index, 0, chunk,
            self._done.set_id, data,
        )  # fmt: skip
        return [SendFrame(peer, frame) for peer in self._others]

"""A peer's part in audits: it asks when it was drawn, shows what is asked of it, judges proofs.

An audit never delays an op: one chunk at a time is asked for, and while an op is under way only one
per second. Whoever has contributed to the drawn slice keeps that one chunk of what it has sent, and
shows it to the drawn auditor alone, a few times. So an op costs its swarm one chunk per
contributor, one of them auditing.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.actions import KeepProof, PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.audit import (
    Drawn,
    Proof,
    Shown,
    convicted,
    draw,
    is_shown,
    proof_from_bytes,
    right_hash,
    shown_from_bytes,
)
from swarmtrain_transport.blobs import Blobs
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.exchange import Exchange
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.fold import LedgerView, OpView
from swarmtrain_transport.frames import Frame, FrameKind
from swarmtrain_transport.ledger import Commit, Verify, pack_struct
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Accuse, Accused

AUDIT_FRAMES = frozenset({FrameKind.PROVE, FrameKind.EVIDENCE})
"""Frames that `Auditing.heard` takes."""


@dataclass(slots=True)
class _Kept:
    """What we show of one op."""

    drawn: Drawn
    shown: Shown
    given: int = 0


@dataclass(slots=True)
class _Case:
    """An audit of ours that is under way."""

    view: OpView
    drawn: Drawn
    shown: dict[PeerId, Shown] = field(default_factory=dict)
    asked: Counter[PeerId] = field(default_factory=Counter)


class Auditing:
    """One peer's audits.

    Args:
        me: own id.
        view: the ledger's fold.
        blobs: where hash lists of results are, and proofs are served from.
        fetcher: asks for proofs that others have found.
        arithmetic: exact chunk arithmetic.
        verify: checks a signature.

    Attributes:
        counts: how many audits of ours ended ``right``, ``wrong`` or ``unanswered``.
    """

    def __init__(
        self,
        me: PeerId,
        view: LedgerView,
        blobs: Blobs,
        fetcher: Fetcher,
        arithmetic: Arithmetic,
        verify: Verify,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._me = me
        self._view = view
        self._blobs = blobs
        self._fetcher = fetcher
        self._arithmetic = arithmetic
        self._verify = verify
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._case: _Case | None = None
        self._due_s = float("inf")
        self._in_op = False
        self._accusations: list[Accuse] = []
        self._to_judge: OrderedDict[bytes, int] = OrderedDict()

    # ---- events

    def committed(self, exchange: Exchange | None, now_s: float) -> None:
        """COMMIT was folded.

        Args:
            exchange: our part of the op, if we took part in it.
            now_s: the time.
        """
        scatter = exchange.scatter if exchange is not None else None
        if self._case is not None:
            self._end("unanswered")
        view = self._view.op
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None or scatter is None:
            return
        if self._me in drawn.contributors and scatter.slice_roots is not None:
            part = scatter.part(drawn.slice_index, drawn.chunk)
            hashes = scatter.chunk_hashes(drawn.slice_index)
            shown = Shown(scatter.slice_roots, hashes, part)
            self._kept[view.plan_id] = _Kept(drawn, shown)
            while len(self._kept) > limits.AUDIT_OPS_KEPT:
                self._kept.popitem(last=False)
        if drawn.auditor == self._me:
            self._case, self._due_s = _Case(view, drawn), now_s
            if view.plan_id in self._kept:
                self._case.shown[self._me] = self._kept[view.plan_id].shown

    def heard(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A frame of AUDIT_FRAMES.

        Raises:
            RemoteFault: reason ``evidence``: it is not what its sender has signed.
        """
        if frame.kind is FrameKind.PROVE:
            return self._show(peer, frame)
        case = self._case
        if case is None or frame.plan_id != case.view.plan_id or not case.asked[peer]:
            return []
        shown = shown_from_bytes(frame.body)
        if not is_shown(case.view, case.drawn, peer, shown):
            raise RemoteFault("evidence", "what it shows is not what it has signed")
        case.shown[peer] = shown
        self._due_s = now_s + (limits.AUDIT_PAUSE_S if self._in_op else 0.0)
        return []

    def _show(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        kept = self._kept.get(frame.plan_id)
        if kept is None or kept.drawn.auditor != peer or kept.given >= limits.AUDIT_ASKS_MAX:
            return []
        kept.given += 1
        body, drawn = pack_struct(kept.shown), kept.drawn
        answer = Frame(
            FrameKind.EVIDENCE, frame.run_tag, frame.plan_id, drawn.slice_index, 0, drawn.chunk,
            body=body,
        )  # fmt: skip
        return [SendFrame(peer, answer)]

    def accused(self, message: Accused) -> None:
        """An auditor has found a wrong sum, it says: look at it ourselves."""
        view = self._view.commits.get(message.op)
        drawn = draw(view) if view is not None else None
        if drawn is None or self._me in (drawn.auditor, drawn.owner):
            return
        self._to_judge[message.proof_hash] = message.op
        self._fetcher.want(message.proof_hash, [drawn.auditor], spread=False)
        while len(self._to_judge) > limits.AUDIT_OPS_KEPT:
            self._forget(next(iter(self._to_judge)))

    def _forget(self, digest: bytes) -> None:
        del self._to_judge[digest]
        self._fetcher.cancel([digest])

    def judged(self, digest: bytes, data: Buffer) -> list[PeerAction] | None:
        """A wanted blob has come: None if it is no proof of ours to judge.

        Raises:
            RemoteFault: reason ``proof``: it convicts nobody.
        """
        op = self._to_judge.pop(digest, None)
        view = self._view.commits.get(op) if op is not None else None
        if op is None or view is None:
            return None
        convicted(proof_from_bytes(data), view, self._arithmetic, self._verify)
        return self._accuse(op, digest, bytes(data))

    # ---- what falls due

    def due(self, run_tag: int, *, in_op: bool, now_s: float) -> list[PeerAction]:
        """Ask the next contributor for its part, or judge when all are here."""
        self._in_op = in_op
        for digest in list(self._to_judge):
            if self._fetcher.rounds(digest) >= limits.LOST_ROUNDS:  # an accusation without proof
                self._forget(digest)
        case = self._case
        if case is None or now_s < self._due_s:
            return []
        missing = [peer for peer in case.drawn.contributors if peer not in case.shown]
        if missing:
            peer = min(missing, key=lambda one: case.asked[one])
            if case.asked[peer] >= limits.AUDIT_ASKS_MAX:
                self._end("unanswered")
                return []
            case.asked[peer] += 1
            self._due_s = now_s + limits.AUDIT_RETRY_S
            drawn = case.drawn
            frame = Frame(
                FrameKind.PROVE, run_tag, case.view.plan_id, drawn.slice_index, 0, drawn.chunk
            )
            return [SendFrame(peer, frame)]
        return self._judge(case, now_s)

    @property
    def is_idle(self) -> bool:
        """Whether no audit of ours is under way."""
        return self._case is None

    def wakeups(self) -> list[float]:
        """When `due` has something to do."""
        return [self._due_s] if self._case is not None else []

    def resend(self) -> list[PeerAction]:
        """After HELLO: the coordinator may have missed what we have found."""
        return [SendControl(accusation) for accusation in self._accusations]

    def _judge(self, case: _Case, now_s: float) -> list[PeerAction]:
        commit, drawn = case.view.outcome, case.drawn
        assert isinstance(commit, Commit)
        listed = self._blobs.result(commit.slices[drawn.slice_index].root)
        if listed is None:  # the result is still on its way to us
            self._due_s = now_s + limits.AUDIT_RETRY_S
            return []
        hashes = _split(listed)
        try:
            right = right_hash(case.view, drawn, case.shown, self._arithmetic)
        except RemoteFault:
            self._end("unanswered")  # a part that nobody may add proves nothing
            return []
        if right == hashes[drawn.chunk]:
            self._end("right")
            return []
        self._end("wrong")
        op = case.view.plan.op
        proof = Proof(op, drawn.slice_index, drawn.chunk, hashes, case.shown)
        try:
            convicted(proof, case.view, self._arithmetic, self._verify)
        except RemoteFault:
            return []  # the owner has signed other inputs: that convicts nobody
        data = proof.to_bytes()
        return self._accuse(op, self._blobs.keep_result(op, data), data)

    def _accuse(self, op: int, digest: bytes, data: bytes) -> list[PeerAction]:
        accusation = Accuse(op, digest)
        self._accusations = [*self._accusations, accusation][-limits.AUDIT_OPS_KEPT :]
        return [KeepProof(op, data), SendControl(accusation)]

    def _end(self, how: str) -> None:
        self.counts[how] += 1
        self._case, self._due_s = None, float("inf")


def _split(listed: Buffer) -> tuple[bytes, ...]:
    """The hashes of a slice's chunks from the blob that is named by their root."""
    data, size = bytes(listed), limits.HASH_BYTES
    return tuple(data[at : at + size] for at in range(0, len(data), size))

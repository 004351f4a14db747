"""A peer's part in audits: it asks when it was drawn, shows its own bytes when asked, judges
proofs.

An audit never delays an op: one chunk at a time is asked for, and while an op is under way only one
per second. Each contributor to the drawn slice keeps that one chunk of what it has sent, and shows
it to the drawn auditor alone, a few times. So an op costs its swarm one chunk per contributor, one
of them auditing. A judge fetches the charge and then its parts, and looks at each when it comes: an
accuser cannot make it hold what nobody has signed.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.actions import KeepProof, PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.audit import (
    Charge,
    Drawn,
    Proof,
    Shown,
    charge_from_bytes,
    check_part,
    convicted,
    draw,
    is_shown,
    right_hash,
    shown_from_bytes,
)
from swarmtrain_transport.ledger.fold import GroupView, OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Accuse, Accused
from swarmtrain_transport.wire.records import Commit, Verify

AUDIT_FRAMES = frozenset({FrameKind.PROVE, FrameKind.EVIDENCE})
"""Frames that `Auditing.heard` takes."""


@dataclass(slots=True)
class _Kept:
    """Our own bytes of one op, as we show them."""

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


@dataclass(slots=True)
class _Trial:
    """An accusation of somebody else's that we judge.

    Attributes:
        op: op whose sum is said to be wrong.
        wanted: hashes of what was asked for and is not here: the charge, then the parts.
    """

    op: int
    wanted: set[bytes]
    charge: Charge | None = None
    shown: dict[PeerId, Shown] = field(default_factory=dict)


class Auditing:
    """One peer's audits.

    Args:
        me: own id.
        view: the ledger's fold.
        blobs: hash lists of results, and the blobs that proofs are served from.
        fetcher: asks for proofs that others have found.
        arithmetic: exact chunk arithmetic.
        verify: checks a signature.

    Attributes:
        counts: number of our audits that ended ``right``, ``wrong`` or ``unanswered``.
    """

    def __init__(
        self,
        me: PeerId,
        view: GroupView,
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
        self._trials: OrderedDict[bytes, _Trial] = OrderedDict()

    # ---- events

    def committed(self, op: int, exchange: Exchange | None, now_s: float) -> None:
        """COMMIT was folded.

        Args:
            op: number of the op.
            exchange: our part of the op, if we took part in it.
            now_s: the time.
        """
        sender = exchange.sender if exchange is not None else None
        if self._case is not None:
            self._end("unanswered")
        view = self._view.commits.get(op)
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None or sender is None:
            return
        if self._me in drawn.contributors and sender.slice_roots is not None:
            part = bytes(sender.part(drawn.slice_index, drawn.chunk))
            hashes = sender.chunk_hashes(drawn.slice_index)
            shown = Shown(sender.slice_roots, hashes, part)
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
        body, drawn = kept.shown.to_bytes(), kept.drawn
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
        if message.proof_hash in self._trials:
            return
        self._trials[message.proof_hash] = _Trial(message.op, {message.proof_hash})
        self._fetcher.want(message.proof_hash, [drawn.auditor], spread=False)
        while len(self._trials) > limits.AUDIT_OPS_KEPT:
            self._forget(next(iter(self._trials)))

    def rewound(self, op: int) -> None:
        """Later ops were cancelled: said of those that come again under their numbers, what was
        found of them would convict whoever is drawn then."""
        self._accusations = [one for one in self._accusations if one.op <= op]
        for name in [name for name, one in self._trials.items() if one.op > op]:
            self._forget(name)
        if self._case is not None and self._case.view.plan.op > op:
            self._end("unanswered")

    def _forget(self, name: bytes) -> None:
        self._fetcher.cancel(self._trials.pop(name).wanted)

    def judged(self, digest: bytes, data: Buffer) -> list[PeerAction] | None:
        """A wanted blob has come: None if it is nothing that we judge by.

        Raises:
            RemoteFault: reason ``proof``: it convicts nobody.
        """
        name = next((name for name, one in self._trials.items() if digest in one.wanted), None)
        if name is None:
            return None
        trial = self._trials[name]
        trial.wanted.discard(digest)
        view = self._view.commits.get(trial.op)
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None:  # a REWIND has cancelled the op
            self._forget(name)
            return []
        try:
            charge = self._learnt(trial, view, drawn, digest, data)
            if trial.wanted:
                return []
            proof = Proof.of(charge, trial.shown)
            convicted(proof, view, self._arithmetic, self._verify)
        except RemoteFault:
            self._forget(name)
            raise
        self._forget(name)
        return self._accuse(name, proof)

    def _learnt(
        self, trial: _Trial, view: OpView, drawn: Drawn, digest: bytes, data: Buffer
    ) -> Charge:
        """Take an answer: the charge, or one of its parts."""
        if trial.charge is None:
            trial.charge = charge_from_bytes(data, drawn)
            trial.wanted = set(trial.charge.shown.values())
            for name in sorted(trial.wanted):
                self._fetcher.want(name, [drawn.auditor], spread=False)
            return trial.charge
        try:
            shown = shown_from_bytes(data)
            check_part(view, drawn, shown, self._arithmetic)
        except RemoteFault as fault:
            raise RemoteFault("proof", f"a part is illegal: {fault.reason}") from fault
        for peer, named in trial.charge.shown.items():
            if named == digest:
                if not is_shown(view, drawn, peer, shown):
                    raise RemoteFault("proof", "a part is not what its contributor has signed")
                trial.shown[peer] = shown
        return trial.charge

    # ---- what falls due

    def due(self, run_tag: int, *, in_op: bool, now_s: float) -> list[PeerAction]:
        """Ask the next contributor for its part, or judge when all are here."""
        self._in_op = in_op
        for name, trial in list(self._trials.items()):
            if any(self._fetcher.rounds(one) >= limits.LOST_ROUNDS for one in trial.wanted):
                self._forget(name)  # an accusation without proof
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
        """True if no audit of ours is under way."""
        return self._case is None

    def wakeups(self) -> list[float]:
        """List when `due` has something to do."""
        return [self._due_s] if self._case is not None else []

    def resend(self) -> list[PeerAction]:
        """After HELLO: the coordinator may have missed what we have found."""
        return [SendControl(accusation) for accusation in self._accusations]

    def _judge(self, case: _Case, now_s: float) -> list[PeerAction]:
        commit, drawn = case.view.outcome, case.drawn
        assert isinstance(commit, Commit)
        listed = self._blobs.get(commit.slices[drawn.slice_index].root)
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
        place = (op, drawn.slice_index, drawn.chunk)
        proof = Proof(*place, hashes, case.shown, self._view.group)
        try:
            convicted(proof, case.view, self._arithmetic, self._verify)
        except RemoteFault:
            return []  # the owner has signed other inputs: that convicts nobody
        for shown in case.shown.values():
            self._blobs.keep_result(op, shown.to_bytes())
        return self._accuse(self._blobs.keep_result(op, proof.charge.to_bytes()), proof)

    def _accuse(self, charge_hash: bytes, proof: Proof) -> list[PeerAction]:
        accusation = Accuse(proof.op, charge_hash, self._view.group)
        self._accusations = [*self._accusations, accusation][-limits.AUDIT_OPS_KEPT :]
        return [KeepProof(proof.op, proof.to_bytes(), self._view.group), SendControl(accusation)]

    def _end(self, how: str) -> None:
        self.counts[how] += 1
        self._case, self._due_s = None, float("inf")


def _split(listed: Buffer) -> tuple[bytes, ...]:
    """The hashes of a slice's chunks from the blob that is named by their root."""
    data, size = bytes(listed), limits.HASH_BYTES
    return tuple(data[at : at + size] for at in range(0, len(data), size))

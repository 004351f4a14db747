"""A peer's part in audits: it asks when it was drawn, shows its own bytes when asked, judges
proofs.

An audit never delays an op: one chunk at a time is asked for, and while an op is under way only one
per second. Each contributor to the drawn slice keeps that one chunk of what it has sent, and shows
it to the drawn auditor alone, a few times. So an op costs its swarm one chunk per contributor, one
of them auditing. A judge fetches the charge and then its parts, and looks at each when it comes: an
accuser cannot make it hold what nobody has signed.

In cells owners likewise keep the sums of the drawn chunk that are looked at. The auditor asks for
each of them first the owner that is not looked at itself. Sheets that did not come are asked of the
cell's members.
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
    Passed,
    Proof,
    Shown,
    Signed,
    charge_from_bytes,
    check_made,
    check_part,
    convicted,
    draw,
    holders_of,
    is_passed,
    is_shown,
    is_wrong,
    may_judge,
    number_of,
    passed_from_bytes,
    sheets_of,
    shown_from_bytes,
    signed_in,
)
from swarmtrain_transport.ledger.fold import GroupView, OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Accuse, Accused, Sheet
from swarmtrain_transport.wire.records import Commit, Verify

_PART = 0
"""Wishes of PROVE, in the place of an attempt: a part, or the sum of the cell before this
number."""

AUDIT_FRAMES = frozenset({FrameKind.PROVE, FrameKind.EVIDENCE})
"""Frames that `Auditing.heard` takes."""


@dataclass(slots=True)
class _Kept:
    """Our own bytes of one op, as we show them: by what PROVE asks for."""

    drawn: Drawn
    shown: dict[int, Shown | Passed]
    given: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Case:
    """An audit of ours that is under way. `made` is what the owner in cells has signed, as we were
    told it; `looked` is how often that or the sheets were not here."""

    view: OpView
    drawn: Drawn
    made: tuple[bytes, ...] = ()
    shown: dict[PeerId, Shown] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    asked: Counter[tuple[PeerId, int]] = field(default_factory=Counter)
    looked: int = 0

    @property
    def missing(self) -> list[tuple[PeerId, int]]:
        """Peers that may still be asked, and for what."""
        parts = [(peer, _PART) for peer in self.drawn.contributors if peer not in self.shown]
        cells = [cell for cell in self.drawn.passed if cell not in self.passed]
        asked = [(holders_of(self.view, self.drawn, cell), cell + 1) for cell in cells]
        return parts + [(peers[rank], what) for rank in (0, 1) for peers, what in asked]


@dataclass(slots=True)
class _Trial:
    """An accusation of somebody else's that we judge.

    Attributes:
        op: op whose sum is said to be wrong.
        wanted: hashes of what was asked for and is not here: the charge and the sheets, then the
            parts.
    """

    op: int
    wanted: set[bytes]
    charge: Charge | None = None
    shown: dict[PeerId, Shown] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    rest: dict[bytes, bytes] = field(default_factory=dict)
    """Blobs that have come before they could be looked at: the charge, for want of sheets."""


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
        if self._case is not None:
            self._end("unanswered")
        view = self._view.commits.get(op)
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None or exchange is None:
            return
        kept = _Kept(drawn, self._own(view, drawn, exchange))
        if kept.shown:
            self._kept[view.plan_id] = kept
            while len(self._kept) > limits.AUDIT_OPS_KEPT:
                self._kept.popitem(last=False)
        if drawn.auditor == self._me and exchange.sender is not None:
            self._case, self._due_s = _Case(view, drawn), now_s
            if isinstance(mine := kept.shown.get(_PART), Shown):
                self._case.shown[self._me] = mine

    def _own(self, view: OpView, drawn: Drawn, exchange: Exchange) -> dict[int, Shown | Passed]:
        """Evidence that we may be asked for: our part, or as an owner sums."""
        found: dict[int, Shown | Passed] = {}
        sender = exchange.sender
        if sender is not None and self._me in drawn.contributors and sender.slice_roots is not None:
            part = bytes(sender.part(drawn.place, number_of(view, drawn)))
            found[_PART] = Shown(sender.slice_roots, sender.chunk_hashes(drawn.place), part)
        sums = exchange.sums_of(drawn.slice_index, drawn.chunk)
        mine = [cell for cell in drawn.passed if cell in sums]
        return found | {cell + 1: Passed(sums[cell][0], bytes(sums[cell][1])) for cell in mine}

    def heard(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A frame of AUDIT_FRAMES.

        Raises:
            RemoteFault: reason ``evidence``: it is not what its sender has signed.
        """
        if frame.kind is FrameKind.PROVE:
            return self._show(peer, frame)
        case = self._case
        what = frame.attempt
        if case is None or frame.plan_id != case.view.plan_id or not case.asked[peer, what]:
            return []
        if what == _PART:
            shown, signed = shown_from_bytes(frame.body), self._signed(case.view, case.drawn)
            if signed is None or not is_shown(case.view, case.drawn, peer, shown, signed.roots):
                raise RemoteFault("evidence", "what it shows is not what it has signed")
            case.shown[peer] = shown
        else:
            passed = passed_from_bytes(frame.body)
            if not is_passed(case.view, case.drawn, what - 1, passed, case.made):
                raise RemoteFault("evidence", "the sum that it shows is not the one that was named")
            case.passed[what - 1] = passed
        self._due_s = now_s + (limits.AUDIT_PAUSE_S if self._in_op else 0.0)
        return []

    def sheet_came(self, message: Sheet, now_s: float) -> None:
        """A sheet is here: an audit may have waited for it, or for what comes with it."""
        case = self._case
        if case is None:
            return
        if message.op == case.view.plan.op and not case.made:
            case.made = message.made
        if case.looked:
            self._due_s = min(self._due_s, now_s)

    def _show(self, peer: PeerId, frame: Frame) -> list[PeerAction]:
        kept, what = self._kept.get(frame.plan_id), frame.attempt
        if kept is None or kept.drawn.auditor != peer or what not in kept.shown:
            return []
        if kept.given[what] >= limits.AUDIT_ASKS_MAX:
            return []
        kept.given[what] += 1
        body, drawn = kept.shown[what].to_bytes(), kept.drawn
        answer = Frame(
            FrameKind.EVIDENCE, frame.run_tag, frame.plan_id, drawn.slice_index, what, drawn.chunk,
            body=body,
        )  # fmt: skip
        return [SendFrame(peer, answer)]

    def _signed(self, view: OpView, drawn: Drawn) -> Signed | None:
        """Return what contributors and owner have signed; None while a sheet is not here, or is
        of another shape than the ledger says."""
        sheets = [self._blobs.get(digest) for digest in sheets_of(view, drawn)]
        try:
            return signed_in(view, drawn, [sheet for sheet in sheets if sheet is not None])
        except RemoteFault:
            return None

    def accused(self, message: Accused) -> None:
        """An auditor has found a wrong sum, it says: look at it ourselves."""
        view = self._view.commits.get(message.op)
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None or self._me in (drawn.auditor, drawn.owner):
            return
        if message.proof_hash in self._trials or not may_judge(view, drawn, self._me):
            return
        lacked = {digest for digest in sheets_of(view, drawn) if digest not in self._blobs}
        self._trials[message.proof_hash] = _Trial(message.op, {message.proof_hash, *lacked})
        for digest in sorted({message.proof_hash, *lacked}):
            self._fetcher.want(digest, [drawn.auditor], spread=False)
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
        case = self._case
        if case is not None and digest in sheets_of(case.view, case.drawn):
            self._blobs.keep_result(case.view.plan.op, data, digest)
        name = next((name for name, one in self._trials.items() if digest in one.wanted), None)
        if name is None:
            return None if case is None or digest not in self._blobs else []
        trial = self._trials[name]
        trial.wanted.discard(digest)
        view = self._view.commits.get(trial.op)
        drawn = draw(view) if view is not None else None
        if view is None or drawn is None:  # a REWIND has cancelled the op
            self._forget(name)
            return []
        if digest in sheets_of(view, drawn):
            self._blobs.keep_result(trial.op, data, digest)
        else:
            trial.rest[digest] = bytes(data)
        try:
            charge = self._learnt(trial, view, drawn)
            if charge is None or trial.wanted:
                return []
            sheets = tuple(bytes(self._blobs.get(one) or b"") for one in sheets_of(view, drawn))
            proof = Proof.of(charge, trial.shown, trial.passed, sheets)
            convicted(proof, view, self._arithmetic, self._verify)
        except RemoteFault:
            self._forget(name)
            raise
        self._forget(name)
        return self._accuse(name, proof)

    def _learnt(self, trial: _Trial, view: OpView, drawn: Drawn) -> Charge | None:
        """Look at what has come, once the sheets are here: the charge, then its parts. None before
        that."""
        signed = self._signed(view, drawn)
        if signed is None:
            if trial.wanted.isdisjoint(sheets_of(view, drawn)):
                raise RemoteFault("proof", "the sheets of its op are none")
            return None
        while trial.rest:
            digest, data = trial.rest.popitem()
            if trial.charge is None:
                trial.charge = charge_from_bytes(data, drawn)
                if view.cells.count > 1:
                    check_made(view, drawn, trial.charge.made, signed.by_owner, self._verify)
                named = {*trial.charge.shown.values(), *trial.charge.passed.values()}
                trial.wanted |= named
                for name in sorted(named):
                    self._fetcher.want(name, [drawn.auditor], spread=False)
            else:
                self._look_at(trial.charge, trial, view, drawn, digest, data, signed)
        return trial.charge

    def _look_at(
        self, charge: Charge, trial: _Trial, view: OpView, drawn: Drawn, digest: bytes,
        data: bytes, signed: Signed,
    ) -> None:  # fmt: skip
        """Take one part, or one cell's sum, of a charge."""
        try:
            for cell in [cell for cell, named in charge.passed.items() if named == digest]:
                passed = passed_from_bytes(data)
                if not is_passed(view, drawn, cell, passed, charge.made):
                    raise RemoteFault("sum", "a sum is not what the owner has named")
                trial.passed[cell] = passed
            givers = [peer for peer, named in charge.shown.items() if named == digest]
            shown = shown_from_bytes(data) if givers else None
            if shown is not None:
                check_part(view, drawn, shown, self._arithmetic)
        except RemoteFault as fault:
            raise RemoteFault("proof", f"a part is illegal: {fault.reason}") from fault
        for peer in givers:
            assert shown is not None  # somebody has given it
            if not is_shown(view, drawn, peer, shown, signed.roots):
                raise RemoteFault("proof", "a part is not what its contributor has signed")
            trial.shown[peer] = shown

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
        if not self._is_told(case):
            self._await_sheets(case, now_s)
            return []
        if case.missing:
            peer, what = least = min(case.missing, key=lambda one: case.asked[one])
            if case.asked[least] >= limits.AUDIT_ASKS_MAX:
                self._end("unanswered")
                return []
            case.asked[least] += 1
            self._due_s = now_s + limits.AUDIT_RETRY_S
            drawn = case.drawn
            frame = Frame(
                FrameKind.PROVE, run_tag, case.view.plan_id, drawn.slice_index, what, drawn.chunk
            )
            return [SendFrame(peer, frame)]
        return self._judge(case, now_s)

    def _is_told(self, case: _Case) -> bool:
        """Return True if it is here what contributors and owner have signed."""
        signed = self._signed(case.view, case.drawn)
        if signed is None or case.view.cells.count == 1 or case.asked:
            return signed is not None
        try:
            check_made(case.view, case.drawn, case.made, signed.by_owner, self._verify)
        except RemoteFault:
            return False  # it has not come, or is of something else
        return True

    def _await_sheets(self, case: _Case, now_s: float) -> None:
        """They come after COMMIT; if not, others of the cell have them, or nobody."""
        if case.looked >= limits.AUDIT_ASKS_MAX:
            self._end("unanswered")
            return
        near = [peer for peer in case.view.boots if may_judge(case.view, case.drawn, peer)]
        for digest in sheets_of(case.view, case.drawn) if case.looked else ():
            if digest not in self._blobs:
                self._fetcher.want(digest, [one for one in near if one != self._me], spread=True)
        case.looked += 1
        self._due_s = now_s + limits.AUDIT_RETRY_S

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
        if listed is None and not drawn.is_of_sum:  # the result is still on its way to us
            self._due_s = now_s + limits.AUDIT_RETRY_S
            return []
        hashes = () if listed is None or drawn.is_of_sum else _split(listed)
        try:
            wrong = is_wrong(case.view, drawn, hashes, case.shown, case.passed, self._arithmetic)
        except RemoteFault:
            self._end("unanswered")  # a part that nobody may add proves nothing
            return []
        if not wrong:
            self._end("right")
            return []
        self._end("wrong")
        op = case.view.plan.op
        place = (op, drawn.slice_index, drawn.chunk)
        sheets = tuple(bytes(self._blobs.get(one) or b"") for one in sheets_of(case.view, drawn))
        group = self._view.group
        proof = Proof(*place, hashes, case.shown, group, case.passed, case.made, sheets)
        try:
            convicted(proof, case.view, self._arithmetic, self._verify)
        except RemoteFault:
            return []  # the owner has signed other inputs: that convicts nobody
        shown = (one.to_bytes() for one in case.shown.values())
        passed = (one.to_bytes() for one in case.passed.values())
        for data in (*shown, *passed):
            self._blobs.keep_result(op, data)
        return self._accuse(self._blobs.keep_result(op, proof.charge.to_bytes()), proof)

    def _accuse(self, charge_hash: bytes, proof: Proof) -> list[PeerAction]:
        accusation = Accuse(proof.op, charge_hash, self._view.group)
        self._accusations = [*self._accusations, accusation][-limits.AUDIT_OPS_KEPT :]
        return [KeepProof(proof.op, proof.to_bytes(), self._view.group), SendControl(accusation)]

    def _end(self, how: str) -> None:
        self.counts[how] += 1
        if self._case is not None:
            self._fetcher.cancel(sheets_of(self._case.view, self._case.drawn))
        self._case, self._due_s = None, float("inf")


def _split(listed: Buffer) -> tuple[bytes, ...]:
    """The hashes of a slice's chunks from the blob that is named by their root."""
    data, size = bytes(listed), limits.HASH_BYTES
    return tuple(data[at : at + size] for at in range(0, len(data), size))

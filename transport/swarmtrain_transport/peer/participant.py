"""A peer as one machine: it follows the ledger, takes part in ops, catches up, serves others.

Events in, actions out. The same machine runs in production, in the simulator and in replay.
"""

from collections.abc import Callable, Iterable, Sequence

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.blocks.serving import Serving
from swarmtrain_transport.collective.ahead import Ahead
from swarmtrain_transport.collective.auditing import Auditing
from swarmtrain_transport.collective.early import EarlyFrames
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local import Card, LocalStats, hello_of, progress_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.catchup import CatchUp
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.peer.progression import Progression
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.peer.trade import TRADED, Trade
from swarmtrain_transport.wire import messages as say
from swarmtrain_transport.wire.batching import batches
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    Commit,
    Gone,
    Join,
    Plan,
    Record,
    Rewind,
    Run,
    Sign,
    Skip,
    Verify,
)

Actions = tuple[do.PeerAction, ...]


class Participant:
    """The whole peer, sans IO.

    Args:
        card: who and where we are.
        arithmetic: exact chunk arithmetic on our codec.
        sign: signs with our own key.
        verify: signature check.
        shuffle: order of equally good donors (randomness is an argument).
        records: our own copy of the ledger from an earlier life.
        now_s: the time.
        retention: keeps parts and results; None keeps them in memory.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self,
        card: Card,
        arithmetic: Arithmetic,
        sign: Sign,
        verify: Verify,
        shuffle: Callable[[Sequence[PeerId]], list[PeerId]],
        records: Iterable[Record],
        now_s: float,
        retention: Retention | None = None,
    ) -> None:
        self.card = card
        self._copy = LedgerCopy(verify, records)
        self.view, self.ledger = self._copy.view, self._copy.ledger
        group = self.view.first
        self.blobs = Blobs(retention)
        self.stats = LocalStats()
        self.exchange: Exchange | None = None
        self._arithmetic, self._sign, self._fetcher = arithmetic, sign, Fetcher(shuffle)
        self._states = StateFinder(card.peer_id, group, self._fetcher, shuffle)
        self.audits = Auditing(card.peer_id, group, self.blobs, self._fetcher, arithmetic, verify)
        self._ahead = Ahead(card, group, self.blobs.retention, self.stats)
        self._trade = Trade(
            self._fetcher, self._states, Serving(self.blobs), self.audits, self.blobs, self._ahead
        )
        self._place = Progression(
            card, group, CatchUp(card.peer_id, group, self.blobs, self._fetcher),
            self._states,
        )  # fmt: skip
        self._early = EarlyFrames(self.stats.ignored, self._ahead)
        self._welcome_index: int | None = None
        self._connected = self._is_sorted = False
        self._progress_s = self._now_s = now_s
        self._unsaid_bytes = 0

    # ---- what the shell asks

    def hello(self) -> say.Hello:
        """HELLO as of now; the door signs it."""
        place = self._place
        return hello_of(self.card, self.stats, self.ledger, place.applied_op, place.state_root)

    @property
    def next_wakeup_s(self) -> float:
        """When tick() has something to do."""
        wakeups = [self._progress_s, *([] if self._trade.is_idle else self._trade.wakeups())]
        if self.exchange is not None:
            wakeups.append(self.exchange.next_wakeup_s)
        return min(wakeups)

    @property
    def applied_op(self) -> int:
        """Newest op whose outcome is in place here, -1 without a state."""
        return self._place.applied_op

    @property
    def state_root(self) -> bytes:
        """Root of that state, b"" without one."""
        return self._place.state_root

    @property
    def sync_progress(self) -> tuple[int, int]:
        """State chunks downloaded and in all, (0, 0) when not syncing."""
        return self._states.progress

    # ---- events from our own side

    def start(self, now_s: float) -> Actions:
        """First event: admit everybody whom our own ledger copy knows."""
        self._now_s = now_s
        return tuple(self._allow(peer) for peer in self.view.roster if peer != self.card.peer_id)

    def keep_result(self, op: int, slices: Sequence[Sequence[Buffer]]) -> None:
        """Results that the shell kept on disk in an earlier life: chunks per slice."""
        for chunks in slices:
            digests = [self.blobs.keep_result(op, chunk) for chunk in chunks]
            self.blobs.keep_result(op, b"".join(digests))

    def keep_state(self, manifest: bytes, chunks: Iterable[bytes]) -> None:
        """Part of a state that the shell kept on disk when an earlier life began to fetch it."""
        self._states.resume(manifest, chunks)

    def attach(
        self,
        op: int,
        manifest: StateManifest,
        chunks: tuple[Buffer, ...],
        snapshot_rounds: int,
        now_s: float,
        fragments: tuple[int, ...] = (),
    ) -> Actions:
        """The trainer is built; this is its state, op 0's offer or a restored op, and fragments.

        It counts only if the ledger attests its root; otherwise the state is downloaded."""
        self._now_s = now_s
        self._states.attach(op, manifest, chunks, snapshot_rounds, fragments)
        return self._go_on([])

    def ready(
        self, op: int, contribution: Contribution, samples: int, now_s: float, pace: float = 0.0
    ) -> Actions:
        """READY for `op`; too late for it, this is ignored: its outcome is on its way already."""
        self._now_s = now_s
        taken = self._place.ready(op, contribution, samples, pace or None)
        return tuple(self._place.reports(connected=self._connected)) if taken else ()

    def give_ahead(self, op: int, contribution: Contribution, start: int, now_s: float) -> Actions:
        """What we will give to a pair op is known from value `start` on, before its inner steps:
        it goes to the expected partner. The contribution is asked for no other values."""
        self._now_s = now_s
        self._ahead.give(op, contribution, start)
        return self._go_on([])

    def applied(
        self, op: int, manifest: StateManifest, chunks: tuple[Buffer, ...] | None, now_s: float
    ) -> Actions:
        """The trainer has done what LoadState or ApplyResult asked.

        Args:
            op: which op's state is now in place.
            manifest: describes that state; its root goes to the coordinator.
            chunks: its bytes, if they may be pinned as a snapshot (they must not change).
            now_s: the time.
        """
        self._now_s = now_s
        self._place.applied(op, manifest.root)
        if chunks is not None and self.applied_op == op:  # neither void by now nor another's
            self.blobs.pin_snapshot(op, manifest, chunks, now_s)
        return self._go_on(self._place.reports(connected=self._connected))

    def leave(self, reason: str, now_s: float) -> Actions:
        """Go on purpose."""
        self._now_s = now_s
        self._ahead.stop()
        return (do.SendControl(self._progress()), do.SendControl(say.Leave(reason)))

    # ---- events from the control lane

    def control(self, message: say.CoordinatorMessage, now_s: float) -> Actions:
        """A message of the coordinator.

        Raises:
            RemoteFault: it contradicts the ledger or breaks the protocol.
        """
        self._now_s = now_s
        actions: list[do.PeerAction] = []
        match message:
            case say.Welcome():
                self._connected = True
                self._states.reconnected()
                self._welcome_index = message.now_index
                if not len(self.ledger) and message.now_index < 0:
                    raise RemoteFault("welcome", "the coordinator has no ledger")
                actions += self._resend()
            case say.Records():
                actions += self._on_records(message)
            case say.Hashes():
                if self.exchange is not None and self.exchange.view.plan_id == message.plan_id:
                    actions += self.exchange.hashes(message, now_s)
            case say.Accused():
                self.audits.accused(message)
            case say.Finished():
                self._place.finished_op, self._place.final_loss = message.op, message.loss
            case say.Tell():
                # Its disk was restored from a backup; what it decided since is with us.
                newer = next(batches(self.ledger.since(message.first_index)), [])
                told = tuple(record.to_bytes() for record in newer)
                return (do.SendControl(say.History(message.first_index, told)),)
            case say.Refused():
                self._place.is_halted = True
                return (do.Halt(message.code, message.text),)
            case _:
                raise RemoteFault("type", f"{type(message).__name__} is not expected here")
        if not self._is_sorted and self._is_informed():
            # An earlier life may have missed a REWIND, or died of it.
            self._is_sorted = True
            actions += self._forget_after(self.view.first.last_op)
        return self._go_on(actions)

    def control_down(self, now_s: float) -> Actions:
        """The control connection closed; ops in progress go on as far as they can."""
        self._now_s = now_s
        self._connected = False
        return ()

    def _on_records(self, message: say.Records) -> list[do.PeerAction]:
        actions: list[do.PeerAction] = []
        roster_changed = False
        for raw in message.records:
            self._unsaid_bytes += len(raw)
            taken = self._copy.take(raw)
            if taken is None:
                continue
            record, body = taken
            actions.append(do.RecordAccepted(record))
            actions += self._follow(body)
            roster_changed = roster_changed or isinstance(body, Join | Gone)
        if roster_changed:
            self._states.roster_changed()
        if roster_changed or self._unsaid_bytes >= limits.RECORDS_BATCH_BYTES // 2:
            actions.append(do.SendControl(self._progress()))
        return actions

    def _follow(self, body: AnyBody) -> list[do.PeerAction]:
        """What one new record means for us."""
        if isinstance(body, Join):
            return [] if body.peer == self.card.peer_id else [self._allow(body.peer)]
        if isinstance(body, Plan):
            return self._begin(body)
        if isinstance(body, Gone):
            self._trade.forget(body.peer)
            return [] if body.peer == self.card.peer_id else [do.RevokePeer(body.peer)]
        if isinstance(body, Commit | Skip):
            if isinstance(body, Commit):
                self.audits.committed(self.exchange, self._now_s)
            if self.exchange is not None:
                self.exchange.close()
            self.exchange = None
            if isinstance(body, Skip):
                self.blobs.forget(body.op)
        elif isinstance(body, Attest):
            self._place.attested()
        elif isinstance(body, Rewind):
            self._place.rewound()
            return self._forget_after(body.op)
        elif self.exchange is not None and not isinstance(body, Run):
            return self._decided(self.exchange)
        return []

    def _forget_after(self, op: int) -> list[do.PeerAction]:
        """What is kept of later ops was cancelled, and would take the place of what is to come."""
        self.blobs.rewound(op)
        return [do.Rewound(op)]

    def _begin(self, plan: Plan) -> list[do.PeerAction]:
        """PLAN: take part if it names this very process."""
        view = self.view.first.op
        assert view is not None
        if view.boots.get(self.card.peer_id) != self.card.boot:
            return []
        pending = self._place.pending
        mine = pending.contribution if pending is not None and pending.op == plan.op else None
        if self.exchange is not None:
            self.exchange.close()
        self.exchange = Exchange(
            self.card.peer_id, view, self.view.run_tag, self._arithmetic, mine, self.blobs,
            self._fetcher, self._now_s, self._sign, self.stats, self.view.first.commits,
            self._ahead,
        )  # fmt: skip
        return self._decided(self.exchange)

    def _decided(self, exchange: Exchange) -> list[do.PeerAction]:
        actions = exchange.decided(self._now_s)  # some frames may have been here before
        for peer, frame in self._early.take(exchange.view.plan_id):
            actions += self.frame(peer, frame, self._now_s)
        return actions

    # ---- events from the data lane

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> Actions:
        """A frame of an authenticated peer. What breaks the protocol is not used but named."""
        self._now_s = now_s
        try:
            return self._on_frame(peer, frame)
        except RemoteFault as fault:
            exchange = self.exchange
            told = exchange.fault_report(frame.slice_index) if exchange is not None else []
            return (do.PeerFault(peer, fault.reason, fault.detail), *told)

    def _on_frame(self, peer: PeerId, frame: Frame) -> Actions:
        # Without a ledger yet we cannot know the run; we hold nothing of it either.
        if self.view.run_tag not in (0, frame.run_tag):
            raise RemoteFault("run", "a frame of another run")
        if frame.kind is FrameKind.BLOB:
            next_op = self._place.applied_op + 1
            found = self._trade.arrived(frame.body, self.exchange, next_op, self._now_s)
            return self._go_on(found)
        if frame.kind in TRADED:
            answer = self._trade.heard(peer, frame, self._now_s)
            return tuple(answer) if answer else self._go_on([])
        if frame.kind in (FrameKind.PART, FrameKind.RESULT):
            self._fetcher.heard(peer, self._now_s)
        if self.exchange is None or self.exchange.is_early(frame):
            self._early.keep(peer, frame)
            return ()
        actions = self.exchange.frame(peer, frame, self._now_s)
        return self._go_on(actions) if frame.kind is FrameKind.RESULT else tuple(actions)

    # ---- time, and what falls due after any event

    def tick(self, now_s: float) -> Actions:
        """The time that `next_wakeup_s` asked for has come."""
        self._now_s = now_s
        actions: list[do.PeerAction] = []
        if now_s >= self._progress_s:
            self._progress_s = now_s + limits.PROGRESS_S
            if self._connected:
                actions.append(do.SendControl(self._progress()))
        if self.exchange is not None:
            actions += self.exchange.tick(now_s)
        return self._go_on(actions)

    def _go_on(self, actions: list[do.PeerAction]) -> Actions:
        """Sync, apply what is due, and ask for what is missing."""
        if self._states.is_attached and self._is_informed():
            actions += self._place.advance(connected=self._connected)
        if self.view.run_tag and not self._trade.is_idle:
            # After all else: what joiners asked for, as far as our own exchange leaves room.
            actions += self._trade.due(
                self.view.run_tag, self.stats.up_bytes_per_s,
                in_op=self.exchange is not None, now_s=self._now_s,
            )  # fmt: skip
        return tuple(actions)

    def _is_informed(self) -> bool:
        """Whether we have every record that WELCOME promised."""
        return self._welcome_index is not None and self.ledger.head_index >= self._welcome_index

    # ---- small parts

    def _allow(self, peer: PeerId) -> do.AllowPeer:
        return do.AllowPeer(self.view.address_of(peer))

    def _resend(self) -> list[do.PeerAction]:
        """After HELLO: whatever the coordinator may have missed. All of it is idempotent."""
        actions = [do.SendControl(self._progress()), *self._place.reports(connected=True)]
        actions += self.audits.resend()
        if self.exchange is not None:
            actions += self.exchange.resend(self._now_s)
        return actions

    def _progress(self) -> say.Progress:
        self._unsaid_bytes = 0
        phase = "syncing" if self._states.is_syncing else self.stats.phase
        return progress_of(self.stats, self.ledger.head_index, phase, self._place.replayed_ops)

"""The coordinator as one machine: it lets peers in, plans ops, logs every decision, relays.

It holds the ledger, a line per peer and the op in progress. Whatever it decides is first an
`Append` action; records reach the peers only after it, in index order, each from its own index
on. A restart replays the ledger and hears HELLO again: nothing is decided twice (T14). It never
sees a weight: only hashes, counts and names pass through here.
"""

from collections.abc import Iterable

from swarmtrain_transport import limits
from swarmtrain_transport.actions import CoordinatorAction
from swarmtrain_transport.coordinator.agreement import Agreement
from swarmtrain_transport.coordinator.attendance import Attendance
from swarmtrain_transport.coordinator.claims import check_claim, check_hello, shown
from swarmtrain_transport.coordinator.departures import Departures, Order
from swarmtrain_transport.coordinator.history import FORK, Guest, History, card_of
from swarmtrain_transport.coordinator.membership import Chronicle, CoordinatorStatus, PeerLine
from swarmtrain_transport.coordinator.op_decider import OpDecider
from swarmtrain_transport.coordinator.planning import RunTerms, may_plan, next_plan
from swarmtrain_transport.coordinator.reports import Report, check_signed
from swarmtrain_transport.coordinator.scribe import Scribe
from swarmtrain_transport.coordinator.slicing import Slicing
from swarmtrain_transport.coordinator.status_view import describe, result_of
from swarmtrain_transport.coordinator.timers import Pace
from swarmtrain_transport.coordinator.tribunal import Tribunal
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fragments import genesis_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import (
    Accuse,
    Applied,
    CheckpointWritten,
    Evaluated,
    Finished,
    Got,
    Have,
    Hello,
    Leave,
    Offer,
    PeerMessage,
    Progress,
    Ready,
    Roots,
    SliceDone,
    Stranded,
    Welcome,
    Withdraw,
)
from swarmtrain_transport.wire.messages import History as HistoryMessage
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Reassign,
    Record,
    Run,
    Sign,
    Skip,
    Verify,
)

Actions = tuple[CoordinatorAction, ...]

_TIMELESS = (Got, Have, SliceDone)
"""Reports that bring no deadline forward, unless something is decided on them."""


class Rendezvous:
    """The whole coordinator, sans IO.

    Args:
        terms: what the run file says of the exchange.
        run_key: public key that signs the ledger.
        records: the ledger of an earlier life, verified as it is replayed.
        sign: signs a record hash with the run key.
        verify: checks a signature.
        term: this life's number, larger than any before.
        now_s: the time; all timers start here.
        is_lost: the run key has signed a ledger before, and nothing of it is left here.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self,
        terms: RunTerms,
        run_key: bytes,
        records: Iterable[Record],
        sign: Sign,
        verify: Verify,
        term: int,
        now_s: float,
        *,
        is_lost: bool = False,
    ) -> None:
        self.terms = terms
        self.scribe = Scribe(records, sign, verify, term)
        self.view = self.scribe.view
        self.attendance = Attendance(self.view, now_s)
        self.lines = self.attendance.lines
        self.chronicle = Chronicle()
        self.operation: OpDecider | None = None
        self._run_key, self._verify = run_key, verify
        self._now_s = self._due_s = now_s
        self._pace = Pace()
        self._slicing = Slicing()
        self.history = History(self.scribe, self.attendance, now_s, run_key if is_lost else None)
        self._agreement = Agreement(self.scribe, self.attendance, self.chronicle)
        self.departures = Departures(self.scribe, self.attendance, self.chronicle, self._lost)
        self._tribunal = Tribunal(self.scribe, self.attendance, self.chronicle, self.view)
        if self.view.first.in_progress is not None:
            self.operation = OpDecider(self.view.first.in_progress, now_s)

    # ---- events

    def start(self, now_s: float) -> Actions:
        """First event of a life: a new run gets its RUN record."""
        self._at(now_s)
        if not len(self.scribe.ledger) and not self.history.is_missing:
            self.scribe.append(
                Run(self.terms.run_id, self._run_key, self.terms.config_hash,
                    limits.PROTOCOL_VERSION)
            )  # fmt: skip
        return self._settle()

    def connected(
        self, peer: PeerId, hello: Hello, now_s: float, *, invite_id: str = ""
    ) -> Actions:
        """The door has let a peer in, or again. RemoteFault: a false HELLO, nothing changed."""
        self._at(now_s)
        check_hello(hello)
        if self.view.curve_holders.get(hello.curve_key, peer) != peer:
            raise RemoteFault("hello", "its curve_key is another member's, who would be shut out")
        self.history.gone(peer)
        self._let_in(peer, Guest(hello, invite_id))
        return self._settle()

    def _let_in(self, peer: PeerId, guest: Guest) -> None:
        hello = guest.hello
        join = self.view.roster.get(peer)
        if self.scribe.is_behind(hello) and self.history.may_grow:
            self.history.ask(peer, guest, self._now_s)
        elif refusal := self.history.refusal(peer, guest) or self.departures.refusal(peer):
            self.scribe.refuse(peer, *refusal)
        elif self.is_finished and (join is None or join.boot != hello.boot):
            self.scribe.refuse(peer, "SWT-E705", f"The run is finished: {result_of(self)}.")
        elif self.scribe.has_card(peer, hello):
            self._welcome(peer, hello)
        elif self.history.is_open:
            self.history.wait(peer, guest)
        else:
            self.scribe.append(card_of(peer, hello, guest.invite_id))
            self.note(peer, "joined")
            self._welcome(peer, hello)

    def _welcome(self, peer: PeerId, hello: Hello) -> None:
        line = self.attendance.enter(peer, hello, self._now_s)
        self.scribe.send(
            peer,
            Welcome(self.scribe.term, self.terms.run_id, self._run_key, self.terms.config,
                    self.scribe.ledger.head_index),
        )  # fmt: skip
        self.scribe.send_records(peer, line, self._now_s)
        if self.operation is not None:
            for news in self.operation.reports.returned(peer, hello.boot):
                self.scribe.send(peer, news)
        if hello.applied_op >= 0:
            self._on_applied(peer, line, Applied(hello.applied_op, hello.state_root))

    def received(self, peer: PeerId, message: PeerMessage, now_s: float) -> Actions:
        """A message of a connected peer. RemoteFault: it breaks the protocol, close its line."""
        self._at(now_s)
        if self.history.is_witness(peer):
            return self._on_history(peer, message)
        if (line := self.lines.get(peer)) is None:
            # Evicted while its connection still stood: it says HELLO again on a new one.
            self.scribe.close(peer)
            return self._settle()
        line.life.heard(now_s)
        check_claim(message)
        self._dispatch(peer, line, message)
        return self._settle(shifts_timers=not isinstance(message, _TIMELESS))

    def disconnected(self, peer: PeerId, now_s: float) -> Actions:
        """A control connection closed, for whatever reason."""
        self._at(now_s)
        self.history.gone(peer)
        if (line := self.lines.get(peer)) is not None and line.connected:
            line.connected = False
            line.life.closed(now_s)
        return self._settle()

    def tick(self, now_s: float) -> Actions:
        """The time that `next_wakeup_s` asked for has come."""
        self._at(now_s)
        if now_s < self._due_s:
            return ()
        self.history.tick(now_s)
        return self._settle()

    def ordered(self, order: Order, now_s: float) -> Actions:
        """The organiser's word on a peer; void while somebody may bring what our disk has lost."""
        self._at(now_s)
        if not self.history.is_open:
            self.departures.obey(order)
        return self._settle()

    @property
    def next_wakeup_s(self) -> float:
        """When `tick` wants to be called; at most half a second late is harmless."""
        return min(self._due_s, self._now_s + limits.LOOK_S)

    def _at(self, now_s: float) -> None:
        """An event. Time in which this process was stopped is nobody else's silence."""
        absent_s = now_s - self._now_s
        if now_s > self.next_wakeup_s + limits.ABSENT_S:
            self.attendance.pardon(absent_s, now_s)
            self.history.pardon(absent_s)
            if self.operation is not None:
                self.operation.timers.pardon(absent_s)
        self._now_s = now_s

    def _next_due_s(self) -> float:
        times = [self._now_s + limits.EVICT_S]
        if self.operation is not None:
            times += self.operation.timers.wakeups()
        times += [self.history.due_s(self._now_s)]
        times += self.attendance.wakeups(self.terms.wait_ready_s)
        return min([time for time in times if time > self._now_s])

    @property
    def is_finished(self) -> bool:
        """All rounds of the run are committed."""
        return self.view.first.committed >= self.terms.rounds

    def is_member(self, peer: PeerId) -> bool:
        """Return True if this key was ever let in and is not banned."""
        return peer in self.view.ever_members and peer not in self.view.banned

    def note(self, peer: PeerId, event: str, reason: str = "") -> None:
        """Remember for people what a peer did in the round in progress."""
        self.chronicle.event(self.view.first.last_op + 1, peer, event, reason)

    def status(self, now_s: float) -> CoordinatorStatus:
        """What people are shown."""
        return describe(self, now_s)

    # ---- handlers of messages

    def _dispatch(self, peer: PeerId, line: PeerLine, message: PeerMessage) -> None:
        match message:
            case Offer() | CheckpointWritten() | Accuse() | Leave() if self.history.is_open:
                self.history.hold(peer, message)
            case Offer():
                if self.view.first.genesis is None:
                    self.scribe.append(genesis_of(message, self.terms.block, self.terms.layout))
            case Ready():
                self._on_ready(peer, line, message)
            case Applied():
                self._on_applied(peer, line, message)
            case Stranded():
                line.stranded_op = message.op
            case Progress():
                line.acknowledged(min(message.index, self.scribe.head), self._now_s)
                op, witnesses = self.operation, self.attendance.witnesses(self._now_s)
                owes = op is not None and op.reports.owes(peer, witnesses)
                self.attendance.progressed(line, message, self._now_s, owes=owes)
                self.chronicle.gauges.hear(peer, message.gauged, self.view.first)
            case Accuse():
                for owner, why in self._tribunal.hear(peer, message, self._now_s).items():
                    self.departures.go(owner, evicted=True, reason="wrong sum", why=why)
            case CheckpointWritten():
                self.scribe.note_checkpoint(peer, message)
            case Evaluated():
                self.chronicle.evaluated(self.view.first, peer, message)
            case Leave():
                self.departures.go(peer, evicted=False, reason=shown(message.reason, 200))
            case Roots() | Got() | SliceDone() | Have() | Withdraw():
                self._on_report(peer, message)
            case _:
                raise RemoteFault("type", f"{type(message).__name__} is not expected here")

    def _on_report(self, peer: PeerId, message: Report) -> None:
        """What a peer says of the op in progress; news of a result goes to all its members."""
        operation = self.operation
        if operation is None or operation.view.plan_id != message.plan_id:
            return
        check_signed(operation.view, peer, message, self._verify)
        news = operation.reports.hear(peer, message, self._now_s)
        if news is not None:
            for other, line in self.lines.items():
                if line.connected and operation.reports.concerns(other, news):
                    self.scribe.send(other, news)

    def _on_history(self, peer: PeerId, message: PeerMessage) -> Actions:
        """A peer tells what our disk has lost. Whatever else it says it says again afterwards."""
        if isinstance(message, HistoryMessage):
            head = self.scribe.head
            guest = self.history.hear(peer, message, self._now_s)
            if self.scribe.head != head:  # else what was reported of an op counts on
                self.attendance.adopted(self._now_s)
                op = self.view.first.in_progress
                self.operation = OpDecider(op, self._now_s) if op is not None else None
            if guest is not None and not self.scribe.is_behind(guest.hello):
                self._let_in(peer, guest)
            elif guest is not None:
                self.scribe.refuse(peer, *FORK)
        return self._settle()

    def _on_ready(self, peer: PeerId, line: PeerLine, message: Ready) -> None:
        if line.ready is None or line.ready.op != message.op:
            line.ready_s = self._now_s
        line.ready, line.active = message, True
        self._on_applied(peer, line, Applied(message.applied_op, message.state_root))

    def _on_applied(self, peer: PeerId, line: PeerLine, message: Applied) -> None:
        self._agreement.reported(
            peer, line, message, self._now_s, may_attest=not self.history.is_open
        )

    # ---- the decisions that fall due after any event

    def _settle(self, *, shifts_timers: bool = True) -> Actions:
        """What follows from an event.

        Args:
            shifts_timers: whether it may have brought something forward that falls due later.
        """
        head = self.scribe.head
        if not self.history.is_open:
            for peer, guest in self.history.take_guests().items():
                self._let_in(peer, guest)
            for peer, message in self.history.take_held():
                if peer in self.lines:
                    self._dispatch(peer, self.lines[peer], message)
            self.departures.bury(self._now_s)
            self._decide()
            self._agreement.attest(self.view.first.last_op, self._now_s)
            self._agreement.rewind()
            self._plan_next()
        newest = self.scribe.head
        for peer, line in self.lines.items():
            if line.sent_index != newest and line.connected:
                self.scribe.send_records(peer, line, self._now_s)
        if self.is_finished:
            self._dismiss()
        if shifts_timers or newest != head or self._now_s >= self._due_s:
            self._due_s = self._next_due_s()
        return self.scribe.take()

    def _dismiss(self) -> None:
        """The run is over: peers may go once nobody needs their results any more."""
        op, losses = self.view.first.last_op, self.chronicle.losses
        awaits_loss = bool(losses) and op not in losses
        for peer in self.attendance.dismissed(op, self._now_s, awaits_loss=awaits_loss):
            self.scribe.send(peer, Finished(op, losses.get(op)))
        for peer in self.attendance.lingering(self._now_s):
            self.departures.go(peer, evicted=True, reason="the run is finished")

    def _lost(self, peer: PeerId) -> None:
        if self.operation is not None:
            self.operation.reports.lose(peer)

    def _decide(self) -> None:
        while self.operation is not None:
            heard = {peer: line.life for peer, line in self.lines.items()}
            alive = self.attendance.alive(self._now_s)
            decision = self.operation.decide(alive, self._now_s, heard)
            if decision is None:
                return
            if isinstance(decision, Reassign):
                self.chronicle.moved(decision, self.operation.view.owners)
            self.scribe.append(decision)
            if isinstance(decision, Freeze):
                for peer, reason in decision.excluded.items():
                    by = decision.accusers.get(peer, ())
                    self.chronicle.excluded(decision.op, peer, reason, by)
            if isinstance(decision, Commit | Skip):
                self.operation.teach(self._pace, self._now_s)
                self.attendance.op_ended()
                self.operation = None

    def _plan_next(self) -> None:
        is_busy = self.operation is not None or self.is_finished
        if is_busy or not may_plan(self.terms, self.view.first, self.lines):
            return
        expected = self.attendance.expected(self._now_s)
        limit_s = self._pace.deadline_s(self.terms.deadline_floor_s, self.terms.deadline_cap_s)
        plan = next_plan(
            self.terms,
            self.view.first,
            self.lines,
            expected,
            limit_s,
            self._now_s,
            self._slicing,
            self.view.join_index,
        )
        if plan is None:
            return
        self.attendance.planned(plan, expected)
        self.scribe.append(plan)
        assert self.view.first.op is not None
        self.operation = OpDecider(self.view.first.op, self._now_s)

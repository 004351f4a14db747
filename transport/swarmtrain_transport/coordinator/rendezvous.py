"""The coordinator as one machine: it lets peers in, plans ops, logs every decision, relays.

It holds the ledger, a line per peer and a part for each group. Whatever it decides is first an
`Append` action; records reach the peers only after it, in index order, each from its own index
on. A restart replays the ledger and hears HELLO again: nothing is decided twice (T14). It never
sees a weight: only hashes, counts and names pass through here.
"""

import math
from collections.abc import Iterable, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.actions import CoordinatorAction
from swarmtrain_transport.coordinator.chronicle import APART
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.ledger_recovery import FORK, Guest, LedgerRecovery, card_of
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter, Replayed
from swarmtrain_transport.coordinator.members.departures import Departures, Order
from swarmtrain_transport.coordinator.members.holdings import Holdings
from swarmtrain_transport.coordinator.members.meetings import Means, Meetings
from swarmtrain_transport.coordinator.members.reach import Reach
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.coordinator.members.validation import check_claim, check_hello, shown
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.stages.experts import Experts
from swarmtrain_transport.coordinator.stages.keeper_choice import moves_due
from swarmtrain_transport.coordinator.stages.staffing import Stages
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms, StageRounds
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.coordinator.status_view import describe, result_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.chain import Archive
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed
from swarmtrain_transport.wire.messages import (
    FIRST_GROUP,
    RELAY,
    Accuse,
    Applied,
    Carried,
    Carrying,
    CheckpointWritten,
    Evaluated,
    Finished,
    Got,
    Have,
    Hello,
    History,
    Kept,
    Leave,
    Leaving,
    Met,
    Offer,
    Older,
    PeerMessage,
    PipelineReport,
    Places,
    Progress,
    Ready,
    Released,
    Roots,
    SliceDone,
    Stranded,
    Welcome,
    Withdraw,
)
from swarmtrain_transport.wire.records import (
    Extend,
    Group,
    Move,
    Record,
    Run,
    Sign,
    Verify,
)
from swarmtrain_transport.wire.text_place import TextPlace

Actions = tuple[CoordinatorAction, ...]

_TIMELESS = (Got, Have, SliceDone, Progress)
"""Messages that bring no deadline forward, unless something is decided on them, the peer is found
idle, or an op hurries: then the last of those who are waited for ends its time."""


class Rendezvous:
    """The whole coordinator, sans IO.

    Args:
        terms: part of the run file that concerns the exchange.
        run_key: public key that signs the ledger.
        records: the ledger of an earlier life, verified as it is replayed, or replayed already.
        sign: signs a record hash with the run key.
        verify: checks a signature.
        term: this life's number, larger than any before.
        now_s: the time; all timers start here.
        is_lost: the run key has signed a ledger before, and nothing of it is left here.
        more_groups: terms of the groups that there are beside the first, in their order.
        needs: needs of each stage, where groups are stages; its peers get their stages here.
        has_experts: groups are experts, each with peers of its own, which are told here of which.
        pipeline: terms of its rounds, where groups are stages.
        archive: store of older records, None to keep all in memory.
        rounds: rounds after which the run shall be over, if they are more than they were.
        places: peers that may be in the roster at once.
        linger_s: wait for a member that went without a word, at the run's end.
        means: those to bring two peers together of which one cannot dial the other.

    Attributes:
        groups: coordinators of the groups, by the groups' numbers.
        stage_rounds: rounds of the pipeline, where groups are stages.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self,
        terms: RunTerms,
        run_key: bytes,
        records: Iterable[Record] | Replayed,
        sign: Sign,
        verify: Verify,
        term: int,
        now_s: float,
        *,
        is_lost: bool = False,
        more_groups: Sequence[RunTerms] = (),
        needs: Sequence[StageNeed] = (),
        has_experts: bool = False,
        pipeline: PipelineTerms | None = None,
        archive: Archive | None = None,
        rounds: int = 0,
        places: int = limits.PIPELINE_MEMBERS_MAX,
        linger_s: float = 0.0,
        means: Means | None = None,
    ) -> None:
        self._places = places
        self.terms = terms
        self.linger_s = linger_s
        self.writer = LedgerWriter(records, sign, verify, term, archive)
        self.view = self.writer.view
        self.live_roster = LiveRoster(self.view, now_s)
        self.lines = self.live_roster.lines
        self.groups: dict[int, GroupCoordinator] = {}
        self._terms = (terms, *more_groups)
        self._stages: Stages | Experts = Stages(needs, self.view, self.lines)
        if has_experts:
            self._stages = Experts(len(self._terms), self.view, self.lines)
        self._run_key, self._verify = run_key, verify
        self._wanted_rounds = rounds
        self._now_s = self._due_s = now_s
        self._spread_index = -2
        self.stage_rounds: StageRounds | None = None
        if pipeline is not None and isinstance(self._stages, Stages):
            self.stage_rounds = StageRounds(
                pipeline,
                len(self._terms),
                self.groups,
                self._stages,
                self.writer,
                self.live_roster,
            )
            self.live_roster.last_loss_s = limits.LAST_LOSS_OF_STAGES_S
        self.meetings = Meetings(means, self.writer.send, self.note)
        self._begin_known_groups()
        self.holdings = Holdings(self.writer, self.lines, sign)
        self.recovery = LedgerRecovery(
            self.writer, self.live_roster, now_s, verify, run_key if is_lost else None
        )
        self._relays, self._leaving = set[PeerId](), set[PeerId]()
        self._joined_s = -math.inf
        self.reach = Reach(self.live_roster, self.writer, self.meetings, self.note, self._fellows)
        self.departures = Departures(
            self.writer, self.live_roster, self.first.chronicle, self._lost
        )

    # ---- events

    def start(self, now_s: float) -> Actions:
        """First event of a life: a new run gets its RUN record."""
        self._at(now_s)
        if not len(self.writer.ledger) and not self.recovery.is_missing:
            self.writer.append(
                Run(self.terms.run_id, self._run_key, self.terms.config_hash,
                    limits.RUN_VERSION, self._stages.num_experts)
            )  # fmt: skip
        return self._settle()

    def connected(
        self, peer: PeerId, hello: Hello, now_s: float, *, invite_id: str = "", remote: str = ""
    ) -> Actions:
        """The door has let a peer in, or again, that comes from this address. RemoteFault: a false
        HELLO, nothing changed."""
        self._at(now_s)
        check_hello(hello)
        self._check_curve_key(peer, hello.curve_key)
        self.recovery.gone(peer)
        if hello.brings.model == RELAY:
            self._admit_relay(peer, hello, remote or hello.host)
        else:
            self._let_in(peer, Guest(hello, invite_id, remote or hello.host))
        return self._settle()

    def _check_curve_key(self, peer: PeerId, curve_key: bytes) -> None:
        holders = self.view.curve_holders
        holder = holders.get(curve_key)
        if holder not in (None, peer):
            raise RemoteFault("hello", "its curve_key is another member's, who would be shut out")
        if holder is None and peer in self.view.ever_members:  # who is new has come with no other
            count = sum(one == peer for one in holders.values())
            if count >= limits.CURVE_KEYS_MAX:
                raise RemoteFault("hello", f"it has come with {count} other curve_keys before")

    def _admit_relay(self, peer: PeerId, hello: Hello, remote: str) -> None:
        """Let a process in that passes bytes on: it is in no roster, and hears no records."""
        if peer in self.view.roster or peer in self.lines:
            raise RemoteFault("hello", "a relay with a member's key")
        if refusal := self.departures.refusal(peer):
            self.writer.refuse(peer, *refusal)
        elif len(self._relays - {peer}) >= limits.RELAYS_MAX:
            self.writer.refuse(peer, "SWT-E701", f"The run has its {limits.RELAYS_MAX} relays.")
        else:
            self._relays.add(peer)
            self.meetings.came(peer, remote, hello, self._now_s, is_member=False)
            self._greet(peer, remote)

    def _greet(self, peer: PeerId, remote: str, why: str = "") -> None:
        self.writer.send(
            peer,
            Welcome(self.writer.term, self.terms.run_id, self._run_key, self.terms.config,
                    self.writer.ledger.head_index, why, remote),
        )  # fmt: skip

    def _let_in(self, peer: PeerId, guest: Guest) -> None:
        hello = guest.hello
        join = self.view.roster.get(peer)
        if self.writer.is_behind(hello) and self.recovery.may_tell(peer, guest):
            self.recovery.ask(peer, guest, self._now_s)
        elif refusal := self.recovery.refusal(peer, guest) or self.departures.refusal(peer):
            self.writer.refuse(peer, *refusal)
        elif (
            self.is_finished
            and (join is None or join.boot != hello.boot)
            and peer not in self.missed()
        ):
            self.writer.refuse(peer, "SWT-E705", f"The run is finished: {result_of(self)}.")
        elif self.writer.has_card(peer, hello):
            self._welcome(peer, guest)
        elif self.recovery.is_open or self._gathers:
            self.recovery.wait(peer, guest)
        elif join is None and len(self.view.roster) >= self._places:
            # The door has counted whom it knew of: that is not everybody where the ledger was lost.
            self.writer.refuse(
                peer, "SWT-E701", f"The run has its {self._places} peers. Try again later."
            )
        else:
            is_new = peer not in self.view.ever_members
            self._joined_s = self._now_s
            self.writer.append(card_of(peer, hello, guest.invite_id))
            self.note(peer, "joined")
            why = ""
            if self._stages.assigns:
                self._begin_groups()
                choice = self._stages.choose(peer, hello, is_new=is_new)
                self._move(peer, tuple(choice.span), choice.why)
                why = choice.why
            self._welcome(peer, guest, why)

    def _admit_guests(self) -> None:
        for peer, guest in self.recovery.take_guests().items():
            try:
                self._check_curve_key(peer, guest.hello.curve_key)  # another guest may have it
            except RemoteFault as fault:
                self.writer.refuse(peer, "SWT-E501", str(fault))
            else:
                self._let_in(peer, guest)

    @property
    def _gathers(self) -> bool:
        """True if newcomers of a crowd wait for others: the JOINs of one event are on the disk as
        soon as one of them."""
        is_soon = self._joined_s < self._now_s < self._joined_s + limits.CROWD_JOIN_S
        return is_soon and self._is_crowd

    def _welcome(self, peer: PeerId, guest: Guest, why: str = "") -> None:
        hello = guest.hello
        self._spread_index = -2
        line = self.live_roster.enter(peer, hello, self._now_s)
        self.reach.is_due = True
        self._greet(peer, guest.remote, why)
        self.meetings.came(peer, guest.remote, hello, self._now_s)
        self.writer.send_image(peer, line, self._now_s)
        self.writer.send_records(peer, line, self._now_s)
        for number in (*self.view.groups_of(peer), *self.view.keeps_of(peer)):
            if number in self.groups:
                self.groups[number].enter(peer, line)
        for state in hello.states:
            group = self.groups.get(state.group)
            if group is not None and peer in group.group_peers.here:
                group.on_hello(peer, state, self._now_s)
            elif group is not None:
                group.keepers.heard(peer, Kept(state.op, group=state.group), self._now_s)
        if self.stage_rounds is not None:
            self.stage_rounds.entered(peer, hello, self._now_s)

    def received(self, peer: PeerId, message: PeerMessage, now_s: float) -> Actions:
        """A message of a connected peer. RemoteFault: it breaks the protocol, close its line."""
        self._at(now_s)
        if self.recovery.is_witness(peer):
            return self._on_history(peer, message)
        if peer in self._relays:
            check_claim(message)
            self._on_way(peer, message)
            return self._settle(shifts_timers=False)
        if (line := self.lines.get(peer)) is None:
            # Evicted while its connection still stood, or not let in yet: it says HELLO again on a
            # new one.
            self.recovery.gone(peer)
            self.writer.close(peer)
            return self._settle()
        was_alive, acked_index = line.life.is_alive(now_s), line.acked_index
        line.life.heard(now_s)
        if not was_alive:
            self.live_roster.look_again()
        if self.live_roster.is_crowd and not any(one.names(peer) for one in self.groups.values()):
            line.life.patience_s = self.live_roster.patience_s
        check_claim(message)
        self._dispatch(peer, line, message)
        is_idle, is_progress = line.life.idle_s is not None, isinstance(message, Progress)
        self.live_roster.stirs(line.life)
        if is_progress and self._is_crowd:
            if now_s >= line.told_s + limits.CROWD_RECORDS_S:
                self._tell(peer, line)
            acked_index = line.acked_index  # who is planned with is looked at soon anyway
        is_news = is_idle or not was_alive or line.acked_index != acked_index
        is_news = is_news or self.reach.is_ready(now_s) or now_s >= self.meetings.next_wakeup_s
        if is_progress and not is_news and now_s < self._due_s:
            return self.writer.take()
        is_timeless = isinstance(message, _TIMELESS) and not is_idle
        hurries = any(group.hurries for group in self.groups.values())
        return self._settle(shifts_timers=hurries or not is_timeless)

    def disconnected(self, peer: PeerId, now_s: float) -> Actions:
        """A control connection closed, for whatever reason."""
        self._at(now_s)
        self.recovery.gone(peer)
        if peer in self._relays:
            self._relays.remove(peer)
            self.meetings.left(peer, now_s)
        if (line := self.lines.get(peer)) is not None and line.connected:
            line.connected = False
            line.life.closed(now_s)
            self.live_roster.stirs(line.life)
            self.meetings.away(peer, now_s)
        return self._settle()

    def tick(self, now_s: float) -> Actions:
        """The time that `next_wakeup_s` asked for has come."""
        self._at(now_s)
        if now_s < min(self._due_s, self.meetings.next_wakeup_s):
            return ()
        self.recovery.tick(now_s)
        return self._settle()

    def admit(self, now_s: float) -> Actions:
        """Let in at once who waits for others: an order may concern the invites that they use."""
        self._at(now_s)
        self._joined_s = -math.inf
        return self._settle()

    def ordered(self, order: Order, now_s: float) -> Actions:
        """The organiser's word on a peer; void while somebody may bring what our disk has lost."""
        self._at(now_s)
        if not self.recovery.is_open:
            self.departures.obey(order)
        return self._settle()

    def extend(self, rounds: int, now_s: float) -> Actions:
        """The organiser wants the run to have so many rounds; void if it has."""
        self._at(now_s)
        self._wanted_rounds = max(self._wanted_rounds, rounds)
        return self._settle()

    def _extend(self) -> None:
        """EXTEND, once nobody may bring what our disk has lost."""
        if self._wanted_rounds > self.rounds and len(self.writer.ledger):
            self.writer.append(Extend(self._wanted_rounds))

    def dialled(self, peer: PeerId, *, is_open: bool, now_s: float) -> Actions:
        """The shell has tried to open a connection to the address that a peer has told."""
        self._at(now_s)
        if (line := self.lines.get(peer)) is not None:
            line.is_dialled, self.reach.is_due = is_open, True
        self.meetings.dialled(peer, now_s, is_open=is_open)
        return self._settle()

    def takes(self, token: bytes, side: Side) -> Way | None:
        """Return what a connection to our own port that begins with this token is for, see
        Meetings."""
        return self.meetings.takes(token, side)

    def mirrored(self, token: bytes, side: Side, host: str, port: int, now_s: float) -> Actions:
        """A side of a meeting came to our own port, from this address."""
        self._at(now_s)
        self.meetings.mirrored(token, side, host, port, now_s)
        return self._settle()

    def near(self, peer: PeerId, remote: str) -> list[tuple[str, str, int]]:
        """Name and address of each other member that a peer, at this address, could dial."""
        return self.meetings.near(peer, remote)

    def carried(self, num_bytes: int) -> None:
        """We have passed on so many bytes ourselves since this was last said."""
        self.meetings.own_carried += num_bytes

    def reads(self, place: TextPlace | None) -> None:
        """Hear where the run is in the text that is leased to its peers: PLANs say so."""
        self.writer.text = place

    def place(self, peer: PeerId, groups: tuple[int, ...], now_s: float) -> Actions:
        """MOVE: from now on the peer is in these groups; void for who is not in the roster."""
        self._at(now_s)
        if peer in self.view.roster and not self.recovery.is_open:
            self._move(peer, groups)
        return self._settle()

    def _move(self, peer: PeerId, groups: tuple[int, ...], why: str = "") -> None:
        if self.view.groups_of(peer) == groups:
            return
        keeps = tuple(kept for kept in self.view.keeps_of(peer) if kept not in groups)
        self.writer.append(Move(peer, groups, keeps, why))
        for group in self.groups.values():
            if peer not in group.view.members:
                group.depart(peer)
            group.group_peers.reconcile()
        if self.stage_rounds is not None:
            self.stage_rounds.gone(peer, self._now_s)

    @property
    def first(self) -> GroupCoordinator:
        """Group 0: in a run of one group all that is exchanged."""
        return self.groups[FIRST_GROUP]

    @property
    def next_wakeup_s(self) -> float:
        """Time at which `tick` wants to be called; at most half a second late is harmless."""
        return min(self._due_s, self.meetings.next_wakeup_s, self._now_s + limits.LOOK_S)

    def _at(self, now_s: float) -> None:
        """An event. Time in which this process was stopped is nobody else's silence."""
        absent_s = now_s - self._now_s
        if absent_s > limits.ABSENT_S and now_s > self.next_wakeup_s + limits.ABSENT_S:
            self.live_roster.pardon(now_s)
            self.recovery.pardon(absent_s)
            self.meetings.pardon(absent_s)
            for group in self.groups.values():
                group.pardon(absent_s)
            if self.stage_rounds is not None:
                self.stage_rounds.pardon(absent_s)
        self._now_s = now_s
        self.writer.ledger.trim()

    def _next_due_s(self) -> float:
        times = [self._now_s + limits.EVICT_S]
        for group in self.groups.values():
            times += group.wakeups()
        if self.stage_rounds is not None:
            times += self.stage_rounds.wakeups()
        times += self._stages.wakeups()
        times += [self.recovery.due_s(self._now_s)]
        times += self.live_roster.wakeups(self._now_s)
        return min([time for time in times if time > self._now_s])

    @property
    def rounds(self) -> int:
        """Committed rounds after which the run is over."""
        return self.first.terms.rounds

    @property
    def is_finished(self) -> bool:
        """All rounds of all groups are committed, and no more are wanted."""
        is_done = all(group.is_finished for group in self.groups.values())
        return is_done and self._wanted_rounds <= self.rounds

    def missed(self) -> dict[PeerId, float]:
        """Return the members that a finished run still waits for, and until when: who gave
        something lately, went without a word and lacks the last state."""
        if not (self.linger_s and self.is_finished):
            return {}
        groups = self.groups.values()
        # A peer that comes and goes after the run's end makes it no longer.
        over_s = self.live_roster.closes_s - limits.FINISH_S
        until_s = {
            peer: min(since_s, over_s) + self.linger_s
            for peer, since_s in self.live_roster.away().items()
        }
        return {
            peer: time_s
            for peer, time_s in until_s.items()
            if self._now_s < time_s
            and self.departures.refusal(peer) is None
            and any(group.group_peers.lacks(peer) for group in groups)
        }

    def is_elsewhere(self, peer: PeerId, boot: bytes, now_s: float) -> bool:
        """Return True if another process of the peer is connected, and was heard just now: two of
        one key would take each other's place for ever."""
        line = self.lines.get(peer)
        if line is None or not line.connected or line.hello.boot == boot:
            return False
        pauses = self.view.progress_s / limits.PROGRESS_S
        return now_s < line.life.heard_s + pauses * limits.TWIN_S

    def is_member(self, peer: PeerId) -> bool:
        """Return True if this key was ever let in and is not banned."""
        return peer in self.view.ever_members and peer not in self.view.banned

    def awaits_history(self, peer: PeerId) -> bool:
        """Return True if the peer was asked for records that are lost here."""
        return self.recovery.is_witness(peer)

    def note(self, peer: PeerId, event: str, reason: str = "") -> None:
        """Remember for people what a peer did in the round in progress."""
        self.first.chronicle.event(self.view.first.last_op + 1, peer, event, reason)

    def _fellows(self, peer: PeerId) -> set[PeerId]:
        """Return those with whom a peer was in a cell of its newest op, none if it was in none
        lately."""
        ops = [group.view.op for group in self.groups.values()]
        near = [op.cells.near(peer, op.boots) for op in ops if op and peer in op.boots]
        return {other for peers in near for other in peers}

    def status(self, now_s: float) -> CoordinatorStatus:
        """Return the facts that people are shown."""
        return describe(self, now_s)

    def outlook(self, now_s: float) -> CoordinatorStatus:
        """Return these facts without the peers, but for those whose contributions have gone apart:
        it is looked at each second, however many there are."""
        events = self.first.chronicle.events
        apart = {bytes.fromhex(one.peer) for one in events if one.event == APART}
        return describe(self, now_s, sorted(apart))

    def _owes(self, peer: PeerId) -> bool:
        """Return True if enough owners wait for a peer's part of some op. One that owes parts, and
        says again and again that it has moved no byte, is idle."""
        busy = [group for group in self.groups.values() if group.may_owe(peer)]
        if not busy:
            return False
        witnesses = self.live_roster.witnesses(self._now_s)
        return any(group.owes(peer, witnesses) for group in busy)

    def _has_place_for(self, group: int) -> bool:
        return 0 <= group < len(self._terms)

    # ---- handlers of messages

    def _dispatch(self, peer: PeerId, line: PeerLine, message: PeerMessage) -> None:
        match message:  # the most frequent ones first
            case Roots() | Got() | SliceDone() | Have() | Withdraw():
                for known in self.groups.values():
                    if message.plan_id in known.operations:
                        known.on_report(peer, message, self._now_s)
            case Progress():
                line.acknowledged(min(message.index, self.writer.head), self._now_s)
                is_idle = line.is_still(message) and self._owes(peer)
                self.reach.progressed(line, message)
                self.meetings.unreached(peer, message.unreached, self._now_s)
                self.meetings.relays.moved(peer, message.bytes_in + message.bytes_out)
                line.progress = message
                line.life.moved(self._now_s, message.up_bytes_per_s, is_idle=is_idle)
                if message.gauged is not None:
                    for known in self.groups.values():
                        known.chronicle.gauged(peer, message.gauged, known.view)
                self.holdings.progressed(peer, line, message, self._now_s)
            case Offer() | CheckpointWritten() | Accuse() if not self._has_place_for(message.group):
                pass  # or as many messages would be held as somebody invents groups
            case Offer() | CheckpointWritten() | Accuse() | Leave() if self.recovery.is_open:
                self.recovery.hold(peer, message)
            case Older():
                self.writer.send_older(peer, line, message.stop)
            case History():
                self.holdings.shown(peer, line, message, self._now_s)
            case CheckpointWritten():
                self.writer.note_checkpoint(peer, message)
            case Leaving():
                line.is_leaving = True
                self._leaving.add(peer)
            case Leave():
                self.departures.go(peer, evicted=False, reason=shown(message.reason, 200))
            case Kept():
                if message.group in self.groups:
                    self.groups[message.group].keepers.heard(peer, message, self._now_s)
            case Places() | Met() | Carrying() | Carried():
                self._on_way(peer, message)
            case PipelineReport() if self.stage_rounds is not None:
                self.stage_rounds.received(peer, line.hello.boot, message, self._now_s)
            case Offer() | Ready() | Applied() | Stranded() | Accuse() | Evaluated():
                group = self.groups.get(message.group)
                # A peer that was moved out of a group may still speak of it.
                if group is not None and peer in group.group_peers.here:
                    self._on_group(group, peer, message)
            case _:
                raise RemoteFault("type", f"{type(message).__name__} is not expected here")

    def _on_way(self, peer: PeerId, message: PeerMessage) -> None:
        match message:
            case Met():
                self.meetings.met(peer, message, self._now_s)
            case Places():
                self.meetings.places(peer, message, self._now_s)
            case Carrying():
                self.meetings.carrying(peer, message, self._now_s)
            case Carried():
                self.meetings.carried(peer, message, self._now_s)
            case Leave():
                self.writer.close(peer)
            case _:
                raise RemoteFault("type", f"{type(message).__name__} of a relay")

    def _on_group(
        self,
        group: GroupCoordinator,
        peer: PeerId,
        message: Offer | Ready | Applied | Stranded | Accuse | Evaluated,
    ) -> None:
        may_attest = not self.recovery.is_open
        match message:
            case Offer():
                group.on_offer(peer, message)
            case Ready():
                group.on_ready(peer, message, self._now_s, may_attest=may_attest)
            case Applied():
                group.on_applied(peer, message, self._now_s, may_attest=may_attest)
            case Stranded():
                group.group_peers.here[peer].stranded(message.op)
            case Accuse():
                for owner, why in group.convictions.hear(peer, message, self._now_s).items():
                    self.departures.go(
                        owner, evicted=True, reason="wrong sum", why=why, group=group.view.group
                    )
            case Evaluated():
                group.chronicle.evaluated(group.view, peer, message)

    def _on_history(self, peer: PeerId, message: PeerMessage) -> Actions:
        """A peer tells what our disk has lost. Whatever else it says it says again afterwards."""
        if isinstance(message, History):
            head = self.writer.head
            guest = self.recovery.hear(peer, message, self._now_s)
            if self.writer.head != head:
                for gone in sorted(self.lines.keys() - self.view.roster.keys()):
                    self.meetings.left(gone, self._now_s)
                    self.holdings.left(gone)
                self.live_roster.adopted(self._now_s)
                self._begin_known_groups()
                for group in self.groups.values():
                    group.adopted(self._now_s)
            if guest is not None and not self.writer.is_behind(guest.hello):
                self._let_in(peer, guest)
            elif guest is not None:
                self.writer.refuse(peer, *FORK)
        return self._settle()

    # ---- the decisions that fall due after any event

    def _settle(self, *, shifts_timers: bool = True) -> Actions:
        """Decide all that follows from an event.

        Args:
            shifts_timers: True if it may have brought something forward that falls due later.
        """
        head = self.writer.head
        if not (self.recovery.is_open or self._gathers):
            self._admit_guests()
        if not self.recovery.is_open:  # a guest may have been found to hold newer records
            for peer, message in self.recovery.take_held():
                if peer in self.lines:
                    self._dispatch(peer, self.lines[peer], message)
            self.reach.settle(self._now_s)
            self._begin_groups()
            self._extend()
            self.departures.bury(self._now_s)
            self._settle_groups()
            if self._move_peers():
                self._settle_groups()
            if shifts_timers or self.writer.head != head:
                self._name_keepers()
            self.writer.snapshot()
        newest = self.writer.head
        self._spread()
        if self.stage_rounds is not None:  # an order is heard after the records that it follows
            self.stage_rounds.send()
        if self.is_finished:
            self._dismiss()
        self._release()
        for known in self.groups.values():
            self.meetings.unheard(known.unheard, self._now_s)
            known.unheard.clear()
        if self._is_crowd:
            for peer in self.meetings.addressed():
                if (line := self.lines.get(peer)) is not None:
                    self._tell(peer, line)
        self.meetings.tick(self._now_s)  # after the JOINs of those who are to meet
        for known in self.groups.values():
            self._due_s = min(self._due_s, known.look_s)
        if shifts_timers or newest != head or self._now_s >= self._due_s:
            self._due_s = self._next_due_s()
        if self.recovery.has_guests and self._gathers:
            self._due_s = min(self._due_s, self._joined_s + limits.CROWD_JOIN_S)
        return self.writer.take()

    @property
    def _is_crowd(self) -> bool:
        """True if records are told to most at intervals. Peers of a model in stages wait for each
        other all the time, and those of a run that is over for its last records."""
        return self.live_roster.is_crowd and self.stage_rounds is None and not self.is_finished

    def _spread(self) -> None:
        """Send records: to all at once, or in a crowd to those whom they concern. The others get
        them as answers to their PROGRESS."""
        if self._is_crowd:
            named = [peer for group in self.groups.values() for peer in sorted(group.concerned)]
            for peer in named:
                if (line := self.lines.get(peer)) is not None:
                    self._tell(peer, line)
            self._spread_index = -2
        elif self._spread_index != self.writer.head:
            for peer, line in self.lines.items():
                self._tell(peer, line)
            lines = self.lines.values()
            if all(one.sent_index == self.writer.head for one in lines if one.connected):
                self._spread_index = self.writer.head
        for group in self.groups.values():
            group.concerned.clear()
            group.send_sheets()

    def _tell(self, peer: PeerId, line: PeerLine) -> None:
        """Send a peer what it lacks of the ledger, and before it where it can dial the others."""
        if line.sent_index != self.writer.head and line.connected:
            line.told_s = self._now_s
            self.meetings.tell_places(peer)
            self.writer.send_records(peer, line, self._now_s)

    def _move_peers(self) -> bool:
        """MOVE for a stage that is slow, or that nobody serves any more; True if there was one."""
        if self.is_finished:
            return False
        head = self.writer.head
        if isinstance(self._stages, Experts):
            done = {number for number, group in self.groups.items() if group.is_finished}
            while moved := self._stages.stand_in(done, self._is_needed, self._now_s):
                peer, expert, why = moved
                self._move(peer, (expert,), why)
                self.note(peer, "moved", f"to expert {expert}: {why}")
            return self.writer.head != head
        if self.stage_rounds is None:
            return False
        rounds = self.stage_rounds.rounds
        while (found := self._stages.stand_in(rounds.members, self._now_s)) is not None:
            peer, stage = found
            self._send_to(peer, stage, "nobody served it")
        moving = self._stages.moves.released(rounds)
        if moving is not None:
            self._send_to(moving.peer, moving.stage, moving.why)
        return self.writer.head != head

    def _is_needed(self, peer: PeerId) -> bool:
        groups = self.groups.values()
        return any(group.group_peers.needs(peer, group.keepers.staying()) for group in groups)

    def _send_to(self, peer: PeerId, stage: int, why: str) -> None:
        self._move(peer, (stage,), why)
        self.note(peer, "moved", f"to stage {stage}: {why}")

    def _settle_groups(self) -> None:
        """Decide in all groups. Books of a pipeline's round open some of them."""
        is_open = True
        while is_open:
            has_begun = self.stage_rounds is not None and self.stage_rounds.rounds.has_begun
            for group in self.groups.values():
                group.settle(self._now_s, is_under_way=has_begun and group.view.genesis is not None)
            is_open = self.stage_rounds is not None and self.stage_rounds.settle(self._now_s)

    def _dismiss(self) -> None:
        """The run is over: peers may go once nobody needs their results any more."""
        groups = self.groups.values()
        is_asked = self.stage_rounds is not None and self.stage_rounds.awaits_loss
        awaits_loss = is_asked or any(group.awaits_loss for group in groups)
        are_behind = any(group.group_peers.behind(self._now_s) for group in groups)
        staying = {peer for group in groups for peer in group.group_peers.staying()}
        for peer in self.live_roster.dismissed(
            self._now_s, are_behind=are_behind, awaits_loss=awaits_loss,
            missed_until_s=max(self.missed().values(), default=-math.inf),
            staying=staying if self.linger_s else (),
        ):  # fmt: skip
            for group in groups:
                if peer in group.view.members:
                    op = group.view.last_op
                    loss = group.chronicle.losses.get(op)
                    self.writer.send(peer, Finished(op, loss, group.view.group))
        for peer in self.live_roster.lingering(self._now_s):
            self.departures.go(peer, evicted=True, reason="the run is finished")

    def _release(self) -> None:
        """Tell leaving peers that they may go, once somebody who stays holds what they hold and no
        op under way has their part."""
        for peer in sorted(self._leaving) if not self.recovery.is_open else ():
            line = self.lines.get(peer)
            if line is None or not line.is_leaving or line.is_released:
                self._leaving.remove(peer)  # it has gone, is back, or was told
            elif not any(group.needs(peer) for group in self.groups.values()):
                line.is_released = True
                self.writer.send(peer, Released())

    def _name_keepers(self) -> None:
        if any(terms.holders for terms in self._terms) and not self.is_finished:
            for move in [*moves_due(self.groups, self.view, self.live_roster, self._now_s)]:
                self.writer.append(move)

    def _lost(self, peer: PeerId) -> None:
        self.meetings.left(peer, self._now_s)
        self.holdings.left(peer)
        for group in self.groups.values():
            group.depart(peer)
        if self.stage_rounds is not None:
            self.stage_rounds.gone(peer, self._now_s)

    def _begin_groups(self) -> None:
        """GROUP for each that the run file names and the ledger does not know yet."""
        if len(self.groups) == len(self._terms):
            return
        for terms in self._terms:
            if terms.group not in self.view.groups and len(self.writer.ledger):
                self.writer.append(Group(terms.group, terms.config_hash))
        self._begin_known_groups()

    def _begin_known_groups(self) -> None:
        for terms in self._terms:
            view = self.view.groups.get(terms.group)
            if view is not None and terms.group not in self.groups:
                group = GroupCoordinator(
                    terms, view, self.writer, self.live_roster, self._verify, self._now_s,
                    self.meetings.detours,
                )  # fmt: skip
                group.givers = None if self.stage_rounds is None else {}
                self.groups[terms.group] = group

"""A peer as one machine: it follows the ledger, takes part in ops, catches up, serves others.

Events in, actions out. The same machine runs in production, in the simulator and in replay. `group`
holds the part of one group; here are the parts that a peer has once.
"""

from collections.abc import Callable, Iterable, Sequence

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.blocks.retention import Piece, Retention
from swarmtrain_transport.blocks.serving import Serving
from swarmtrain_transport.blocks.shelf import MemoryShelf, Shelf
from swarmtrain_transport.collective.auditing import AUDIT_FRAMES
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Archive, batches
from swarmtrain_transport.ledger.fold import OfGroup
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.peer.early_frames import EarlyFrames
from swarmtrain_transport.peer.group import GroupPeer
from swarmtrain_transport.peer.keeper import Keeper, forget_kept
from swarmtrain_transport.peer.ledger_copy import Beginning, LedgerCopy
from swarmtrain_transport.peer.local_peer import Card, hello_of, progress_of
from swarmtrain_transport.wire import messages as say
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    Gone,
    Join,
    Move,
    Plan,
    Record,
    Rewind,
    Sign,
    Verify,
)

Actions = tuple[do.PeerAction, ...]

_OF_FETCHES = frozenset({FrameKind.PIECE, FrameKind.MISSING}) | AUDIT_FRAMES
"""Frames that say by what they name, not by their plan, for which group they are."""

_OTHER_HISTORY = "The coordinator's word on the run's past is not that of its records"


class Participant:
    """The whole peer, sans IO.

    Args:
        card: our identity and address.
        arithmetic: exact chunk arithmetic on our codec.
        sign: signs with our own key.
        verify: signature check.
        shuffle: order of equally good donors (randomness is an argument).
        records: our own copy of the ledger from an earlier life.
        now_s: the time.
        retention: keeps parts and results; None keeps them in memory.
        archive: store of older records; None keeps all in memory.
        begins: the SNAPSHOT that our copy begins with, where it has a gap.
        shelf: keeps states of groups that we are not in; None keeps them in memory.

    Attributes:
        groups: our part in each group that we are in, by its number; in group 0 until the ledger
            says otherwise.
        keepers: our part in each group whose state we keep for others.

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
        archive: Archive | None = None,
        begins: Beginning | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.card = card
        self._copy = LedgerCopy(verify, records, archive, begins, me=card.peer_id)
        self.view, self.ledger = self._copy.view, self._copy.ledger
        self.stats = LocalStats()
        self.groups: dict[int, GroupPeer] = {}
        self.keepers: dict[int, Keeper] = {}
        self._is_hasty = False
        self._parts: list[GroupPeer | Keeper] = []
        self._arithmetic, self._sign, self._verify, self._shuffle = (
            arithmetic, sign, verify, shuffle,
        )  # fmt: skip
        self._retention = retention or Retention()
        self._shelf = shelf or MemoryShelf()
        self._early = EarlyFrames(self.stats.ignored)
        self._listens: dict[PeerId, tuple[str, int]] = {}
        self._serving = Serving(())
        for number in self.view.groups_at_join(card.peer_id):
            self._enter(number)
        for number in self.view.keeps_of(card.peer_id):
            self._enter_keeper(number)
        self._sort_parts()
        self._welcome_index: int | None = None
        self._connected = self._is_sorted = False
        self._avoid_s = self._now_s = now_s
        self._said_s, self._was_exchanging = now_s - limits.PROGRESS_S, False
        self._unsaid_bytes = 0
        self._fills = False

    def _enter(self, number: int) -> None:
        keeper = self.keepers.pop(number, None)
        blobs = keeper.blobs if keeper is not None else Blobs(self._retention)
        group = self.groups[number] = GroupPeer(
            number, self.card, self.view, self._arithmetic, self._sign, self._verify,
            self._shuffle, self.stats, blobs,
        )  # fmt: skip
        if keeper is not None:
            group.states.take_over(*keeper.hand_over())
        if self._is_hasty:
            group.make_haste()

    def _enter_keeper(self, number: int) -> None:
        self.keepers[number] = Keeper(
            number, self.card, self.view, self._arithmetic, self._sign, self._shuffle, self.stats,
            self._retention, self._shelf,
        )  # fmt: skip

    def _sort_parts(self) -> None:
        self._parts = [*self.groups.values(), *self.keepers.values()]
        self._serving.shelves = [part.blobs for part in self._parts]

    def make_haste(self) -> None:
        """Serve in a run where others wait for each newcomer, as in one whose model is in
        stages."""
        self._is_hasty = True
        for group in self.groups.values():
            group.make_haste()

    # ---- what the shell asks

    def hello(self) -> say.Hello:
        """HELLO as of now; the door signs it."""
        states = tuple(held for part in self._parts if (held := part.held) is not None)
        return hello_of(self.card, self.stats, self._copy, states, takes_image=self._takes_image)

    @property
    def _takes_image(self) -> bool:
        """True as long as nothing that we have done hangs on records that we would pass over, and
        no gap is open: a copy has one at most."""
        return not (self._is_sorted or self.is_exchanging or self.ledger.first)

    @property
    def first(self) -> GroupPeer:
        """Our part in the first of our groups: in a run of one group all there is."""
        return self.groups[min(self.groups)]

    @property
    def plan_ids(self) -> frozenset[int]:
        """Names of the ops under way that this process takes part in."""
        parts = (part.exchanges for part in self._parts)
        return frozenset(plan_id for exchanges in parts for plan_id in exchanges)

    @property
    def is_exchanging(self) -> bool:
        """True if an op that this process takes part in is under way."""
        return any([part.exchanges for part in self._parts])  # asked after every event

    @property
    def is_informed(self) -> bool:
        """True if we have every record that WELCOME promised."""
        return self._welcome_index is not None and self.ledger.head_index >= self._welcome_index

    @property
    def next_wakeup_s(self) -> float:
        """Time at which tick() has something to do."""
        if self._copy.looks_back:
            return self._now_s
        wakeup_s = min(self._avoid_s, self._says_s)
        if self._serving.queues:
            wakeup_s = min(wakeup_s, *self._serving.wakeups())
        for part in self._parts:
            wakeup_s = min(wakeup_s, part.next_wakeup_s)
        return wakeup_s

    @property
    def applied_op(self) -> int:
        """Newest op of the first of our groups whose outcome is in place here, -1 without a
        state."""
        return self.first.place.applied_op

    @property
    def state_root(self) -> bytes:
        """Root of that state, b"" without one."""
        return self.first.place.state_root

    def address_of(self, peer: PeerId) -> Address:
        """Return a roster member's key and address, as far as we were told it. KeyError if it is
        not in the roster."""
        return Address(peer, self.view.roster[peer].curve_key, *self._listens.get(peer, ()))

    # ---- events from our own side

    def start(self, now_s: float) -> Actions:
        """First event: admit everybody whom our own ledger copy knows."""
        self._now_s = now_s
        return tuple(self._admit(peer for peer in self.view.roster if peer != self.card.peer_id))

    def keep_result(
        self, op: int, slices: Sequence[Sequence[Buffer]], group: int = FIRST_GROUP
    ) -> None:
        """Results that the shell kept on disk in an earlier life: chunks per slice."""
        if (part := self.groups.get(group)) is None:
            return  # they are of a group that we were in
        for chunks in slices:
            digests = [part.blobs.keep_result(op, chunk) for chunk in chunks]
            part.blobs.keep_result(op, b"".join(digests))

    def keep_state(
        self, manifest: bytes, chunks: Iterable[bytes], group: int = FIRST_GROUP
    ) -> None:
        """Part of a state that the shell kept on disk when an earlier life began to fetch it."""
        if (part := self.groups.get(group)) is not None:
            part.states.resume(manifest, chunks)

    def saved(self, op: int, root: bytes, group: int = FIRST_GROUP) -> None:
        """The state after `op` is on our disk, and has yet to be loaded: HELLO tells of it."""
        if (part := self.groups.get(group)) is not None:
            part.place.saved = say.Applied(op, root, group=group)

    def attach(
        self,
        op: int,
        manifest: StateManifest,
        chunks: tuple[Piece, ...],
        snapshot_rounds: int,
        now_s: float,
        fragments: tuple[int, ...] = (),
        group: int = FIRST_GROUP,
        *,
        is_given: bool = False,
    ) -> Actions:
        """The group's trainer is built; this is its state, op 0's offer or a restored op, and
        fragments. `is_given`: the offer is of weights that the organiser has given to all.

        It counts only if the ledger attests its root; otherwise the state is downloaded."""
        self._now_s = now_s
        if (part := self.groups.get(group)) is None:
            return ()  # we were moved out of it meanwhile
        part.states.attach(op, manifest, chunks, snapshot_rounds, fragments, is_given=is_given)
        return self._go_on([])

    def ready(
        self, op: int, contribution: Contribution, samples: int, now_s: float, pace: float = 0.0,
        group: int = FIRST_GROUP, since: int = -1, loss: float | None = None,
    ) -> Actions:  # fmt: skip
        """READY for `op`, of work that began from the anchor after `since`; too late, it is
        ignored: its outcome is on its way already. `loss`, the mean of its inner steps, is told
        where the run has a guard."""
        self._now_s = now_s
        if (part := self.groups.get(group)) is None:
            return ()
        taken = part.place.ready(op, contribution, samples, pace or None, since, loss)
        reports = part.place.reports(connected=self._connected)
        return (*self._warm(), *reports) if taken else ()

    def give_ahead(
        self, op: int, contribution: Contribution, start: int, now_s: float,
        group: int = FIRST_GROUP,
    ) -> Actions:  # fmt: skip
        """Our contribution to a pair op is known from value `start` on, before its inner steps:
        that part goes to the expected partner. The contribution is asked for no other values."""
        self._now_s = now_s
        if (part := self.groups.get(group)) is None:
            return ()
        part.ahead.give(op, contribution, start)
        return self._go_on([])

    def applied(
        self,
        op: int,
        manifest: StateManifest,
        chunks: tuple[Piece, ...] | None,
        now_s: float,
        group: int = FIRST_GROUP,
    ) -> Actions:
        """The trainer has done what LoadState or ApplyResult asked.

        Args:
            op: op whose state is now in place.
            manifest: describes that state; its root goes to the coordinator.
            chunks: bytes of the state, if they may be pinned as a snapshot (they must not change).
            now_s: the time.
            group: number of the group.
        """
        self._now_s = now_s
        if (part := self.groups.get(group)) is None:
            return ()
        part.place.applied(op, manifest.root)
        if chunks is not None and part.place.applied_op == op:  # neither void nor another's
            part.blobs.pin_snapshot(op, manifest, chunks, now_s)
            forget_kept(self._shelf, group, part.blobs.pinned)
        return self._go_on(part.place.reports(connected=self._connected))

    def leave(self, reason: str, now_s: float) -> Actions:
        """Go on purpose."""
        self._now_s = now_s
        for group in self.groups.values():
            group.ahead.stop()
        return (do.SendControl(self._progress()), do.SendControl(say.Leave(reason)))

    # ---- events from the control lane

    def control(self, message: say.CoordinatorMessage, now_s: float) -> Actions:
        """A message of the coordinator.

        Raises:
            RemoteFault: it contradicts the ledger or breaks the protocol.
        """
        self._now_s = now_s
        self.ledger.trim()
        actions: list[do.PeerAction] = []
        match message:  # the most frequent ones first
            case say.Listens():
                actions += self._on_listens(message)
            case say.Welcome():
                self.ledger.expect(message.run_key)
                self._connected = True
                for group in self.groups.values():
                    group.states.reconnected()
                self._welcome_index = message.now_index
                self._copy.forget_pieces()
                if not len(self.ledger) and message.now_index < 0:
                    raise RemoteFault("welcome", "the coordinator has no ledger")
                actions += self._resend()
            case say.Records() | say.Image():
                try:
                    if isinstance(message, say.Image):
                        actions += self._on_image(message)
                    else:
                        actions += self._on_records(message)
                except RemoteFault as fault:
                    if fault.reason != "snapshot":
                        raise
                    return self._halted("SWT-E562", f"{_OTHER_HISTORY} ({fault.detail}).")
            case say.Hashes():
                for part in self._parts:
                    actions += part.hashes(message, now_s)
            case say.Sheet():
                if (meant := self.groups.get(message.group)) is not None:
                    meant.sheet(message, now_s)
            case say.Accused():
                if (accused := self.groups.get(message.group)) is not None:
                    accused.audits.accused(message)
            case say.Finished():
                if (ended := self.groups.get(message.group)) is not None:
                    ended.place.finished_op, ended.place.final_loss = message.op, message.loss
            case say.Tell():
                # Its disk was restored from a backup; what it decided since is with us.
                index = message.first_index
                if index < self.ledger.first:  # older ones are not here
                    return (do.SendControl(say.History(self.ledger.first, ())),)
                stop = index + 1 if message.alone else None
                newer = next(batches(self.ledger.since(index, stop)), [])
                told = tuple(record.to_bytes() for record in newer)
                return (do.SendControl(say.History(message.first_index, told)),)
            case say.Keep():
                actions += self._keep(message)
            case say.Unreached():
                pass  # it is for people
            case say.Refused():
                return self._halted(message.code, message.text)
            case _:
                raise RemoteFault("type", f"{type(message).__name__} is not expected here")
        if not self._is_sorted and self.is_informed:
            # An earlier life may have missed a REWIND, or died of it.
            self._is_sorted = True
            for part in self._parts:
                actions += part.forget_after(part.view.last_op)
        return self._go_on(actions)

    def _halted(self, code: str, text: str) -> Actions:
        for group in self.groups.values():
            group.place.is_halted = True
        return (do.Halt(code, text),)

    def control_down(self, now_s: float) -> Actions:
        """The control connection closed; ops in progress go on as far as they can."""
        self._now_s = now_s
        self._connected = self._fills = False
        return ()

    def _on_listens(self, message: say.Listens) -> list[do.PeerAction]:
        """Hear where others can be dialled; it comes before the records that let them in, and maybe
        before the GONE of an earlier life."""
        self._listens.update(message.at)
        if len(self._listens) > limits.RUN_PEERS_MAX:
            others = [peer for peer in self._listens if peer not in self.view.roster]
            for peer in others[: -limits.RUN_PEERS_MAX]:
                del self._listens[peer]
        here = message.at.keys() & self.view.roster.keys() - {self.card.peer_id}
        return self._admit(sorted(here))

    def _on_image(self, message: say.Image) -> list[do.PeerAction]:
        """A piece of what a newcomer begins with."""
        if not self._takes_image:
            return []  # of an older connection
        before = set(self.view.roster)
        begun = self._copy.take_piece(message)
        if begun is None:
            return []
        actions: list[do.PeerAction] = [do.LedgerBegins(*begun)]
        actions += [do.RevokePeer(peer) for peer in before - self.view.roster.keys()]
        actions += self.start(self._now_s)
        if groups := self.view.groups_of(self.card.peer_id):
            actions += self._moved(groups)
        for part in self._parts:
            part.roster_changed()
        return [*actions, do.SendControl(self._progress())]

    def _keep(self, message: say.Keep) -> list[do.PeerAction]:
        """Hear which older records we are to hold."""
        self._fills = message.all
        forgotten = self._copy.forget_past() if message.frees else None
        if forgotten is None:
            return self._ask_older()
        return [do.LedgerBegins(*forgotten, frees=True), do.SendControl(self._progress())]

    def _ask_older(self) -> list[do.PeerAction]:
        """Records that we lack come one message after the other, the newest first."""
        is_asking = self._fills and self.ledger.first
        return [do.SendControl(say.Older(self.ledger.first))] if is_asking else []

    def _on_older(self, message: say.Records) -> list[do.PeerAction]:
        stop = message.first_index + len(message.records)
        if not self._fills or stop != self.ledger.first or not message.records:
            return []  # not asked for any more
        taken = self._copy.prepend(message.records)
        actions: list[do.PeerAction] = [*map(do.RecordAccepted, taken)]
        if not self.ledger.first:
            actions.append(do.SendControl(self._progress()))
        return actions + self._ask_older()

    def _on_records(self, message: say.Records) -> list[do.PeerAction]:
        if message.first_index < self.ledger.first:
            return self._on_older(message)
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
            roster_changed = roster_changed or isinstance(body, Join | Gone | Move)
        if roster_changed:
            for part in self._parts:
                part.roster_changed()
        # Of a crowd nobody waits for one's word: it would double what all say.
        is_awaited = roster_changed and len(self.view.roster) <= limits.CROWD_PEERS
        if is_awaited or self._unsaid_bytes >= limits.RECORDS_BATCH_BYTES // 2:
            actions.append(do.SendControl(self._progress()))
        return actions

    def _follow(self, body: AnyBody) -> list[do.PeerAction]:
        """Follow one new record."""
        me = self.card.peer_id
        if isinstance(body, Join) and body.peer != me:  # the most frequent ones first
            return self._admit((body.peer,))
        if isinstance(body, Gone):
            self._serving.forget(body.peer)
            for part in self._parts:
                part.forget(body.peer)
            return [do.GivenUp() if body.peer == me else do.RevokePeer(body.peer)]
        if isinstance(body, Join | Move) and body.peer == me:
            why = body.why if isinstance(body, Move) else None
            return self._moved(self.view.groups_of(me), why)
        if not isinstance(body, OfGroup):
            return []
        parts = [part for part in self._parts if part.view.group == body.group]
        return self._follow_group(parts[0], body) if parts else []

    def _follow_group(self, part: GroupPeer | Keeper, body: OfGroup) -> list[do.PeerAction]:
        actions = part.follow(body, self._now_s)
        if isinstance(body, Plan):
            givers = {member.peer for member in body.members if member.weight}
            self._serving.have_state(givers, part.blobs)
            actions = [*self._warm(), *actions]
        for plan_id in part.exchanges:  # some frames may have been here before
            for peer, frame in self._early.take(plan_id):
                actions += self.frame(peer, frame, self._now_s)
        if isinstance(part, GroupPeer) and isinstance(body, Plan | Rewind) and part.place.has_next:
            actions += part.place.reports(connected=self._connected)
        return actions

    def _moved(self, groups: tuple[int, ...], why: str | None = None) -> list[do.PeerAction]:
        """JOIN, or MOVE for a reason, of ours: what we are in, and what we keep."""
        kept = self.view.keeps_of(self.card.peer_id)
        is_moved = set(groups) != self.groups.keys()
        for number in self.groups.keys() - set(groups):
            self.groups.pop(number).leave()
        for number in sorted(set(groups) - self.groups.keys()):
            self._enter(number)
        for number in self.keepers.keys() - set(kept):
            self.keepers.pop(number).leave(forgets=why is not None)
        for number in sorted(set(kept) - self.keepers.keys()):
            self._enter_keeper(number)
        self._sort_parts()
        return [do.Moved(groups, why or "")] if is_moved else []

    # ---- events from the data lane

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> Actions:
        """Take a frame of an authenticated peer. A breach of the protocol is not used but named."""
        self._now_s = now_s
        try:
            return self._on_frame(peer, frame)
        except RemoteFault as fault:
            exchange = self._exchange_of(frame)
            told = exchange.fault_report(frame.slice_index) if exchange is not None else []
            return (do.PeerFault(peer, fault.reason, fault.detail), *told)

    def _on_frame(self, peer: PeerId, frame: Frame) -> Actions:
        # Without a ledger yet we cannot know the run; we hold nothing of it either.
        if self.view.run_tag not in (0, frame.run_tag):
            raise RemoteFault("run", "a frame of another run")
        if frame.kind is FrameKind.BLOB:
            return self._on_blob(peer, frame.body)
        if frame.kind is FrameKind.GET:
            answer = self._serving.asked(peer, frame.body, frame.run_tag, self._now_s)
            return self._go_on([]) if answer is None else (do.SendFrame(peer, answer),)
        if frame.kind in _OF_FETCHES:
            heard: list[do.PeerAction] = []
            for part in self._parts:
                heard += part.heard(peer, frame, self._now_s)
            return tuple(heard) if heard else self._go_on([])
        if frame.kind in (FrameKind.PART, FrameKind.SUM, FrameKind.RESULT):
            for part in self._parts:
                part.flow(peer, self._now_s)
        exchange = self._exchange_of(frame)
        if exchange is None or exchange.is_early(frame):
            self._keep_early(peer, frame)
            return ()
        actions = exchange.frame(peer, frame, self._now_s)
        return self._go_on(actions) if frame.kind is FrameKind.RESULT else tuple(actions)

    def _on_blob(self, peer: PeerId, body: Buffer) -> Actions:
        digest = content_hash(body)
        found: list[do.PeerAction] = []
        for part in self._parts:
            found += part.arrived(peer, digest, body, self._now_s)
        return self._go_on(found)

    def _exchange_of(self, frame: Frame) -> Exchange | None:
        """Our part in the op that a frame is of."""
        if frame.kind is FrameKind.AHEAD:
            group = self.groups.get(frame.slice_index)
            return None if group is None else group.exchange_in(frame.set_id)
        for part in self._parts:
            if frame.plan_id in part.exchanges:
                return part.exchanges[frame.plan_id]
        return None

    def _keep_early(self, peer: PeerId, frame: Frame) -> None:
        if frame.kind is not FrameKind.AHEAD:
            self._early.keep(peer, frame, self._now_s)
        elif frame.slice_index in self.groups:
            self.groups[frame.slice_index].ahead.heard(peer, frame)

    # ---- time, and what falls due after any event

    def tick(self, now_s: float) -> Actions:
        """The time that `next_wakeup_s` asked for has come."""
        self._now_s = now_s
        actions: list[do.PeerAction] = []
        if self._copy.looks_back:
            try:
                self._copy.look_back()
            except RemoteFault as fault:
                return self._halted("SWT-E562", f"{_OTHER_HISTORY} ({fault.detail}).")
        is_time = now_s >= self._avoid_s
        if is_time:
            self._avoid_s = now_s + limits.PROGRESS_S
            self._early.age(now_s)
            for part in self._parts:
                part.avoid(now_s + 2 * limits.PROGRESS_S)
        if now_s >= self._says_s:
            self._said_s, self._was_exchanging = now_s, self.is_exchanging
            if self._connected:
                actions.append(do.SendControl(self._progress()))
        if is_time:
            actions += self._warm()
        for part in self._parts:
            actions += part.tick(now_s)
        return self._go_on(actions)

    def _go_on(self, actions: list[do.PeerAction]) -> Actions:
        """Sync, apply what is due, and ask for what is missing."""
        is_informed = self.is_informed
        for part in self._parts if is_informed else ():
            actions += part.advance(self._now_s, connected=self._connected)
        busy = [part for part in self._parts if not part.is_idle]
        is_serving = self._serving.queues or self._serving.owed_bytes > 0
        if not self.view.run_tag or not (busy or is_serving):
            return tuple(actions)
        # After all else: what joiners asked for, as far as our own exchanges leave room.
        tag, in_op, stats = self.view.run_tag, self.is_exchanging, self.stats
        for part in busy:
            actions += part.requests(self._now_s)
        pieces = self._serving.due(
            tag, stats.up_bytes_per_s, in_op=in_op, now_s=self._now_s, is_leaving=stats.is_leaving
        )
        actions += [do.SendFrame(peer, frame) for peer, frame in pieces]
        for part in busy:
            actions += part.gifts(self._now_s, in_op=in_op)
        return tuple(actions)

    # ---- small parts

    def _admit(self, peers: Iterable[PeerId]) -> list[do.PeerAction]:
        """Admit peers. As long as all that are here fit into one op, each will send to each: ways
        are made at once, and who finds that there is none says so before it matters (T20)."""
        addresses = [self.address_of(peer) for peer in peers]
        actions: list[do.PeerAction] = [do.AllowPeer(address) for address in addresses]
        if addresses and len(self.view.roster) <= limits.CELL_PEERS_MAX:
            actions.append(do.WarmWays(tuple(address.peer_id for address in addresses)))
        return actions

    def _warm(self) -> list[do.PeerAction]:
        """Have ways where frames will soon go: a handshake takes four round trips. Said again every
        PROGRESS_S, as who is READY may wait for longer than an idle way is kept."""
        parts = [part for part in self.groups.values() if part.is_about_to_send]
        soon = {peer for part in parts for peer in part.receivers()}
        return [do.WarmWays(tuple(sorted(soon)))] if soon else []

    @property
    def _says_s(self) -> float:
        """Time of the next PROGRESS."""
        # Once more after an op: until it hears that, the coordinator has no more patience.
        is_busy = self.is_exchanging or self._was_exchanging or not self.is_informed
        return self._said_s + (limits.PROGRESS_S if is_busy else self.view.progress_s)

    def _resend(self) -> list[do.PeerAction]:
        """After HELLO: whatever the coordinator may have missed. All of it is idempotent."""
        actions: list[do.PeerAction] = [do.SendControl(self._progress())]
        for part in self._parts:
            actions += part.resend(self._now_s)
        return actions

    def _progress(self) -> say.Progress:
        self._unsaid_bytes = 0
        groups = self.groups.values()
        is_syncing = any(group.states.is_syncing for group in groups)
        phase = "syncing" if is_syncing else self.stats.phase
        replayed = sum(group.place.replayed_ops for group in groups)
        state_bytes = sum(group.states.download.bytes_here for group in groups)
        return progress_of(self.stats, self.ledger, phase, replayed, state_bytes)

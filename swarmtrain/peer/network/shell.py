"""A peer's network side: the participant, its two lanes and its timer on one asyncio loop.

Thin on purpose: it hands events to the machine and does what the machine asks, in order. Actions
for the trainer go to `to_trainer`; answers come back through methods that the network thread calls
on this loop. Not here: any decision, any tensor.
"""

import asyncio
import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.config.owner_limits import NO_LIMITS
from swarmtrain.credit.lifetime import Keeper
from swarmtrain.foundation import dirs, supervisor
from swarmtrain.foundation.errors import UserError, cleaned, refused, run_over, translate
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.disk.recall import recall
from swarmtrain.peer.disk.shelf import DiskShelf
from swarmtrain.peer.disk.spill_file import SpillFile
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network import forked
from swarmtrain.peer.network.bandwidth import Bandwidth
from swarmtrain.peer.network.complaints import Complaints
from swarmtrain.peer.network.control import (
    PIECE_BYTES_MAX,
    ControlClient,
    CoordinatorUnreachable,
    DoorRefused,
)
from swarmtrain.peer.network.meetings import Meetings
from swarmtrain.peer.network.stage_lane import MakePeer, StageLane
from swarmtrain.peer.network.staged_death import FreezingLink
from swarmtrain.peer.network.steadiness import Change, watch
from swarmtrain.peer.network.whereabouts import Unreachable, Whereabouts
from swarmtrain.peer.view import LEFT, PeerView, TrainerNote, ended_note
from swarmtrain.peer.wishes import Wishes
from swarmtrain.pipeline.costs import span_words
from swarmtrain.pipeline.stage_peer import End, Part
from swarmtrain.port_mapping.mapper import Mapper, families
from swarmtrain.status import StatusServer
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.errors import RemoteFault, TransportError
from swarmtrain_transport.links.link import Link, PeerId
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.pipeline.peer.requests import Evaluated
from swarmtrain_transport.pipeline.wire.encoding import HOP_FRAMES
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import (
    UNSAID,
    Brings,
    CoordinatorMessage,
    LeaseGrant,
    Leave,
    PeerMessage,
    PipelineOrder,
    Released,
    Tried,
    Unreached,
    Waiting,
    Welcome,
)
from swarmtrain_transport.wire.records import Record, Sign, Turn, Verify
from swarmtrain_transport.wire.text_place import TextPlace

GIVEN_UP = "SWT-E710"

Frozen = Callable[[int, int, int], None]
"""Hears of a rehearsed death: round, chunks sent, chunks in all."""

ForTrainer = (
    Welcome | LeaseGrant | Waiting | do.LoadState | do.ApplyResult | do.OpSkipped | do.RunFinished
    | do.Moved | Part | Evaluated | Released | UserError
)  # fmt: skip
"""Events that the training thread hears of; `do.Moved`, parts and `Evaluated` are a
pipeline's."""

_INFORMED_LOOK_S = 0.05
"""Pause between two looks whether the ledger is here, which takes a round trip or two."""


class PeerShell:
    """One peer's network side.

    Args:
        options: the run's invite, this peer's name, and its owner's settings of the link. A peer
            that was in the run before waits in any case, unless the run is finished.
        storage: state directory.
        identity: keys.
        to_trainer: hears of what concerns training; called on this loop, must not block.
        rng: source of pauses and of the choice among equal donors.
        brings: words for the door on model and data.
        freeze: rehearsal of a death: in which round, and who is told.
        wishes: hears the owner's orders.
        loop: clock and timers; None for the running loop.
    """

    def __init__(
        self,
        options: JoinOptions,
        storage: PeerStorage,
        identity: Identity,
        *,
        to_trainer: Callable[[ForTrainer], None],
        rng: random.Random,
        brings: Brings = UNSAID,
        freeze: tuple[int, Frozen] | None = None,
        wishes: Wishes | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._options, self._invite, self._limits = options, options.invite, NO_LIMITS
        self._storage, self._identity = storage, identity
        self._to_trainer, self._rng, self._freeze = to_trainer, rng, freeze
        self._brings = msgspec.structs.replace(brings, run=options.invite.run)
        self._mapper: Mapper | None = None
        self._note = TrainerNote()
        self.wishes = wishes or Wishes(time.monotonic)
        self._has_left = False
        self._waiting = (Waiting(""), 0.0)
        self._link: Link | None = None
        self._zmq: ZmqLink | None = None
        self._meetings: Meetings | None = None
        self._participant: Participant | None = None
        self._control: ControlClient | None = None
        self._status: StatusServer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = loop or asyncio.get_running_loop()
        self._fault: UserError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._config_hash = b""
        self._unreached = Unreachable()
        self._complaints = Complaints(self._loop.time)
        self._bandwidth: Bandwidth | None = None
        self._keeper: Keeper | None = None
        self._spill = SpillFile(storage.directory)
        self._make_stages: MakePeer | None = None
        self._stages: StageLane | None = None
        self._trains_expert = False
        self._expert: int | None = None
        self._term = 0

    # ---- life

    async def run(self) -> None:
        """Listen, connect, and go on until `close`.

        Raises:
            UserError: the coordinator cannot be reached or refuses; nothing can be listened on.
        """
        options, caps, listen = self._options, self._options.caps, self._options.listen
        self._limits = self.wishes.read()
        gate = TokenBucket(self._limits.caps(caps).down, self._now_s())
        zmq_link = await ZmqLink.open(self._identity, listen.host, listen.port, self, gate)
        forked.holders.add(self)
        try:
            here = Endpoint(listen.host, zmq_link.address.port)
            where = Whereabouts(options.advertise, here)
            self._start_machine(zmq_link, where.port, gate)
            self._meetings = Meetings(
                self._loop, zmq_link, self._coordinator_s_end, self.send, self._name_of,
                told=lambda: (*where.places(), *(self._mapper.places() if self._mapper else ())),
                relay_bytes_per_s=caps.relay, relay_daily=caps.relay_daily,
            )  # fmt: skip
            if options.maps:
                self._mapper = Mapper(
                    here.port, self._meetings.tell_places,
                    versions=families(here.host, ("", "::")),
                )  # fmt: skip
                self._mapper.start()
            self._status = StatusServer(self._storage.directory, self._view, obey=self.wishes.hear)
            await self._status.open()
            assert self._participant is not None
            view = self._participant.view
            done = min(group.committed for group in view.groups.values())
            is_over = self._storage.is_over(done, view.rounds)
            waits = options.waits or (self._storage.ledger.num_records > 0 and not is_over)
            self._control = ControlClient(
                self._invite, self._identity, self._participant.hello, self, rng=self._rng,
                prepare=partial(where.tell, self._participant), waits=waits,
                holding=self._holding,
                forgotten=partial(self._changed, Change(is_forgotten=True)),
            )  # fmt: skip
            self.spawn(watch(self._changed))
            if (pause_s := supervisor.watchdog_s()) > 0.0:
                self.spawn(_live(pause_s))
            try:
                await self._control.run()
            except (CoordinatorUnreachable, DoorRefused) as error:
                if not is_over:
                    raise
                first = self._storage.of(self._participant.first.view.group)
                self._note = ended_note(done, str(first.checkpoints))
                if isinstance(error, DoorRefused):
                    raise
                raise run_over(self._invite.run, str(first.checkpoints)) from error
            if self._fault is not None:
                raise self._fault
        finally:
            forked.holders.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            if self._status is not None:
                await self._status.close(keeps_answering=self._has_left or bool(self._note.result))
            if self._mapper is not None:
                await self._mapper.close()
            if self._meetings is not None:
                self._meetings.close()
            zmq_link.close()
            self._participant = None
            self._spill.close()
            if self._keeper is not None:
                self._keeper.write(self._keeper.file(self.bytes_moved, time.time()))
            if self._bandwidth is not None:
                self._bandwidth.close()  # the last: it writes, and a disk may be full

    def _start_machine(self, zmq_link: ZmqLink, port: int, gate: TokenBucket) -> None:
        card = Card(
            self._identity.peer_id, os.urandom(8), self._options.name, self._identity.curve_key,
            "", port, brings=self._brings,
        )  # fmt: skip
        self._zmq = zmq_link
        self._keeper = Keeper(dirs.lifetime_dir(), self._identity.peer_id, self._options.name)
        for run in self._storage.ledger.read(0, 1):
            self._keeper.take(run)
        self._bandwidth = Bandwidth(
            zmq_link, self._loop, self._limits.caps(self._options.caps),
            self._storage.directory, gate,
        )  # fmt: skip
        self._begin(card, self._bandwidth, self._identity.sign, verify)

    def _begin(self, card: Card, link: Link, sign: Sign, verify: Verify) -> None:
        """Go on from what the state directory holds."""
        records = map(self._kept, self._storage.records)
        participant = self._participant = Participant(
            card, CodecArithmetic(), sign, verify, self._shuffled,
            records, self._now_s(), Retention(self._spill), self._storage.ledger,
            self._storage.beginning(), DiskShelf(self._storage.directory),
        )  # fmt: skip
        recall(self._storage, participant)
        self._link = link
        if self._freeze is not None:
            self._link = FreezingLink(link, participant, *self._freeze)
        self._act(participant.start(self._now_s()))

    def _holding(self) -> str:
        """Say what this peer has, for who waits long for a coordinator, and how it gets more."""
        op = -1 if self._participant is None else self._participant.applied_op
        had = f"the weights after round {op}" if op >= 0 else "no weights of the run yet"
        return (
            f"This peer has {had}, in {self._storage.directory}. Should the run have ended "
            "meanwhile, a peer that was there to its end has the model: its owner makes a folder "
            "of it with `swarmtrain export DIR --to FOLDER`, DIR being that peer's directory."
        )

    async def close(self) -> None:
        """Send what is queued and end `run`."""
        if self._control is not None:
            await self._control.close()

    def ends(self) -> tuple[list[int], list[forked.Name]]:
        """See `forked.Holder`."""
        names: list[forked.Name] = [] if self._zmq is None else [*self._zmq.peers_at()]
        if self._control is not None and self._control.other_end is not None:
            names.append(self._control.other_end)
        if self._status is not None:
            names.append(str(self._status.path))
        return [self.listening_port] if self.listening_port else [], names

    def _shuffled(self, peers: Sequence[PeerId]) -> list[PeerId]:
        return self._rng.sample(list(peers), len(peers))

    def _now_s(self) -> float:
        return self._loop.time()

    # ---- from the training thread, called on this loop

    def note(self, note: TrainerNote) -> None:
        """Note the trainer's phase."""
        self._note = note

    def leaves(self) -> None:
        """Tell later who asks for `status` that this peer has left, if it ever had a state."""
        participant = self._participant
        self._has_left = participant is not None and participant.applied_op >= 0

    def machine(self, event: Callable[[Participant, float], Actions]) -> None:
        """Give the participant an event of the trainer's."""
        participant = self._participant
        if participant is not None:
            self._guarded(lambda: event(participant, self._now_s()))

    def serve_stages(self, make: MakePeer) -> None:
        """Serve stages of the model, as soon as the ledger says which: then the trainer hears MOVED
        with their numbers.

        Args:
            make: makes the peer of the pipeline.
        """
        self._make_stages = make
        if self._participant is not None:
            self._participant.make_haste()
        self._guarded(self._begin_stages)

    def train_expert(self) -> None:
        """Train an expert, as soon as the ledger says which: then the trainer hears MOVED. A later
        MOVE to another one is the end of this process's part in the run."""
        self._trains_expert = True
        if self._participant is not None:
            self._participant.make_haste()
        self._guarded(self._begin_expert)

    def part_made(self, end: End) -> None:
        """The trainer has made a part of the pipeline's work."""
        stages = self._stages
        if stages is not None and self._participant is not None:
            self._guarded(lambda: stages.made(end))

    def send(self, message: PeerMessage) -> None:
        """Send a control message that is not the machine's, such as a lease request."""
        if self._control is not None:
            self._control.send(message)

    async def has_begun(self, group: int) -> bool:
        """Return True if the run has a first state of this group, once all is here that WELCOME
        has promised of the ledger."""
        while self._participant is not None and not self._participant.is_informed:
            await asyncio.sleep(_INFORMED_LOOK_S)
        view = self._participant.view.groups.get(group) if self._participant else None
        return view is not None and view.genesis is not None

    async def fetch_piece(self, digest: bytes, *, bytes_max: int = PIECE_BYTES_MAX) -> bytes:
        """A piece of text by its hash."""
        assert self._control is not None
        return await self._control.fetch_piece(digest, bytes_max=bytes_max)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside; it ends with this peer, and its failure is this peer's."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            told = translate(error) or UserError("SWT-E901", f"A network task failed: {error!r}.")
            self._fail(told)

    @property
    def is_exchanging(self) -> bool:
        """True if an op that this process takes part in is under way."""
        return self._participant is not None and self._participant.is_exchanging

    def is_planned(self, op: int, group: int) -> bool:
        """Return True if our copy of the ledger has the PLAN of an op."""
        return self._participant is not None and self._participant.view.groups[group].next_op > op

    def text_at(self, op: int, group: int) -> TextPlace | None:
        """Return where the run was in its text when an op was planned, if that is known."""
        participant = self._participant
        return None if participant is None else participant.view.groups[group].text_at(op)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of the run's subspace, as far as our copy of the ledger goes."""
        return () if self._participant is None else self._participant.view.turns

    @property
    def num_others(self) -> int:
        """Number of other peers in the roster."""
        participant = self._participant
        if participant is None:
            return 0
        roster = participant.view.roster
        return len(roster) - (self._identity.peer_id in roster)

    @property
    def is_connected(self) -> bool:
        """True if the control lane is up."""
        return self._control is not None and self._control.is_up

    def _changed(self, change: Change) -> None:
        """Make anew what a sleep, a lost address or a router has ended, and go on at once where
        there may be a network again."""
        assert self._control is not None and self._zmq is not None
        self._zmq.renew(change.dead)
        self._control.renew(change.dead)
        if self._meetings is not None:
            self._meetings.tell_places()

    def _name_of(self, peer: PeerId) -> str:
        participant = self._participant
        join = None if participant is None else participant.view.roster.get(peer)
        return cleaned(join.name) if join is not None else peer.hex()[:8]

    def _coordinator_s_end(self) -> tuple[str, int] | None:
        if self._control is None or not self._control.by_proxy:
            return None if self._control is None else self._control.other_end
        return self._control.address  # for the proxy to reach

    @property
    def listening_port(self) -> int:
        """TCP port of the data lane, 0 before it is open."""
        return self._zmq.address.port if self._zmq is not None else 0

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, both lanes; also after the end."""
        control, link = self._control, self._zmq
        up, down = (control.bytes_out, control.bytes_in) if control is not None else (0, 0)
        if link is not None:
            up, down = up + link.stats.bytes_sent, down + link.stats.bytes_received
        return up, down

    # ---- ControlHandler

    def on_up(self, *, is_first: bool) -> None:
        """The knock was sent; WELCOME tells the machine."""

    def on_down(self) -> None:
        """The control lane went away."""
        self._waiting = (Waiting(""), 0.0)
        self.machine(lambda participant, now_s: participant.control_down(now_s))

    def on_message(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator."""
        if isinstance(message, LeaseGrant | Waiting | Released):
            self._to_trainer(message)
            if isinstance(message, Waiting):
                self._waiting = (message, self._now_s())
            return
        if isinstance(message, Unreached):
            self._unreached.told(message)
            return
        if isinstance(message, Tried):
            if self._mapper is not None:
                self._mapper.reached(message.host, message.port, is_open=message.is_open)
            return
        if self._meetings is not None and self._meetings.heard(message):
            return
        if isinstance(message, Welcome):
            self._config_hash = hashlib.sha256(message.run).digest()
            if self._keeper is not None:
                self._keeper.knows(message.run)
            if self._meetings is not None:
                self._meetings.welcomed()
            self._to_trainer(message)
        if isinstance(message, PipelineOrder):
            stages = self._stages
            if stages is not None:
                self._guarded(lambda: stages.told(message))
            return
        self.machine(lambda participant, now_s: participant.control(message, now_s))
        if isinstance(message, Welcome):
            self._term = message.term
            if self._stages is not None:
                self._stages.welcomed(self._term)
        self._guarded(self._begin_stages)
        self._guarded(self._begin_expert)

    # ---- LinkHandler

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """A frame of another peer."""
        if frame.kind in HOP_FRAMES:
            self._guarded(lambda: self._on_hop(peer, frame))
            return
        if isinstance(self._link, FreezingLink):
            self._link.heard(frame)
        self.machine(lambda participant, now_s: participant.frame(peer, frame, now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """The link refused something; it has counted it."""
        self._complaints.mention(peer, fault)

    def _on_hop(self, peer: PeerId, frame: Frame) -> None:
        """A message between two peers of a pipeline; before ours is there nobody can mean us."""
        participant, stages = self._participant, self._stages
        if participant is None or stages is None:
            return
        try:
            if frame.run_tag != participant.view.run_tag:
                raise RemoteFault("run", "a frame of another run")
            stages.heard(peer, frame)
        except RemoteFault as fault:
            self._complaints.count(peer, fault.reason, fault.detail)

    # ---- stages

    def _begin_stages(self) -> None:
        participant, make = self._participant, self._make_stages
        if self._stages is not None or make is None or participant is None:
            return
        card, groups = participant.card, sorted(participant.groups)
        if not participant.is_informed or not groups:
            return
        assert self._link is not None
        self._stages = StageLane(
            make, Process(card.peer_id, card.boot), Span(groups[0], groups[-1]),
            participant.view.run_tag, send=self._link.send, tell=self.send,
            to_trainer=self._to_trainer, begin_anew=self._expelled, clock=self._now_s,
        )  # fmt: skip
        self._stages.welcomed(self._term)
        self._to_trainer(do.Moved(tuple(groups)))

    def _begin_expert(self) -> None:
        participant = self._participant
        if not self._trains_expert or self._expert is not None or participant is None:
            return
        if participant.is_informed and participant.groups:
            self._expert = min(participant.groups)
            self._to_trainer(do.Moved((self._expert,)))

    def _expelled(self, what: str = "The run has gone on without this peer.") -> None:
        """Whatever this process counts from now on is in no book: another one takes its place.

        Raises:
            UserError: SWT-E710.
        """
        raise UserError(
            GIVEN_UP,
            what,
            "Its counts of the round are not in the run.",
            "`swarmtrain join` begins anew by itself.",
        )

    # ---- the machine's wishes

    def _guarded(self, event: Callable[[], Actions | None]) -> None:
        """An event that must not tear down the loop: a fault ends this peer with its reason."""
        try:
            self._refresh()
            if self._bandwidth is not None:
                self._bandwidth.check_allowance(
                    is_exchanging=self.is_exchanging, lacks=self._lacks()
                )
            self._act(event() or ())
        except (TransportError, UserError, OSError) as error:
            self._fail(translate(error) or UserError("SWT-E502", str(error)))
        except Exception as error:
            # The loop would only log a bug, and the trainer wait for ever.
            told = UserError("SWT-E901", f"The network side failed: {error!r}.")
            told.__cause__ = error
            self._fail(told)

    def _lacks(self) -> int:
        """Return the bytes of the run's weights while they are not here; of stages and experts
        nobody knows yet which."""
        participant = self._participant
        if participant is None or participant.applied_op >= 0 or len(participant.view.groups) > 1:
            return 0
        genesis = participant.view.first.genesis
        return 4 * genesis.num_values if genesis is not None else 0

    def _fail(self, error: UserError) -> None:
        if self._fault is None:
            self._fault = error
            self._to_trainer(error)
            self.send(Leave(error.kind.title))
            self.spawn(self.close())

    def _act(self, actions: Actions) -> None:
        assert self._link is not None
        accepted: list[Record] = []
        moved: do.Moved | None = None
        is_given_up = False
        for action in actions:
            match action:
                case do.GivenUp():
                    is_given_up = self._stages is not None
                case do.Moved():
                    moved = action
                case do.SendControl():
                    self.send(action.message)
                case do.SendFrame():
                    self._link.send(action.peer, action.frame)
                case do.AllowPeer():
                    self._link.allow(action.address)
                case do.WarmWays():
                    self._link.warm(action.peers)
                case do.RevokePeer():
                    self._link.revoke(action.peer)
                case do.RecordAccepted():
                    accepted.append(action.record)
                case do.LedgerBegins():
                    self._kept(action.run)
                    self._storage.begin_ledger(
                        action.run, action.snapshot, action.image, frees=action.frees
                    )
                case do.Rewound():
                    self._storage.of(action.group).forget_results_after(action.op)
                case do.DownloadBegun():
                    self._storage.of(action.group).begin_download(action.manifest)
                case do.KeepChunk():
                    self._storage.of(action.group).keep_chunk(action.digest, action.data)
                case do.KeepProof():
                    self._storage.of(action.group).keep_proof(action.op, action.data)
                case do.PeerFault():
                    self._complaints.count(action.peer, action.reason, action.detail)
                case do.Halt():
                    self._fail(refused(action.code, action.text))
                case do.LoadState() | do.ApplyResult() | do.OpSkipped() | do.RunFinished():
                    self._check_run()
                    self._to_trainer(action)
        if accepted:
            self._storage.append_records(accepted)
            for record in accepted:
                self._kept(record)
        if moved is not None and self._stages is not None:
            served = self._stages.peer.machine.span
            before = span_words(range(served.first, served.last + 1))
            after = span_words(range(moved.groups[0], moved.groups[-1] + 1))
            self._expelled(f"It moves from {before} to {after}: {cleaned(moved.why)}.")
        if moved is not None and self._expert is not None and moved.groups[0] != self._expert:
            to = f"from expert {self._expert} to expert {moved.groups[0]}"
            self._expelled(f"It moves {to}: {cleaned(moved.why)}.")
        if is_given_up:
            self._expelled()
        self._sleep()

    def _check_run(self) -> None:
        """The run file that WELCOME brought must be the one that the ledger names."""
        assert self._participant is not None
        run = self._participant.view.run
        if run is None or run.config_hash != self._config_hash:
            raise RemoteFault("run", "the run file is not the one that the ledger names")

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._participant is not None:
            wakeup_s = self._participant.next_wakeup_s
            if self._stages is not None:
                wakeup_s = min(wakeup_s, self._stages.next_wakeup_s)
            self._timer = self._loop.call_at(wakeup_s, self._wake)

    def _wake(self) -> None:
        self.machine(lambda participant, now_s: participant.tick(now_s))
        if self._stages is not None:
            self._guarded(self._stages.tick)

    # ---- numbers

    def _kept(self, record: Record) -> Record:
        """The record, which the user's totals have heard of."""
        return record if self._keeper is None else self._keeper.take(record)

    def _refresh(self) -> None:
        """Bring the numbers of PROGRESS up to date."""
        participant, link, control = self._participant, self._zmq, self._control
        if participant is None or link is None:
            return
        stats = participant.stats
        stats.unreached = link.unreached(limits.UNREACHED_S)[: limits.CELL_PEERS_MAX]
        stats.relayed = self._meetings.heard_by_relay() if self._meetings is not None else ()
        stats.bytes_in, stats.bytes_out = link.stats.bytes_received, link.stats.bytes_sent
        if self._bandwidth is not None:
            if (limits_now := self.wishes.read()) != self._limits:
                self._limits = limits_now
                self._bandwidth.cap(limits_now.caps(self._options.caps))
            self._bandwidth.look(participant, sum(self.bytes_moved), self._now_s())
        if control is not None:
            stats.control_bytes_in, stats.control_bytes_out = control.bytes_in, control.bytes_out
        if self._keeper is not None and self._keeper.look(
            self._now_s(), works=self.is_connected and not self.wishes.is_paused
        ):
            data = self._keeper.file(self.bytes_moved, time.time())
            self.spawn(asyncio.to_thread(self._keeper.write, data))
        stats.phase, stats.step, stats.loss = self._note.phase, self._note.step, self._note.loss
        stats.tokens_per_s, stats.tokens = self._note.tokens_per_s, self._note.tokens

    def _view(self) -> PeerView:
        self._refresh()
        assert self._participant is not None and self._zmq is not None
        participant, note, (waiting, told_s) = self._participant, self._note, self._waiting
        stats, me = participant.stats, self._identity.peer_id
        limits_now, caps = self._limits, self._limits.caps(self._options.caps)
        seen_s = waiting.seen_s
        return PeerView(
            run=self._invite.run,
            name=self._options.name,
            peer=me.hex(),
            state=LEFT if self._has_left and not note.result else stats.phase,
            round=max(0, participant.applied_op),
            step=stats.step,
            loss=stats.loss,
            tokens_per_s=stats.tokens_per_s,
            tokens=stats.tokens,
            bytes_up=stats.bytes_out + stats.control_bytes_out,
            bytes_down=stats.bytes_in + stats.control_bytes_in,
            state_root=participant.state_root.hex(),
            connected=self.is_connected,
            refused_frames=dict(self._complaints.counts + Counter(self._zmq.stats.refused)),
            ignored_frames=dict(stats.ignored),
            audits=dict(participant.first.audits.counts),
            chain=participant.first.view.chains.get(me, b"").hex(),
            waiting_for="" if self._has_left else cleaned(waiting.text),
            waiting_seen_s=None if seen_s is None else seen_s + self._now_s() - told_s,
            result=note.result,
            unit=note.unit,
            limits=limits_now.in_words(self._options.caps),
            unreachable=self._unreached.words,
            ways=self._meetings.words() if self._meetings is not None else "",
            paused=self.wishes.words,
            caps={"up": caps.up, "down": caps.down, "daily": caps.daily},
            today=self._bandwidth.today if self._bandwidth is not None else 0,
        )


async def _live(pause_s: float) -> None:
    """Tell the supervisor that this loop lives."""
    while True:
        supervisor.say("WATCHDOG=1")
        await asyncio.sleep(pause_s)

"""One simulated peer: the production participant, driver and strategy around a pretended trainer.

Only what touches the world is replaced: the clock, the two lanes, the disk, and inner steps, which
draw a difference instead of computing one.
"""

import contextlib
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from ipaddress import IPv6Address
from typing import Protocol

from swarmtrain.peer.training.machine import (
    Action,
    Applied,
    GiveAhead,
    KeepResult,
    Loaded,
    Ready,
    TrainingMachine,
    tell,
)
from swarmtrain.peer.training.state_image import StateImage, image_of
from swarmtrain.simulate.checks.way_checks import WayChecks
from swarmtrain.simulate.ground.conditions import SNAPSHOT_ROUNDS
from swarmtrain.simulate.ground.control import RECONNECT_S, ControlLanes
from swarmtrain.simulate.ground.handicaps import NO_HANDICAP, Handicap
from swarmtrain.simulate.ground.misbehaviour import SPOILS
from swarmtrain.simulate.ground.network import SimNetwork
from swarmtrain.simulate.ground.process import Process
from swarmtrain.simulate.ground.quick_keys import quick_sign, quick_verify
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain.simulate.ground.spikes import has_leapt, loss_of
from swarmtrain.simulate.processes.credit import WatchedCredit
from swarmtrain.simulate.processes.dialling import Dialling, Doorman
from swarmtrain.simulate.processes.memory import WatchedMemory
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.processes.pretended_training import (
    PretendedTrainer,
    SharedDecoding,
    WholeContribution,
)
from swarmtrain.simulate.processes.reading import Reading
from swarmtrain.simulate.processes.stage import Stage
from swarmtrain.simulate.processes.watch import NAN_SCALE, SharedChecks, WatchedArithmetic
from swarmtrain.simulate.processes.watched_driver import TrainingWatch, WatchedDriver
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import (
    Brings,
    CoordinatorMessage,
    Hello,
    Leased,
    LeaseGrant,
    Leaving,
    PeerMessage,
    Released,
    Welcome,
)
from swarmtrain_transport.wire.records import Record

STEPS = 2
"""Inner steps of a round: a result can come between them."""

_SAMPLES = 4096

_DISK_BYTES = 1 << 40
"""Room for states of others; nobody is asked to keep any where the world has no keepers."""

_LR = 0.7
_MOMENTUM = 0.9
"""No powers of two: with those a fused multiply-add would round as separate operations do."""

_TRAIN_S = 1.0
"""A round's inner steps take so long, and a fifth more at most."""

_APPLY_S = 0.0005
_GOODBYE_S = 0.01
_SAVE_S = 1.0
"""Until a peer whose run is over has all that it has learnt on its disk."""

_PATIENCE_S = 10.0
_GLANCE_S = 0.25
"""Pause between two looks of a leaving peer whether it still waits for anything, as sessions do."""

_PRIVATE, _PUBLIC = b"\xfd" + bytes(5), b"\x20\x01\x0d\xb8" + bytes(2)
"""Prefixes of peers' addresses; those behind routers are seen at public ones."""

_FLIP = 2.0**-6
_ASKED_FOR = (FrameKind.BLOB, FrameKind.PIECE)


def group_of(action: do.LoadState | do.ApplyResult | do.OpSkipped) -> int:
    """The group of the outcome."""
    return action.result.group if isinstance(action, do.ApplyResult) else action.group


class PeerWatch(Protocol):
    """Looks on at what peers do."""

    def accepted(self, peer: "SimPeer", record: Record) -> None:
        """A peer took a record into its ledger."""

    def sends(self, peer: PeerId, target: PeerId, frame: Frame) -> None:
        """A peer sends a frame of an op in cells."""

    def training(self, group: int) -> TrainingWatch:
        """Looks on at the training in a group."""

    def rooted(self, peer: "SimPeer", op: int, root: bytes) -> None:
        """A peer has this state root after an op."""

    def staged(self, peer: "SimPeer", group: int, op: int, root: bytes) -> None:
        """A peer has this state root after an op of a group beside the first."""

    def proved(self, peer: "SimPeer", group: int, op: int) -> None:
        """A peer keeps a proof against an owner of this op."""

    def blamed(self, fault: do.PeerFault) -> None:
        """A peer finds another at fault."""

    def halted(self, peer: "SimPeer", halt: do.Halt) -> bool:
        """A peer's machine gives up; True if somebody else is to come in its place."""

    def read(self, peer: PeerId, boot: bytes, leased: Leased, first: int) -> None:
        """A peer's process has read a window of a piece of text."""

    @property
    def ways(self) -> WayChecks:
        """Looks on at meetings."""


class Host(Protocol):
    """Surroundings of a peer's process."""

    scene: Scene
    network: SimNetwork
    control: ControlLanes
    decode: SharedDecoding
    checks: SharedChecks

    @property
    def watch(self) -> PeerWatch:
        """Looks on."""

    @property
    def doorman(self) -> Doorman:
        """The coordinator's own port."""

    def died(self, peer: "SimPeer") -> None:
        """A process is gone."""

    def replace(self) -> None:
        """Somebody comes soon for one who was thrown out."""

    def rest(self, peer: "SimPeer") -> None:
        """A peer has left as the run is over, and comes back when it goes on."""


class SimPeer(Process):
    """A peer's process. `kill` is SIGKILL: nothing of it happens afterwards.

    Args:
        host: clock, lanes and who looks on.
        peer_id: own id.
        number: number for people.
        boot: this process's boot id.
        rng: random numbers of this process.
        handicap: defects of the peer.
        disk: state directory, from an earlier life.
    """

    def __init__(
        self,
        host: Host,
        peer_id: PeerId,
        number: int,
        boot: bytes,
        rng: random.Random,
        handicap: Handicap,
        disk: PeerDisk,
    ) -> None:
        scene = host.scene
        super().__init__(scene.clock, *scene.skew())
        self.watch = host.watch
        self._host = host
        self._scene = scene
        conditions = scene.conditions
        self.peer_id = peer_id
        self.number = number
        self.handicap = handicap
        self.is_alive = True
        self.is_leaving = False
        self.is_finished = False
        self.is_cut = False
        self.connection = 0
        self.acts_on_index = -1
        self.replayed_ops: list[int] = []
        self.disk = disk
        self._rng = rng
        self._wakeup_s = float("inf")
        self._is_training = False
        routers = host.network.routers
        prefix = _PRIVATE if routers is None else _PUBLIC
        home = IPv6Address(prefix + number.to_bytes(2, "big") + boot)
        address = Address(peer_id, peer_id, str(home), 1)
        self.link = host.network.open(address, self)
        self.dialling: Dialling | None = None
        if routers is not None:
            self.dialling = Dialling(
                peer_id, routers, scene, host.doorman, host.watch.ways, self.later, self.say
            )
            routers.enter(peer_id, address.host, self.dialling)
        card = Card(
            peer_id, boot, f"peer{number}", peer_id, address.host, address.port,
            conditions.retain_bytes, Brings(disk_bytes=_DISK_BYTES),
        )  # fmt: skip
        arithmetic = self.arithmetic = WatchedArithmetic(self._report_violation, host.checks)
        deed = scene.deeds.get(peer_id)
        arithmetic.forges_results = handicap.forges_results or (
            deed is not None and deed.kind == SPOILS
        )
        self._memory = WatchedMemory(number, conditions.retain_bytes, self._report_violation)
        self._credit = WatchedCredit(self._report_violation)
        arithmetic.sums_wrongly = scene.liar == peer_id
        self._leave_s: dict[PeerId, float] = {}
        begins = disk.beginning()
        first = 0 if begins is None else begins.snapshot.index + 1
        self.machine = Participant(
            card, arithmetic, partial(quick_sign, peer_id), quick_verify, self._shuffled,
            disk.read(first, sys.maxsize), self.now_s, self._memory.retention, disk, begins,
            disk.shelf,
        )  # fmt: skip
        for group in self.machine.groups:
            kept = disk.of(group)
            if conditions.guarded:
                kept.forget_cancelled(self.machine.groups[group].view)
            if kept.image is not None and kept.image.chunks is not None:
                self.machine.saved(kept.image.op, kept.image.manifest.root, group)
            for result in kept.results:
                self.machine.keep_result(
                    result.op, [piece.chunks for piece in result.slices], group
                )
            if kept.manifest is not None:
                state = kept.manifest.to_bytes(), kept.chunks.values()
                self.machine.keep_state(*state, group)
        self._reading = None if not conditions.text_pieces else Reading(
            peer_id, boot, lambda wanted: host.control.to_coordinator(self, wanted), self.later,
            self.watch,
        )  # fmt: skip
        self.stages: dict[int, Stage] = {}
        self._hands_over: Callable[[bool], None] | None = None
        self._ended: set[int] = set()
        self._turn = 0
        self._begin_training()

    def _begin_training(self) -> None:
        """Build the trainer of the first group: what was there of an earlier one is void."""
        conditions = self._scene.conditions
        self._turn += 1
        self._is_training = False
        self.strategy = conditions.strategy(STEPS, _LR, _MOMENTUM)
        self.trainer = PretendedTrainer(conditions.num_values, self._rng)
        self.trainer.gives_gradients = self.strategy.takes_gradients
        self.driver = WatchedDriver(
            self, self.watch.training(0), layout=bytes(32),
            num_values=conditions.num_values, snapshot_rounds=SNAPSHOT_ROUNDS,
            contribution=WholeContribution, decode=self._host.decode,
            read_gradient=self.trainer.read_gradient,
        )  # fmt: skip
        self._training = TrainingMachine(
            self.peer_id,
            self.driver,
            rounds=conditions.rounds,
            steps_per_round=self.strategy.inner_steps,
            patience_s=_PATIENCE_S,
            lonely_s=0.0,
        )

    @property
    def is_in_first(self) -> bool:
        """True if it is in the first group."""
        return 0 in self.machine.groups

    @property
    def applied_op(self) -> int:
        """Newest op of the first group whose outcome is in place, -1 if it is not in it."""
        group = self.machine.groups.get(0)
        return -1 if group is None else group.place.applied_op

    def _report_violation(self, broken: str, story: str) -> None:
        self._scene.violation(broken, f"peer {self.number}: {story}")

    def _shuffled(self, peers: Sequence[PeerId]) -> list[PeerId]:
        return self._rng.sample(list(peers), len(peers))

    @property
    def is_handicapped(self) -> bool:
        """True if something was wrong with it from its start."""
        return self.handicap is not NO_HANDICAP and self.handicap != NO_HANDICAP

    @property
    def nonfinite_op(self) -> int:
        """The op of the first group whose part is not finite, 0 for none."""
        return self.handicap.nonfinite_op

    @property
    def is_able(self) -> bool:
        """Return True if nothing but death could keep its part out of an op."""
        return not (self.is_cut or self.is_leaving or self.is_handicapped)

    def flip(self) -> None:
        """One value of the state is another from now on, and nobody notices but by its root."""
        self._scene.flipped.add(self.peer_id)
        dict(self.strategy.state_arrays())["anchor"][0] += _FLIP  # a live buffer
        if isinstance(self.strategy, Delayed):
            self.strategy.base[0] += _FLIP
        weights = self.trainer.read_weights()
        weights[0] += _FLIP
        self.trainer.write_weights(weights)

    # ---- life

    def start(self) -> None:
        """Connect, and attach the trainer's own state or the saved one."""
        if self._host.network.lines[self.peer_id].rate:
            self.machine.stats.is_leaving = self._is_leaving
        self._act(self.machine.start(self.now_s))
        self._host.control.connect(self)
        image = self.disk.restored(self.driver) or self.driver.offer()
        self.later(0.0005, lambda: self._attach(image))
        self._enter(tuple(self.machine.groups))

    def _moved(self, groups: tuple[int, ...]) -> None:
        if 0 not in groups:
            self._turn += 1  # its training there is over
        elif self._has_left_first:
            self._begin_training()
            self.later(0.0005, lambda: self._attach(self.driver.offer()))
        self._enter(groups)

    def _enter(self, groups: tuple[int, ...]) -> None:
        """Train in these groups beside the first."""
        self._has_left_first = 0 not in groups
        for group in self.stages.keys() - set(groups):
            self.stages.pop(group).leave()
        for group in sorted(set(groups) - self.stages.keys() - {0}):
            rng = random.Random(f"{self.number} {self.machine.card.boot.hex()} {group}")
            stage = Stage(
                self, group, self.watch.training(group), self._scene.conditions,
                self._host.decode, rng, self.disk.of(group),
            )  # fmt: skip
            self.stages[group] = stage
            self.later(0.0005, stage.attach)

    def act(self, actions: Actions) -> None:
        """Do what the machine asks."""
        self._act(actions)

    def staged(self, group: int, op: int, root: bytes) -> None:
        """The state in a group beside the first after an op has this root."""
        self.watch.staged(self, group, op, root)

    def _attach(self, image: StateImage) -> None:
        assert image.chunks is not None
        self._act(
            self.machine.attach(
                image.op,
                image.manifest,
                image.chunks,
                SNAPSHOT_ROUNDS,
                self.now_s,
                self.driver.fragments,
            )
        )

    def kill(self) -> None:
        """The process is gone, with everything in memory."""
        if self.is_alive:
            self.die()
            self._host.died(self)
            self._host.network.kill(self.peer_id)
            self._host.control.hung_up(self)
            if self.driver.op < 0:  # what it held is of no account for any check
                self.clock.at(self.clock.now_s, self._let_go)

    def _let_go(self) -> None:
        """Give its memory back: in some worlds newcomers die by the thousand."""
        self.stages.clear()
        del self.machine, self._memory, self._training, self.driver, self.trainer, self.strategy

    def leave(self) -> None:
        """Say goodbye; the process ends when that is sent."""
        self.is_leaving = True
        if self._reading is not None:
            self._reading.leave()
        self._act(self.machine.leave("asked to", self.now_s))
        self.later(_GOODBYE_S, self.kill)

    def hand_over(self, left: Callable[[bool], None]) -> None:
        """Leave as a session does: save, train no more, and wait for a while until somebody else
        holds the newest state.

        Args:
            left: hears whether somebody does, once the process has gone.
        """
        self.is_leaving, self._hands_over = True, left
        self._turn += 1
        self._has_left_first = True
        if self.driver.op >= 0 and self.is_in_first:
            image = image_of(
                self.strategy, bytes(32), self._scene.conditions.num_values, self.driver.op,
                copy=True,
            )  # fmt: skip
            self.disk.save(image, self.strategy.local_arrays(), is_last=True)
        for stage in self.stages.values():
            stage.leave()
        if self._host.control.is_open(self, self.connection):
            self._host.control.to_coordinator(self, Leaving())
            self.later(limits.HAND_OVER_S, partial(self._go, is_released=False))
        else:
            self._go(is_released=False)

    def _go(self, *, is_released: bool) -> None:
        left, self._hands_over = self._hands_over, None
        if left is not None:
            self.leave()
            self.clock.after(2 * _GOODBYE_S, partial(left, is_released))

    def leave_in_turn(self, *, gives_now: bool) -> None:
        """Leave when the round under way has ended, or as soon as what there is has an outcome."""
        self.is_leaving = True
        if gives_now:
            for action in self._training.finish_round(self.now_s):
                self._do_training(action)
        else:
            self._training.leave_soon()
        self._glance()

    def _glance(self) -> None:
        self._after()
        if self._training.should_stop:
            self.leave()
        else:
            self.later(_GLANCE_S, self._glance)

    def later(self, delay_s: float, event: Callable[[], object]) -> None:
        """Let this process do something later, if it still lives then."""
        self.clock.after(delay_s, partial(self.hear, event))

    # ---- the lanes

    def greeting(self) -> Hello:
        """Return its first message on a new connection."""
        return self.machine.hello()

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """LinkHandler."""
        self.hear(self._on_frame, peer, frame)

    def _on_frame(self, peer: PeerId, frame: Frame) -> None:
        self.machine.stats.bytes_in += len(frame.body)
        self._credit.hear(peer, frame)
        self._act(self.machine.frame(peer, frame, self.now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """LinkHandler: a frame of a peer that left, or hostile bytes. They are counted."""

    def on_control(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator."""
        self.hear(self._control, message)

    def _control(self, message: CoordinatorMessage) -> None:
        if isinstance(message, Released):
            self._go(is_released=True)
            return
        if self.dialling is not None and self.dialling.heard(message):
            return
        if self._reading is not None and isinstance(message, LeaseGrant):
            self._reading.granted(message)
            return
        if self._reading is not None and isinstance(message, Welcome):
            self._reading.ask()
        try:
            self._act(self.machine.control(message, self.now_s))
        except RemoteFault as fault:
            self._report_violation("fault", f"cannot follow: {fault}")

    def say(self, message: PeerMessage) -> None:
        """Tell the coordinator."""
        self._host.control.to_coordinator(self, message)

    def on_control_down(self) -> None:
        """The coordinator's connection is gone; try again soon."""
        self.hear(self._control_down)

    def _control_down(self) -> None:
        self._go(is_released=False)
        self._act(self.machine.control_down(self.now_s))
        self.later(RECONNECT_S, partial(self._host.control.connect, self))
        self._train()

    # ---- actions

    def _act(self, actions: Actions) -> None:
        """Do what the machine asks, in order."""
        self._memory.look(self.machine)
        deed = self._scene.deeds.get(self.peer_id)
        if deed is not None:
            actions = tuple(deed.done(actions, self.machine.view.first.op, self._scene.deeds))
        for action in actions:
            if deed is not None and (delay_s := deed.delay_s(action)):
                self.later(delay_s, partial(self._do, action))
            else:
                self._do(action)
        self._sleep()

    def _do(self, action: do.PeerAction) -> None:
        if type(action) is do.SendControl:
            self._host.control.to_coordinator(self, action.message)
        elif type(action) is do.SendFrame:
            frame = action.frame
            if self.handicap.hoards and frame.kind in _ASKED_FOR:
                return
            is_liar = self._scene.liar == self.peer_id
            if is_liar and self._scene.is_liar_silent and frame.kind is FrameKind.EVIDENCE:
                return
            self.machine.stats.bytes_out += len(frame.body)
            self._credit.send(action.peer, frame, self.now_s)
            if self._scene.conditions.cells > 1:
                self.watch.sends(self.peer_id, action.peer, frame)
            self.link.send(action.peer, self._forged(frame) if self.is_handicapped else frame)
            if frame.kind is FrameKind.PIECE:
                self._leave_s[action.peer] = self._host.network.lines[self.peer_id].up_free_s
        else:
            self._do_rarely(action)

    def _is_leaving(self, peer: PeerId) -> bool:
        """Return True while a piece of a state for this peer has not left by its line."""
        return self.clock.now_s < self._leave_s.get(peer, 0.0)

    def _do_rarely(self, action: do.PeerAction) -> None:
        match action:  # the most frequent ones first
            case do.RecordAccepted():
                self.disk.keep_record(action.record)
                self.watch.accepted(self, action.record)
            case do.AllowPeer():
                self.link.allow(action.address)
            case do.WarmWays():
                pass  # here ways take no time
            case do.RevokePeer():
                self.link.revoke(action.peer)
            case do.LoadState() | do.ApplyResult() | do.OpSkipped() if group_of(action):
                index, group = self.machine.ledger.head_index, group_of(action)
                self.later(_APPLY_S, partial(self._stage_hears, group, action, index))
            case do.Moved() if self._hands_over is None:
                self._moved(action.groups)
            case do.LoadState() | do.ApplyResult() | do.OpSkipped() if self._hands_over is None:
                index = self.machine.ledger.head_index
                self.later(_APPLY_S, partial(self._trainer_hears, action, index, self._turn))
            case do.LedgerBegins():
                self.disk.begin_ledger(action)
            case do.DownloadBegun():
                self.disk.of(action.group).begin_download(action.manifest)
            case do.KeepChunk():
                self.disk.of(action.group).chunks[action.digest] = action.data
            case do.Rewound():
                results = self.disk.of(action.group).results
                results[:] = [kept for kept in results if kept.op <= action.op]
            case do.RunFinished():
                self._ended.add(action.group)
                self.is_finished = self._ended >= self.machine.groups.keys()
                rounds = action.rounds or self._scene.conditions.rounds
                if self.is_finished and rounds < self._scene.conditions.last_round:
                    self.later(_SAVE_S, self._rest)
            case do.Halt():
                self._halt(action)
            case do.KeepProof():
                self.watch.proved(self, action.group, action.op)
            case do.PeerFault():
                self.watch.blamed(action)

    def _rest(self) -> None:
        """Leave as one whose run is over."""
        self.leave()
        self._host.rest(self)

    def _halt(self, halt: do.Halt) -> None:
        is_replaced = self.watch.halted(self, halt)
        self.kill()
        if is_replaced:
            self._host.replace()
        elif self._scene.conditions.extension is not None:
            self._host.rest(self)

    def _forged(self, frame: Frame) -> Frame:
        if frame.kind is not FrameKind.PART or not self.handicap.forges_scales:
            return frame
        return dataclasses.replace(frame, body=NAN_SCALE + bytes(frame.body)[2:])

    def _sleep(self) -> None:
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s != self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.clock.at(self.world_s(wakeup_s), partial(self.hear, self._wake, wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self._wakeup_s == wakeup_s:
            self._wakeup_s = float("inf")
            self._look()
            self._act(self.machine.tick(max(self.now_s, wakeup_s)))

    def _look(self) -> None:
        network, stats = self._host.network, self.machine.stats
        stats.unreached = network.unreached(self.link)
        stats.relayed = tuple(one for one, other in network.relays if other == self.peer_id)

    def _go_on(self) -> None:
        if self.is_alive and not self.is_stopped:
            # As the production shell does before any event: PROGRESS answers RECORDS at once.
            self._look()
        super()._go_on()

    def _stage_hears(
        self, group: int, outcome: do.LoadState | do.ApplyResult | do.OpSkipped, index: int
    ) -> None:
        if group in self.stages:
            with self._believing_itself():
                self.stages[group].hears(outcome, index)

    @contextlib.contextmanager
    def _believing_itself(self) -> Iterator[None]:
        """Ends a hostile peer that was alone and has committed what nobody can decode. Another
        comes for it, as the run may need as many as there were."""
        try:
            yield
        except RemoteFault:
            if not self.arithmetic.forges_results:
                raise
            self.kill()
            self._host.replace()

    # ---- the pretended training thread

    def _trainer_hears(
        self, outcome: do.LoadState | do.ApplyResult | do.OpSkipped, index: int, turn: int
    ) -> None:
        if turn != self._turn:
            return
        self.driver.known.append(index)
        self._training.heard(outcome)
        with self._believing_itself():
            self._after()

    def _after(self) -> None:
        while actions := self._training.advance(self.now_s):
            for action in actions:
                self._do_training(action)
        self._train()

    def _do_training(self, action: Action) -> None:
        match action:
            case Applied(image):
                self.watch.rooted(self, image.op, image.manifest.root)
                conditions = self._scene.conditions
                is_last = conditions.extension is not None and image.op >= conditions.rounds
                self.disk.save(image, self.strategy.local_arrays(), is_last=is_last)
                self._act(tell(action, self.machine, self.now_s))
            case Ready() | GiveAhead():
                if isinstance(action, Ready) and self.handicap.boasts and action.part.since >= 0:
                    newest = self.machine.view.first.last_op
                    action = dataclasses.replace(
                        action, part=dataclasses.replace(action.part, since=newest)
                    )
                if isinstance(action, Ready) and self._scene.conditions.guarded:
                    action = dataclasses.replace(action, loss=self._loss())
                self._act(tell(action, self.machine, self.now_s))
            case Loaded():
                self.disk.end_download()
            case KeepResult(result):
                self.disk.keep_result(result)

    @property
    def lies_of_loss(self) -> bool:
        """True if what it tells of its loss is anything: at most one peer of a world does so."""
        return self._scene.conditions.guarded and self.number == 1

    def _loss(self) -> float | None:
        plans = {op: one.plan_hash for op, one in self.machine.view.first.commits.items()}
        leapt = has_leapt(plans, self.driver.op)
        return loss_of(self._rng, leapt=leapt, lies=self.lies_of_loss)

    def _train(self) -> None:
        """Go on with the inner steps, unless the training machine holds them back."""
        training, now_s = self._training, self.now_s
        training.network(
            now_s,
            is_connected=self._host.control.is_open(self, self.connection),
            is_exchanging=self.machine.is_exchanging,
        )
        if self._is_training or training.holds_back or self._has_left_first:
            return
        self._is_training = True
        training.begins_step(now_s)
        seconds = _TRAIN_S * (1 + 0.2 * self._rng.random()) * self.handicap.slowness
        if self._scene.conditions.buffer:  # rounds are each peer's own
            seconds *= 1 << self.number % 4
        self.later(seconds / STEPS, partial(self._step, self._turn))

    def _step(self, turn: int) -> None:
        """One inner step is done."""
        if turn != self._turn:
            return
        self._is_training = False
        self.trainer.inner_step()
        if self._reading is not None:
            self._reading.step()
        samples = 10**9 if self.handicap.boasts else _SAMPLES // STEPS * (1 + self.number % 3)
        self._training.stepped(samples, self.now_s)
        self._after()

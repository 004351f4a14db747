"""One simulated peer: the production participant, driver and strategy around a pretended trainer.

Only what touches the world is replaced: the clock, the two lanes, and inner steps, which draw a
difference from the peer's seed instead of computing one.
"""

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.driver import Driver, StateImage
from swarmtrain.simulate.faults import Handicap
from swarmtrain_optimizers.strategies.diloco import DiLoCo
from swarmtrain_transport import actions as do
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.frames import Frame, FrameKind
from swarmtrain_transport.ledger import Record
from swarmtrain_transport.link import Address, PeerId
from swarmtrain_transport.local import Card
from swarmtrain_transport.messages import decode_from_coordinator
from swarmtrain_transport.participant import Actions, Participant

if TYPE_CHECKING:
    from swarmtrain.simulate.world import World

_GRID = 2.0**-16
"""Differences are multiples of this before the anchor's own rounding."""

_STEPS = 2
"""Inner steps of a round: a result can come between them."""

_SAMPLES = 4096

_LR = 0.7
_MOMENTUM = 0.9
"""No powers of two: with those a fused multiply-add would round as separate operations do."""

_GOODBYE_S = 0.01
_NAN_SCALE = b"\xc0\x7f"


class PretendedTrainer:
    """Holds weights and moves them by a drawn difference.

    Attributes:
        moved: (num_values,) float64, by how much all inner steps together have lowered them.
    """

    def __init__(self, num_values: int, rng: random.Random) -> None:
        self.moved = torch.zeros(num_values, dtype=torch.float64)
        self._generator = torch.Generator().manual_seed(rng.getrandbits(63))
        self._weights = self._drawn(num_values).float()

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """A copy of the live weights."""
        return self._weights.clone()

    def write_weights(self, vector: Tensor) -> None:
        """Replace the live weights."""
        self._weights = vector.clone()

    def inner_step(self) -> None:
        """Move by a drawn difference."""
        step = self._drawn(self._weights.numel())
        self._weights = self._weights - step.float()
        self.moved += step

    def _drawn(self, size: int) -> Tensor:
        return torch.randint(-1000, 1001, (size,), generator=self._generator).double() * _GRID

    def diverge(self) -> None:
        """One weight is no number any more."""
        self._weights[0] = float("nan")


class SimPeer:
    """A peer's process. `kill` is SIGKILL: nothing of it happens afterwards.

    Args:
        world: clock, network and coordinator.
        peer_id: own id.
        number: for people.
        boot: this process's boot id.
        num_values: length of the vector.
        rng: of this process.
        handicap: what is wrong with it.
        records: its ledger copy, from an earlier life.
    """

    def __init__(
        self,
        world: "World",
        peer_id: PeerId,
        number: int,
        boot: bytes,
        num_values: int,
        rng: random.Random,
        handicap: Handicap,
        records: Iterable[Record] = (),
    ) -> None:
        self.world = world
        self.peer_id = peer_id
        self.number = number
        self.handicap = handicap
        self.is_alive = True
        self.is_leaving = False
        self.is_finished = False
        self.is_cut = False
        self.connection = 0
        self.replayed_ops: list[int] = []
        self.records = list(records)
        self._rng = rng
        self._wakeup_s = float("inf")
        self._is_training = False
        self._extra_steps = 0
        address = Address(peer_id, peer_id, f"peer{number}.{boot.hex()}", 1)
        self.link = world.network.open(address, self)
        card = Card(peer_id, boot, f"peer{number}", peer_id, address.host, address.port)
        self.machine = Participant(
            card, CodecArithmetic(), world.verify, self._shuffled, self.records, world.clock.now_s
        )
        self.strategy = DiLoCo(
            num_values, inner_steps=_STEPS, lr=_LR, momentum=_MOMENTUM,
            error_feedback=world.error_feedback,
        )  # fmt: skip
        self.trainer = PretendedTrainer(num_values, rng)
        self.driver = Driver(
            peer_id, self.strategy, self.trainer,
            layout=bytes(32), num_values=num_values, snapshot_rounds=world.snapshot_rounds,
        )  # fmt: skip

    def _shuffled(self, peers: Sequence[PeerId]) -> list[PeerId]:
        return self._rng.sample(list(peers), len(peers))

    @property
    def is_handicapped(self) -> bool:
        """Whether something was wrong with it from its start."""
        return self.handicap != Handicap()

    @property
    def is_able(self) -> bool:
        """Whether nothing but death could keep its part out of an op."""
        return not (self.is_cut or self.is_leaving or self.is_handicapped)

    # ---- life

    def start(self) -> None:
        """Connect, and attach the trainer's own state."""
        self._act(self.machine.start(self.world.clock.now_s))
        self.world.connect(self)
        image = self.driver.offer()
        self.later(0.0005, lambda: self._attach(image))

    def _attach(self, image: StateImage) -> None:
        assert image.chunks is not None
        self._act(
            self.machine.attach(
                image.op, image.manifest, image.chunks, self.world.snapshot_rounds,
                self.world.clock.now_s,
            )
        )  # fmt: skip

    def kill(self) -> None:
        """The process is gone, with everything in memory."""
        if self.is_alive:
            self.is_alive = False
            self.world.network.kill(self.peer_id)
            self.world.hung_up(self)

    def leave(self) -> None:
        """Say goodbye; the process ends when that is sent."""
        self.is_leaving = True
        self._act(self.machine.leave("asked to", self.world.clock.now_s))
        self.later(_GOODBYE_S, self.kill)

    def later(self, delay_s: float, event: Callable[[], object]) -> None:
        """Something that this process does, if it still lives then."""
        self.world.clock.after(delay_s, lambda: event() if self.is_alive else None)

    # ---- the lanes

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """LinkHandler."""
        if self.is_alive:
            self._act(self.machine.frame(peer, frame, self.world.clock.now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """LinkHandler: a frame of a peer that left, under way when its key was revoked."""

    def on_control(self, data: bytes) -> None:
        """Bytes of the coordinator."""
        if not self.is_alive:
            return
        message = decode_from_coordinator(data)
        try:
            self._act(self.machine.control(message, self.world.clock.now_s))
        except RemoteFault as fault:
            self.world.violation("fault", f"peer {self.number} cannot follow: {fault}")

    def on_control_down(self) -> None:
        """The coordinator's connection is gone; try again soon."""
        if self.is_alive:
            self._act(self.machine.control_down(self.world.clock.now_s))
            self.world.reconnect(self)
            if self.driver.op >= 0:
                self._train()

    # ---- actions

    def _act(self, actions: Actions) -> None:
        """Do what the machine asks, in order."""
        for action in actions:
            match action:
                case do.SendControl():
                    self.world.to_coordinator(self, action.message)
                case do.SendFrame():
                    self.link.send(action.peer, self._forged(action.frame))
                case do.AllowPeer():
                    self.link.allow(action.address)
                case do.RevokePeer():
                    self.link.revoke(action.peer)
                case do.LoadState() | do.ApplyResult() | do.OpSkipped():
                    self.later(0.0005, partial(self._trainer_does, action))
                case do.RecordAccepted():
                    self.records.append(action.record)
                    self.world.invariants.accepted(self, action.record)
                case do.RunFinished():
                    self.is_finished = True
                case do.Halt():
                    self._halt(action)
                case do.PeerFault():
                    self._blame(action)
        self._sleep()

    def _halt(self, halt: do.Halt) -> None:
        """Only who came after the end may be sent away."""
        if halt.code != "SWT-E705" or self.driver.op >= 0:
            self.world.violation("halt", f"peer {self.number} halts: {halt.text}")
        self.kill()

    def _forged(self, frame: Frame) -> Frame:
        if frame.kind is not FrameKind.PART or not self.handicap.forges_scales:
            return frame
        return dataclasses.replace(frame, body=_NAN_SCALE + bytes(frame.body)[2:])

    def _blame(self, fault: do.PeerFault) -> None:
        """Only a forger may be found out."""
        if not self.world.peers[fault.peer].handicap.forges_scales:
            self.world.violation("fault", f"{fault.reason}: {fault.detail}")

    def _sleep(self) -> None:
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s != self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.world.clock.at(wakeup_s, lambda: self._wake(wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self.is_alive and self._wakeup_s == wakeup_s:
            self._wakeup_s = float("inf")
            self._act(self.machine.tick(self.world.clock.now_s))

    # ---- the pretended training thread

    def _trainer_does(self, asked: do.LoadState | do.ApplyResult | do.OpSkipped) -> None:
        invariants = self.world.invariants
        if isinstance(asked, do.OpSkipped):
            before = invariants.state_of(self)
            self.driver.skip(asked.op)
            invariants.skipped(self, asked.op, before)
        elif isinstance(asked, do.LoadState):
            self._report(self.driver.load(asked))
            invariants.loaded(self)
        else:
            if asked.result.replayed:
                self.replayed_ops.append(asked.result.op)
            invariants.applying(self, asked.result)
            image = self.driver.end_op(asked.result)
            invariants.applied(self, asked.result)
            self._report(image)
        self._train()

    def _report(self, image: StateImage) -> None:
        self.world.invariants.rooted(self, image.op, image.manifest.root)
        self._act(
            self.machine.applied(image.op, image.manifest, image.chunks, self.world.clock.now_s)
        )

    def _train(self) -> None:
        """Go on with the inner steps; while an op is open, only without a coordinator and for at
        most one round (protocol.md rule 10)."""
        waits = self.driver.is_waiting and (
            self.world.is_connected(self) or self._extra_steps >= _STEPS
        )
        if self._is_training or waits:
            return
        self._is_training = True
        seconds = self.world.train_s * (1 + 0.2 * self._rng.random()) * self.handicap.slowness
        self.later(seconds / _STEPS, self._step)

    def _step(self) -> None:
        """One inner step is done."""
        self._is_training = False
        self.trainer.inner_step()
        self.driver.stepped(_SAMPLES // _STEPS)
        self._extra_steps += self.driver.is_waiting
        if self.driver.is_due:
            self._give()
        self._train()

    def _give(self) -> None:
        self._extra_steps = 0
        if self.driver.op + 1 == self.handicap.nonfinite_op:
            self.trainer.diverge()
        part = self.driver.contribute()
        self.world.invariants.contributed(self, part)
        self._act(
            self.machine.ready(part.op, part.contribution, part.samples, self.world.clock.now_s)
        )

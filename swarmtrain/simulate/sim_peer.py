"""One simulated peer: the production participant, driver and strategy around a pretended trainer.

Only what touches the world is replaced: the clock, the two lanes, and inner steps, which draw a
difference from the peer's seed instead of computing one.
"""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.driver import Driver, StateImage
from swarmtrain_optimizers.strategies.diloco import DiLoCo
from swarmtrain_transport import actions as do
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.frames import Frame
from swarmtrain_transport.ledger import Record
from swarmtrain_transport.link import Address, PeerId
from swarmtrain_transport.local import Card
from swarmtrain_transport.messages import decode_from_coordinator
from swarmtrain_transport.participant import Actions, Participant
from swarmtrain_transport.result import OpResult

if TYPE_CHECKING:
    from swarmtrain.simulate.world import World

GRID = 2.0**-16
"""Differences are multiples of this before the anchor's own rounding."""


class PretendedTrainer:
    """Holds weights and moves them by a drawn difference."""

    def __init__(self, num_values: int, rng: random.Random) -> None:
        self._weights = torch.zeros(num_values, dtype=torch.float32)
        self._generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """A copy of the live weights."""
        return self._weights.clone()

    def write_weights(self, vector: Tensor) -> None:
        """Replace the live weights."""
        self._weights = vector.clone()

    def inner_steps(self) -> None:
        """Move by a drawn difference."""
        size = self._weights.shape
        drawn = torch.randint(-1000, 1001, size, generator=self._generator)
        self._weights = self._weights - drawn.to(torch.float32) * GRID


class SimPeer:
    """A peer's process. `kill` is SIGKILL: nothing of it happens afterwards.

    Args:
        world: clock, network and coordinator.
        peer_id: own id.
        number: for people.
        boot: this process's boot id.
        num_values: length of the vector.
        rng: of this process.
    """

    def __init__(
        self,
        world: "World",
        peer_id: PeerId,
        number: int,
        boot: bytes,
        num_values: int,
        rng: random.Random,
    ) -> None:
        self.world = world
        self.peer_id = peer_id
        self.number = number
        self.is_alive = True
        self.is_finished = False
        self.roots: dict[int, bytes] = {}
        self.results: list[OpResult] = []
        self.connection = 0
        self._rng = rng
        self._wakeup_s = float("inf")
        address = Address(peer_id, peer_id, f"peer{number}.{boot.hex()}", 1)
        self.link = world.network.open(address, self)
        card = Card(peer_id, boot, f"peer{number}", peer_id, address.host, address.port)
        self.machine = Participant(
            card, CodecArithmetic(), world.verify, self._shuffled, (), world.clock.now_s
        )
        self.strategy = DiLoCo(num_values, inner_steps=1, lr=0.5, momentum=0.5, error_feedback=True)
        self.trainer = PretendedTrainer(num_values, rng)
        self.driver = Driver(
            peer_id, self.strategy, self.trainer,
            layout=bytes(32), num_values=num_values, snapshot_rounds=world.snapshot_rounds,
        )  # fmt: skip

    def _shuffled(self, peers: Sequence[PeerId]) -> list[PeerId]:
        drawn = list(peers)
        self._rng.shuffle(drawn)
        return drawn

    # ---- life

    def start(self) -> None:
        """Connect, and attach the trainer's own state."""
        self.act(self.machine.start(self.world.clock.now_s))
        self.world.connect(self)
        image = self.driver.offer()
        self._event(lambda: self._attach(image))

    def _attach(self, image: StateImage) -> None:
        assert image.chunks is not None
        self.act(
            self.machine.attach(
                image.op, image.manifest, image.chunks, self.world.snapshot_rounds,
                self.world.clock.now_s,
            )
        )  # fmt: skip

    def kill(self) -> None:
        """The process is gone, with everything in memory."""
        self.is_alive = False
        self.world.network.kill(self.peer_id)
        self.world.hung_up(self)

    def _event(self, event: Callable[[], None], delay_s: float = 0.0005) -> None:
        self.world.clock.after(delay_s, lambda: event() if self.is_alive else None)

    # ---- the lanes

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """LinkHandler."""
        if self.is_alive:
            self.act(self.machine.frame(peer, frame, self.world.clock.now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """LinkHandler."""

    def on_control(self, data: bytes) -> None:
        """Bytes of the coordinator."""
        if self.is_alive:
            self.act(self.machine.control(decode_from_coordinator(data), self.world.clock.now_s))

    def on_control_down(self) -> None:
        """The coordinator's connection is gone; try again soon."""
        if self.is_alive:
            self.act(self.machine.control_down(self.world.clock.now_s))
            self._event(lambda: self.world.connect(self), 0.5)

    # ---- actions

    def act(self, actions: Actions) -> None:
        """Do what the machine asks, in order."""
        for action in actions:
            match action:
                case do.SendControl():
                    self.world.to_coordinator(self, action.message)
                case do.SendFrame():
                    self.link.send(action.peer, action.frame)
                case do.AllowPeer():
                    self.link.allow(action.address)
                case do.RevokePeer():
                    self.link.revoke(action.peer)
                case do.LoadState() | do.ApplyResult() | do.OpSkipped():
                    self._event(lambda asked=action: self._trainer_does(asked))  # type: ignore[misc]  # bound now
                case do.RecordAccepted():
                    self._note(action.record)
                case do.RunFinished():
                    self.is_finished = True
                case do.Halt():
                    self.world.violation("halt", f"{self.number} halts: {action.text}")
                case do.PeerFault():
                    self.world.violation("fault", f"{action.reason} {action.detail}")
        self._sleep()

    def _note(self, record: Record) -> None:
        self.world.invariants.accepted(self, record)

    def _sleep(self) -> None:
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s != self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.world.clock.at(wakeup_s, lambda: self._wake(wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self.is_alive and self._wakeup_s == wakeup_s:
            self._wakeup_s = float("inf")
            self.act(self.machine.tick(self.world.clock.now_s))

    # ---- the pretended training thread

    def _trainer_does(self, asked: do.LoadState | do.ApplyResult | do.OpSkipped) -> None:
        invariants = self.world.invariants
        if isinstance(asked, do.OpSkipped):
            before = [(name, array.clone()) for name, array in self.strategy.state_arrays()]
            self.driver.skip(asked.op)
            invariants.skipped(self, asked.op, before)
        elif isinstance(asked, do.LoadState):
            self._report(self.driver.load(asked))
            invariants.loaded(self)
        else:
            self.results.append(asked.result)
            invariants.applying(self, asked.result)
            image = self.driver.end_op(asked.result)
            invariants.applied(self, asked.result)
            self._report(image)
        if not self.driver.is_waiting and not self.driver.is_due:
            self._event(self._train, self.world.train_s * (1 + 0.2 * self._rng.random()))

    def _report(self, image: StateImage) -> None:
        self.roots[image.op] = image.manifest.root
        self.world.invariants.rooted(self, image.op, image.manifest.root)
        self.act(
            self.machine.applied(image.op, image.manifest, image.chunks, self.world.clock.now_s)
        )

    def _train(self) -> None:
        """The inner steps are done."""
        if self.driver.is_waiting:
            return
        self.trainer.inner_steps()
        self.driver.stepped(8)
        if self.driver.is_due:
            part = self.driver.contribute()
            self.world.invariants.contributed(self, part)
            self.act(
                self.machine.ready(part.op, part.contribution, part.samples, self.world.clock.now_s)
            )

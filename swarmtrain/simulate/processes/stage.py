"""One simulated peer's training in a second group: another layout, another driver, ops of its own.

Nothing stands still for it: the peer trains in both groups at once, and messages of both share its
lanes.
"""

import random
from functools import partial
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
from swarmtrain.simulate.ground.conditions import SNAPSHOT_ROUNDS, Conditions, Task
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.processes.pretended_training import (
    PretendedTrainer,
    SharedDecoding,
    WholeContribution,
)
from swarmtrain.simulate.processes.watched_driver import TrainingWatch, WatchedDriver
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_transport import actions as do
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Actions, Participant

STEPS = 2

_LAYOUT = b"stage".ljust(32)
_LR = 0.7
_MOMENTUM = 0.9
_STEP_S = 0.35
_SAMPLES = 64


class Owner(Protocol):
    """The process that a stage is part of."""

    peer_id: PeerId
    number: int
    machine: Participant

    @property
    def now_s(self) -> float:
        """Time of the process's clock."""

    def later(self, delay_s: float, event: partial[None]) -> None:
        """Let it do something later, if it still lives then."""

    def act(self, actions: Actions) -> None:
        """Do what the machine asks."""

    def staged(self, group: int, op: int, root: bytes) -> None:
        """The state in a group after an op has this root."""


class Stage:
    """The training in one group: a `Learner`.

    Args:
        owner: process that it belongs to.
        group: number of the group.
        watch: looks on at the training.
        conditions: conditions of the world.
        decode: results that peers share.
        rng: random numbers of its steps.
        disk: state of the group that an earlier process has saved.
    """

    def __init__(
        self, owner: Owner, group: int, watch: TrainingWatch, conditions: Conditions,
        decode: SharedDecoding, rng: random.Random, disk: PeerDisk,
    ) -> None:  # fmt: skip
        num_values = conditions.stage_values
        self._owner, self._group = owner, group
        self.peer_id, self.number, self.machine = owner.peer_id, owner.number, owner.machine
        self.acts_on_index, self.nonfinite_op = -1, 0
        self.replayed_ops: list[int] = []
        self.trainer = PretendedTrainer(num_values, rng)
        self._disk = disk
        self.strategy: Task = DiLoCo(
            num_values, inner_steps=STEPS, lr=_LR, momentum=_MOMENTUM, error_feedback=True
        )
        self.driver = WatchedDriver(
            self, watch, layout=_LAYOUT, num_values=num_values,
            snapshot_rounds=SNAPSHOT_ROUNDS, contribution=WholeContribution, decode=decode,
        )  # fmt: skip
        self._training = TrainingMachine(
            owner.peer_id, self.driver, rounds=conditions.rounds, steps_per_round=STEPS,
            lonely_s=float("inf"),
        )  # fmt: skip
        self._is_training = self._is_left = False

    def attach(self) -> None:
        """Bring the saved state, or one to begin with."""
        image = self._disk.restored(self.driver) or self.driver.offer()
        assert image.chunks is not None
        owner = self._owner
        owner.act(
            owner.machine.attach(
                image.op, image.manifest, image.chunks, SNAPSHOT_ROUNDS, owner.now_s,
                self.driver.fragments, self._group,
            )
        )  # fmt: skip

    def leave(self) -> None:
        """The peer is in the group no more."""
        self._is_left = True

    def hears(self, outcome: do.LoadState | do.ApplyResult | do.OpSkipped, index: int) -> None:
        """Note the outcome of an op, told when record `index` was the newest."""
        if not self._is_left:
            self.driver.known.append(index)
            self._training.heard(outcome)
            self._after()

    def _after(self) -> None:
        while not self._is_left and (actions := self._training.advance(self._owner.now_s)):
            for action in actions:
                self._do(action)
        self._train()

    def _do(self, action: Action) -> None:
        owner = self._owner
        if isinstance(action, Applied):
            owner.staged(self._group, action.image.op, action.image.manifest.root)
            self._disk.save(action.image, self.strategy.local_arrays())
        if isinstance(action, Loaded):
            self._disk.end_download()
        if isinstance(action, KeepResult):
            self._disk.keep_result(action.result)
        if isinstance(action, Applied | Ready | GiveAhead):
            owner.act(tell(action, owner.machine, owner.now_s, self._group))

    def _train(self) -> None:
        """Go on with the inner steps, unless the training machine holds them back."""
        owner, training = self._owner, self._training
        training.network(owner.now_s, is_connected=True, is_exchanging=owner.machine.is_exchanging)
        if not (self._is_training or self._is_left or training.holds_back):
            self._is_training = True
            training.begins_step(owner.now_s)
            owner.later(_STEP_S, partial(self._step))

    def _step(self) -> None:
        self._is_training = False
        if not self._is_left:
            self.trainer.inner_step()
            self._training.stepped(_SAMPLES, self._owner.now_s)
            self._after()

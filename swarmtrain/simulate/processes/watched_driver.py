"""A driver whose every event is checked as it happens, in whichever group it trains."""

from collections import deque
from typing import Any, Protocol

from torch import Tensor

from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.peer.training.state_image import StateImage
from swarmtrain.simulate.ground.conditions import Task
from swarmtrain.simulate.processes.pretended_training import PretendedTrainer
from swarmtrain_transport import actions as do
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.result import OpResult


class Learner(Protocol):
    """One peer's training in one group: in the first one the peer, in a later one a stage of it.

    Attributes:
        peer_id: key of the peer.
        number: number of the peer, for people.
        acts_on_index: the newest record when that outcome was told that it acts on now.
        replayed_ops: ops whose results it has replayed.
    """

    peer_id: PeerId
    number: int
    acts_on_index: int
    replayed_ops: list[int]
    machine: Participant
    strategy: Task
    trainer: PretendedTrainer

    @property
    def driver(self) -> Driver:
        """Strategy of the peer on the exchange."""

    @property
    def nonfinite_op(self) -> int:
        """The op whose part is not finite, 0 for none."""


class TrainingWatch(Protocol):
    """Looks on at the training in one group."""

    def contributed(self, learner: Learner, part: OwnPart) -> None:
        """A peer gave its part to an op."""

    def loaded(self, learner: Learner, *, takes_back: bool) -> None:
        """A peer took over shared state, and what it had saved of its own with it or not."""

    def state_of(self, learner: Learner) -> list[Tensor]:
        """A copy of what no SKIP may change."""

    def skipped(self, learner: Learner, op: int, before: list[Tensor]) -> None:
        """A peer passed an op that was skipped."""

    def applying(self, learner: Learner, result: OpResult) -> None:
        """A peer is about to apply a result."""

    def applied(self, learner: Learner, result: OpResult) -> None:
        """A peer has applied a result."""


class WatchedDriver(Driver):
    """A driver whose every event is checked as it happens.

    Args:
        learner: peer whose driver it is.
        watch: looks on.
        of: all else that a driver takes.

    Attributes:
        known: the newest record when each outcome was told that it has not acted on yet.
    """

    def __init__(self, learner: Learner, watch: TrainingWatch, **of: Any) -> None:
        super().__init__(learner.peer_id, learner.strategy, learner.trainer, **of)
        self.known: deque[int] = deque()
        self._learner = learner
        self._watch = watch

    def contribute(self) -> OwnPart:
        """See the production driver."""
        if self.op + 1 == self._learner.nonfinite_op:
            self._learner.trainer.diverge()
        part = super().contribute()
        self._watch.contributed(self._learner, part)
        return part

    def load(self, action: do.LoadState) -> StateImage:
        """See the production driver."""
        self._acts()
        image = super().load(action)
        self._watch.loaded(self._learner, takes_back=self._has_kept)
        return image

    def end_op(self, result: OpResult) -> StateImage:
        """See the production driver."""
        self._acts()
        if result.replayed:
            self._learner.replayed_ops.append(result.op)
        self._watch.applying(self._learner, result)
        image = super().end_op(result)
        self._watch.applied(self._learner, result)
        return image

    def skip(self, op: int) -> None:
        """See the production driver."""
        self._acts()
        before = self._watch.state_of(self._learner)
        super().skip(op)
        self._watch.skipped(self._learner, op, before)

    def _acts(self) -> None:
        self._learner.acts_on_index = self.known.popleft()

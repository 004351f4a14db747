"""A peer's training thread in a pipeline: passes and steps in parts, and each stage's exchange.

Every stage of the span is a group with a session of its own. One inbox has what concerns all of
them: a part of the pipeline's work is made when it comes, and between two parts outcomes are
applied. When a round is closed each stage gives what its steps have made of it.

An outcome that has a later place is applied there: after so many inner steps of our own, at the
next round's end at the latest. It is not waited for there, as micro-batches of all stages would
wait with it; it has come when that round is closed.

Not here: which part comes when, which is the stage machine's decision.
"""

import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.network.shell import ForTrainer
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.training.meter import Meter
from swarmtrain.peer.training.session import Session
from swarmtrain.peer.training.state_image import anchor_of
from swarmtrain.peer.view import TrainerNote
from swarmtrain.pipeline.evaluation import Anchors
from swarmtrain.pipeline.stage_peer import Part
from swarmtrain.pipeline.stage_trainer import StageTrainer
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport import actions as do
from swarmtrain_transport.pipeline.peer.requests import Evaluated, Step
from swarmtrain_transport.pipeline.wire.orders import Pace
from swarmtrain_transport.wire.messages import LeaseGrant, Released, Waiting, Welcome

_GLANCE_S = 0.25
"""Interval at which a trainer without work looks if it is to stop."""


class StageTraining:
    """Training of one peer in a pipeline, from its stages' first states to its leave.

    Args:
        thread: the network side, with MOVED already taken from its inbox.
        sessions: sessions of each stage of the span.
        trainer: trainer of the span.
        config: the run file.
        on_other: hears what is neither work nor an outcome.
        clock: monotonic seconds.

    Attributes:
        trainer: trainer of the span.
        loss: loss of micro-batches whose routes ended here in the last closed round, in nats per
            token; 0 without any.
        counted: micro-batches in the steps of the last closed round, by stage.
    """

    def __init__(
        self,
        thread: PeerThread,
        sessions: Mapping[int, Session],
        trainer: StageTrainer,
        config: RunConfig,
        on_other: Callable[[LeaseGrant | Waiting | Welcome | Evaluated], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainer = trainer
        self.sessions = sessions
        self.loss = 0.0
        self.counted: dict[int, int] = {}
        self._thread, self._config, self._on_other = thread, config, on_other
        self._clock = clock
        self._meter = Meter(clock)
        self._micro_batch = config.pipeline.micro_batch * config.model.context  # in tokens
        self._flushes = config.pipeline.schedule == "flush"
        self._pace = Pace()
        self._steps_before: Counter[int] = Counter()  # the round under way
        self._loss_before = (0.0, 0)  # the step under way
        self._is_asked = self._is_leaving = self._is_open = self._stands_still = False

    # ---- life

    def start(self) -> None:
        """Restore or offer each stage's state, and wait until the run's are in place.

        Raises:
            UserError: the run cannot be joined, or the coordinator refused.
        """
        for session in self.sessions.values():
            session.attach()
        while not self.should_stop and any(one.driver.op < 0 for one in self.sessions.values()):
            self.work()

    def work(self) -> None:
        """Do what comes next: a part, or whatever else is in the inbox; wait for it a moment.

        Raises:
            UserError: the network side ended, or the state directory cannot be written.
        """
        if self._is_asked:
            for session in self.sessions.values():
                session.glance()
        try:
            item = self._thread.inbox.get(timeout=_GLANCE_S)
        except queue.Empty:
            return
        self._heed(item)

    def request_stop(self) -> None:
        """Leave when the round under way has ended, or at once if it cannot. Safe to call from a
        signal handler."""
        self._is_asked = True
        for session in self.sessions.values():
            session.request_stop()

    @property
    def is_finished(self) -> bool:
        """True if all rounds of all stages are over."""
        return all(session.is_finished for session in self.sessions.values())

    @property
    def should_stop(self) -> bool:
        """True if the run is over, or the round after which the peer was asked to leave."""
        sessions = self.sessions.values()
        is_stuck = self._stands_still or all(one.machine.is_lonely for one in sessions)
        leaves = self._is_asked and (self._is_leaving or is_stuck)
        return self.is_finished or (leaves and all(one.should_stop for one in sessions))

    def leave(self, reason: str, *, save: bool, waits: Callable[[], None]) -> bool | None:
        """Keep the state of each stage, and as `Session.leave`.

        Raises:
            UserError: SWT-E401, no room for a checkpoint; the goodbye was said all the same.
        """
        try:
            if save:
                for session in self.sessions.values():
                    session.save()
            return not save or self.is_finished or self._thread.hand_over(waits)
        finally:
            self._thread.leave(reason)

    # ---- what comes

    def _heed(self, item: ForTrainer) -> None:
        match item:
            case UserError():
                raise item
            case LeaseGrant() | Waiting() | Welcome() | Evaluated():
                if isinstance(item, Waiting):
                    self._stands_still = bool(item.text)
                self._on_other(item)
            case do.ApplyResult():
                self._outcome(item.result.group, item)
            case do.LoadState() | do.OpSkipped() | do.RunFinished():
                self._outcome(item.group, item)
            case do.Moved() | Released():
                pass
            case _:
                self._make(item)

    def _outcome(
        self,
        group: int,
        item: do.ApplyResult | do.LoadState | do.OpSkipped | do.RunFinished,
    ) -> None:
        session = self.sessions.get(group)
        if session is not None:  # else we were moved away
            session.machine.heard(item)
            if not self._is_open:
                session.machine.hurry()
            self._advance()

    def _advance(self) -> None:
        """Apply what came, but for the weights that a backward pass is in the midst of."""
        if not self.trainer.is_midway:
            for session in self.sessions.values():
                session.advance()

    def _make(self, part: Part) -> None:
        while self._holds_back:
            self.work()
        end = part(self)
        self._thread.call(lambda shell: shell.part_made(end))
        self._advance()

    @property
    def _holds_back(self) -> bool:
        """No part may be made now: a stage's state is not there, or where steps are flushed an
        outcome is awaited, on which all build."""
        return not (self.is_finished or self.trainer.is_midway) and any(
            one.driver.op < 0 or (self._flushes and one.awaits_outcome)
            for one in self.sessions.values()
        )

    # ---- for parts

    def begin(self, pace: Pace) -> None:
        """A round begins, whose steps go by this. The order may come before the ledger's words."""
        while len(self._thread.shell.turns) < pace.turns and not self.should_stop:
            self.work()
        self._pace, self._is_open = pace, True
        self._steps_before = self.trainer.num_steps.copy()
        self.trainer.begin(pace)

    def anchors(self, ops: Sequence[int]) -> Anchors | None:
        """The values of our stages after these ops of the run's; None if a stage has others."""
        sessions, block = self.sessions, self._config.exchange.block
        if any(one.driver.op != ops[stage] for stage, one in sessions.items()):
            return None
        return {
            stage: (
                Layout.of(self.trainer.span.modules[stage], block),
                anchor_of(one.driver.strategy),
            )
            for stage, one in sessions.items()
        }

    def is_behind(self, ops: Sequence[int]) -> bool:
        """Return True if the outcome of one of these ops is still to come into place here."""
        return any(one.driver.op < ops[stage] for stage, one in self.sessions.items())

    def step(self, request: Step) -> None:
        """Make an inner step."""
        trainer = self.trainer
        trainer.rate = self._rate(request.stages.last)
        trainer.step(request)
        for stage, session in self.sessions.items():
            if stage in request.stages:
                session.machine.stepped_elsewhere()
        if request.stages.last < max(self.sessions):
            return  # the last stage steps with all that was counted here
        (total, count), (total_before, count_before) = trainer.loss, self._loss_before
        loss = (total - total_before) / (count - count_before) if count > count_before else None
        self._loss_before = trainer.loss
        self._meter.count(loss, request.tokens)
        self._tell("training")

    def settle(self, round: int) -> None:
        """Give each stage's work of a round, after the outcome of the last one's. Work that is not
        taken then, as where a stage has made all its rounds, is never taken."""
        for session in self.sessions.values():
            session.machine.hurry()
        self._advance()
        while any(one.awaits_outcome for one in self.sessions.values()):
            self.work()
        tokens = self.trainer.tokens
        self.counted = {stage: count // self._micro_batch for stage, count in tokens.items()}
        for stage, session in self.sessions.items():
            session.take_back()
            if tokens[stage] and not (session.is_finished or self._is_leaving):
                session.give(tokens[stage])
        tokens.clear()
        total, count = self.trainer.loss
        if count:
            self.loss = total / count
        self.trainer.loss = self._loss_before = (0.0, 0)
        self._is_leaving, self._is_open = self._is_asked, False
        self._tell("exchanging")

    def _rate(self, stage: int) -> float:
        """The learning rate of a stage's next step, by how far the run is."""
        inner = self._config.inner
        return warmup_cosine(
            self._pace.step(self._made(stage)),
            peak=inner.lr,
            warmup_steps=inner.warmup_steps,
            total_steps=self._config.schedule_steps,
            end_fraction=inner.lr_end_fraction,
        )

    def _made(self, stage: int) -> int:
        """Inner steps of a stage in this round."""
        return self.trainer.num_steps[stage] - self._steps_before[stage]

    def _tell(self, phase: str) -> None:
        meter, made = self._meter, self._made(max(self.sessions))
        self._thread.note(TrainerNote(phase, made, meter.loss, meter.rate, meter.tokens))

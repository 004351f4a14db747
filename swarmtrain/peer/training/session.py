"""A peer's training thread: inner steps, rounds, leaving. Shared by the command and by the hook.

Between two inner steps it looks into the inbox: it applies results, reports state roots, writes
checkpoints, and when the inner steps of a round are done it gives its part and waits for the
outcome. While the coordinator is away it trains on, for one round at most (protocol.md rule 10).
"""

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from swarmtrain.config.settings import RunConfig
from swarmtrain.errors import UserError, cleaned
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network.shell import ForTrainer
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.training.ahead import known_of
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.meter import Meter, Pace
from swarmtrain.peer.training.rounds import RoundReport, report_of
from swarmtrain.peer.training.saves import Saves
from swarmtrain.peer.training.state_image import StateImage
from swarmtrain.peer.view import TrainerNote
from swarmtrain.status import waiting_words
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.messages import (
    CheckpointWritten,
    Evaluated,
    LeaseGrant,
    Waiting,
    Welcome,
)

_GLANCE_S = 0.25
"""How often a waiting trainer looks whether it should go on instead."""

_LONELY_S = 5.0
"""Without the coordinator for this long, a waiting peer trains on, and a leaving one goes."""


_JUDGED_STEPS = 20
"""Rounds of one inner step between two evaluations."""


@dataclass(slots=True)
class Hooks:
    """What the owner of a session wants to hear or can do. All run on the training thread.

    Attributes:
        evaluate: validation loss of an anchor (padded,) float32, None if this peer cannot.
        on_round: a round has ended.
        on_state: a state was loaded; the argument is its op.
        on_lease: text was leased.
        on_waiting: the run stands still, and why, in words; "" when it goes on.
    """

    evaluate: Callable[[Tensor], float] | None = None
    on_round: Callable[[RoundReport], None] | None = None
    on_state: Callable[[int], None] | None = None
    on_lease: Callable[[LeaseGrant], None] | None = None
    on_welcome: Callable[[], None] | None = None
    on_waiting: Callable[[str], None] | None = None


class Session:
    """One peer from its first state to its leave.

    Args:
        me: own id.
        thread: the network side, started, with WELCOME already taken from its inbox.
        storage: state directory.
        config: the run file.
        driver: strategy and weights.
        layout: of the model.
        hooks: what the owner wants to hear.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        me: PeerId,
        thread: PeerThread,
        storage: PeerStorage,
        config: RunConfig,
        driver: Driver,
        layout: Layout,
        hooks: Hooks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = driver
        self.is_finished = False
        self.result = ""
        self._me = me
        self._thread = thread
        self._storage = storage
        self._config = config
        self._saves = Saves(storage, config, layout)
        self._hooks = hooks
        self._clock = clock
        self._stop_wanted = False
        self._stands_still = False
        self._round_ended = True
        self._offered_root = b""
        self._outcomes: deque[ForTrainer] = deque()
        self._extra_steps = 0
        self._seen_s = clock()
        self._given_s = clock()
        self._meter = Meter(clock)
        self._pace = Pace(clock)
        self._phase = "starting"
        self._final_loss: float | None = None

    # ---- life

    def start(self) -> None:
        """Restore or offer a state, and wait until the run's state is in place.

        Raises:
            UserError: the run cannot be joined, or the coordinator refused.
        """
        image = self._saves.restored(self.driver) or self.driver.offer()
        self._offered_root = image.manifest.root
        chunks = image.chunks or ()
        rounds = self._config.checkpoint.snapshot_rounds
        self._thread.machine(
            lambda participant, now_s: participant.attach(
                image.op, image.manifest, chunks, rounds, now_s, self.driver.fragments
            )
        )
        self._say("syncing")
        while self.driver.op < 0 and not self.should_stop:
            self._look(wait=True)
        self._say("training")
        self._pace.begin()

    def stepped(self, samples: int, loss: float | None, tokens: int) -> None:
        """One inner step was made; gives the part and waits when the round is due.

        Args:
            samples: of the step, for weights.
            loss: of the step, shown; None if nobody knows it.
            tokens: of the step, shown.

        Raises:
            UserError: the network side ended, or the state directory cannot be written.
        """
        self._pace.made()
        self._meter.count(loss, tokens)
        self.driver.stepped(samples)
        self._round_ended = False
        self._extra_steps += self.driver.is_at_place
        self._look(wait=False)
        self._tell()
        if self.driver.is_at_place:
            self._await_outcome()
        if self.driver.is_due:
            self._give()
        if self.driver.is_at_place:
            self._await_outcome()
        self._pace.begin()

    def idle(self) -> None:
        """Nothing to train on yet: look what comes, for a moment."""
        self._look(wait=True)

    def finish_round(self) -> None:
        """Give what there is, be it less than a round's steps, wait for the outcome, and stop.

        The others finish their own steps first, so this may take as long as a round of theirs.
        """
        self._stop_wanted = True
        if self.driver.op >= 0 and self.driver.steps and not self.driver.is_waiting:
            self._give()
        self._await_outcome()

    def request_stop(self) -> None:
        """Leave after this round. Safe to call from a signal handler."""
        self._stop_wanted = True

    @property
    def should_stop(self) -> bool:
        """Whether the run is over, or the round is after which the peer was asked to leave."""
        return self.is_finished or (self._stop_wanted and self._round_ended)

    @property
    def num_others(self) -> int:
        """How many other peers are in the run now."""
        return self._thread.num_others

    def leave(self, reason: str, *, save: bool = True) -> None:
        """Save the state, say goodbye, end the network thread.

        Args:
            reason: shown to the others.
            save: whether there is time for a checkpoint; without one the last is replayed on.

        Raises:
            UserError: SWT-E401, no room for the checkpoint; the goodbye was said all the same.
        """
        try:
            if save and self.driver.op >= 0:
                self._saves.save(self.driver.op, self.driver)
                if self.is_finished:
                    self.result = self._saves.ending(self._final_loss)
                    self._say("finished")
        finally:
            self._thread.leave(reason)

    # ---- rounds

    def _give(self) -> None:
        part = self.driver.contribute()
        pace = self._pace.end_round() if self.driver.keeps_pace else 0.0
        self._given_s = self._clock()
        self._extra_steps = 0
        self._thread.machine(
            lambda participant, now_s: participant.ready(
                part.op, part.contribution, part.samples, now_s, pace
            )
        )
        self._say("exchanging")

    def _await_outcome(self) -> None:
        while self.driver.is_waiting and not self.should_stop:
            now_s = self._clock()
            if self._thread.is_connected:
                self._seen_s = now_s
            is_lonely = now_s - self._seen_s > _LONELY_S
            if self._stop_wanted and (is_lonely or self._waits_in_vain(now_s)):
                self._round_ended = True
                break
            if is_lonely and self._extra_steps < self._config.steps_per_round:
                self._say("training alone")
                return
            self._look(wait=True)
        self._say("training")

    def _waits_in_vain(self, now_s: float) -> bool:
        """Return True if no exchange has begun, and none will: the run itself waits, or the others
        have had their time to get ready."""
        patience_s = self._config.exchange.wait_ready_s + _LONELY_S
        is_late = now_s - self._given_s > patience_s
        return not self._thread.is_exchanging and (self._stands_still or is_late)

    def _look(self, *, wait: bool) -> None:
        """Handle what is in the inbox; with `wait`, give it a moment to come."""
        timeout_s = _GLANCE_S if wait and not self._go_on() else 0.0
        while True:
            try:
                item = self._thread.inbox.get(block=timeout_s > 0, timeout=timeout_s or None)
            except queue.Empty:
                return
            timeout_s = 0.0
            self._sort(item)
            self._go_on()

    def _sort(self, item: ForTrainer) -> None:
        """What concerns the shared state has its order and perhaps its place; the rest has not."""
        match item:
            case UserError():
                raise item
            case LeaseGrant():
                if self._hooks.on_lease is not None:
                    self._hooks.on_lease(item)
            case Waiting():
                self._stands_still = bool(item.text)
                if self._hooks.on_waiting is not None:
                    words = waiting_words(cleaned(item.text), item.seen_s, time.time())
                    self._hooks.on_waiting(words)
            case Welcome():
                if self._hooks.on_welcome is not None:
                    self._hooks.on_welcome()
            case _:
                self._outcomes.append(item)

    def _go_on(self) -> bool:
        """Handle outcomes up to one whose place is not reached; whether there was any."""
        is_any = False
        while self._outcomes and not self._is_early(self._outcomes[0]):
            self._handle(self._outcomes.popleft())
            is_any = True
        return is_any

    def _is_early(self, item: ForTrainer) -> bool:
        """An overlapped op's outcome waits for the step where all peers put it."""
        is_outcome = isinstance(item, do.ApplyResult | do.OpSkipped)
        waits = self.driver.is_waiting and not self.driver.is_at_place
        return is_outcome and waits and not self._stop_wanted

    def _handle(self, item: ForTrainer) -> None:
        match item:
            case do.LoadState():
                self._load(item)
            case do.ApplyResult():
                self._apply(item.result)
            case do.OpSkipped():
                self.driver.skip(item.op)
                self._give_ahead()
                self._ended(RoundReport(item.op, "skipped", 0, item.reason))
            case do.RunFinished():
                self.driver.settle()
                self.is_finished, self._final_loss = True, item.loss

    def _load(self, action: do.LoadState) -> None:
        image = self.driver.load(action)
        if self._saves.newest != (action.op, image.manifest.root):
            # With the results that follow, the way back after a power cut.
            self._saves.save(action.op, self.driver)
        self._storage.end_download()
        self._report(image)
        self._give_ahead()
        if self._hooks.on_state is not None:
            self._hooks.on_state(action.op)
        if action.op == 0 and image.manifest.root == self._offered_root:
            self._evaluate(0)

    def _apply(self, result: OpResult) -> None:
        self._storage.keep_result(result)
        took_part = self.driver.is_waiting
        self._report(self.driver.end_op(result))
        self._give_ahead()
        self.driver.keep_pace(self._pace.steps_per_s, result.fastest_steps_per_s)
        self._ended(report_of(result, self.driver, took_part=took_part, me=self._me))
        self._keep_state(result)
        if result.evaluate_by == self._me and self._is_judged(result.op):
            self._evaluate(result.op)

    def _keep_state(self, result: OpResult) -> None:
        """A checkpoint, where one is due: of a shared state one peer's is enough, but what is each
        peer's own nobody else can bring back."""
        every_rounds = self._config.checkpoint.every_rounds
        if result.checkpoint_by == self._me:
            saved = self._saves.save(result.op, self.driver)
            self._thread.send(CheckpointWritten(result.op, saved.manifest_hash))
        elif self.driver.is_paired and result.op % every_rounds == 0:
            self._saves.save(result.op, self.driver)
        elif result.op - self._saves.newest[0] >= limits.RESULT_KEEP_OPS:
            # Before a result is forgotten that leads from there to here.
            self._saves.save(result.op, self.driver)

    def _is_judged(self, op: int) -> bool:
        """Where every step is a round, evaluating each would cost more than training."""
        return self._config.steps_per_round > 1 or op % _JUDGED_STEPS == 0

    def _ended(self, report: RoundReport) -> None:
        self._round_ended = not self.driver.is_waiting
        if self._hooks.on_round is not None:
            self._hooks.on_round(report)

    def _report(self, image: StateImage) -> None:
        self._thread.machine(
            lambda participant, now_s: participant.applied(
                image.op, image.manifest, image.chunks, now_s
            )
        )

    def _give_ahead(self) -> None:
        """What the next op's partner will get from us is on its way during the inner steps, if
        there is a next one."""
        known = None if self._stop_wanted else known_of(self.driver)
        if known is None:
            return

        def give(participant: Participant, now_s: float) -> Actions:
            if participant.view.committed >= self._config.run.rounds:
                return ()
            return participant.give_ahead(*known, known[1].start, now_s)

        self._thread.machine(give)

    def _evaluate(self, op: int) -> None:
        if self._hooks.evaluate is not None:
            anchor = dict(self.driver.strategy.state_arrays())["anchor"]
            self._thread.send(Evaluated(op, self._hooks.evaluate(anchor)))

    # ---- numbers

    def _say(self, phase: str) -> None:
        self._phase = phase
        self._tell()

    def _tell(self) -> None:
        meter = self._meter
        self._thread.note(
            TrainerNote(
                self._phase, self.driver.steps, meter.loss, meter.rate, meter.tokens, self.result
            )
        )

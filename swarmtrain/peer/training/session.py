"""A peer's training thread: the training machine between inner steps, with disk, hooks and inbox.

Shared by the command and by the hook. Between two inner steps it looks into the inbox, lets the
machine decide, and does as it says: tell the network side, keep results and checkpoints, evaluate.
Where the machine holds the training back, it waits. Not here: any decision about rounds.
"""

import math
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from swarmtrain.checkpoint import ANCHOR, Checkpoint
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.group_storage import GroupStorage
from swarmtrain.peer.network.memory import give_back
from swarmtrain.peer.network.shell import ForTrainer, PeerShell
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.initial import initial_weights
from swarmtrain.peer.training.machine import (
    LONELY_S,
    Actions,
    Applied,
    Ended,
    Evaluate,
    GiveAhead,
    Image,
    KeepResult,
    Loaded,
    Ready,
    TrainingMachine,
    tell,
)
from swarmtrain.peer.training.meter import Meter
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.saves import Saves
from swarmtrain.peer.training.state_image import anchor_of
from swarmtrain.peer.view import TrainerNote
from swarmtrain.status import waiting_words
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.messages import (
    PAUSED,
    CheckpointWritten,
    Evaluated,
    LeaseGrant,
    Waiting,
    Welcome,
)

_LARGE_VALUES = 4 << 20
"""Values of a model from which on freed memory goes back to the system where a round's steps end
and where its exchange does: its parts and results are then as large as the process itself."""

_TRIM_PAUSE_S = 30.0
"""Pause between two such times where inner steps go on during an exchange."""

_GLANCE_S = 0.25
"""Pause between two looks of a waiting trainer whether it should go on instead."""


@dataclass(slots=True)
class Hooks:
    """Callbacks of a session's owner. All run on the training thread.

    Attributes:
        evaluate: validation loss of an anchor (padded,) float32, None if this peer cannot.
        on_round: a round has ended.
        on_state: a state was loaded; the argument is its op.
        on_lease: text was leased.
        on_welcome: the coordinator has let this peer in again.
        on_waiting: the run stands still, and why, in words; "" when it goes on.
    """

    evaluate: Callable[[Tensor], float] | None = None
    on_round: Callable[[RoundReport], None] = lambda report: None
    on_state: Callable[[int], None] = lambda op: None
    on_lease: Callable[[LeaseGrant], None] = lambda grant: None
    on_welcome: Callable[[], None] = lambda: None
    on_waiting: Callable[[str], None] = lambda words: None


class Session:
    """One peer in one group, from its first state to its leave.

    Args:
        me: own id.
        thread: the network side, started, with WELCOME already taken from its inbox.
        storage: storage of the group.
        config: the run file.
        driver: strategy and weights.
        layout: layout of the model.
        hooks: calls that the owner asked for.
        clock: monotonic seconds.
        saves: checkpoints; None for those of a peer that is one process.

    Attributes:
        driver: strategy and weights.
        machine: decides; who learns of steps and outcomes in another way than `stepped` tells it,
            and then calls `advance`.
        result: words for the end of a finished run: what it has come to and where the model is.
    """

    def __init__(
        self,
        me: PeerId,
        thread: PeerThread,
        storage: GroupStorage,
        config: RunConfig,
        driver: Driver,
        layout: Layout,
        hooks: Hooks,
        clock: Callable[[], float] = time.monotonic,
        saves: Saves | None = None,
    ) -> None:
        self.driver = driver
        self.result = ""
        self._me = me
        self._thread = thread
        self._storage, self._group = storage, storage.group
        self._config = config
        self._layout = layout
        self._saves = saves or Saves(storage, config, layout)
        self._hooks = hooks
        self._is_large = layout.padded >= _LARGE_VALUES
        self._gave_back_s = -math.inf
        self._clock = clock
        self._meter = Meter(clock)
        self._phase = "starting"
        self.machine = TrainingMachine(
            me,
            driver,
            rounds=config.num_ops,
            steps_per_round=config.steps_per_round,
            patience_s=config.exchange.wait_ready_s + LONELY_S,
            ends_by_word=config.pipeline.num_stages > 1,
        )

    # ---- life

    def start(self) -> None:
        """Restore or offer a state, and wait until the run's state is in place.

        Raises:
            UserError: the run cannot be joined, or the coordinator refused.
        """
        self.attach()
        self._wait()

    def attach(self) -> None:
        """Restore or offer a state: the run's follows as an outcome.

        Raises:
            UserError: the state directory cannot be read.
        """
        image = self._saves.restored(self.driver)
        is_given = image is None and self._begins_as_given()
        image = image or self.driver.offer()
        self.machine.offered_root = image.manifest.root
        chunks = image.chunks or ()
        rounds = self._config.checkpoint.snapshot_rounds
        self._thread.machine(
            lambda participant, now_s: participant.attach(
                image.op,
                image.manifest,
                chunks,
                rounds,
                now_s,
                self.driver.fragments,
                self._group,
                is_given=is_given,
            )
        )
        self._say("syncing")

    def _begins_as_given(self) -> bool:
        """Take the organiser's weights for the first state, if the run has none and there are."""
        name, layout, group = self._config.model.initial, self._layout, self._group
        flat, facts = self.driver.flat, self._config.facts
        if not name:
            return False

        async def fetched(shell: PeerShell) -> dict[str, Tensor] | None:
            if await shell.has_begun(group):
                return None
            return await initial_weights(
                name, layout, lambda digest, most: shell.fetch_piece(digest, bytes_max=most),
                facts, flat,
            )  # fmt: skip

        self._say("fetching")
        vectors = self._thread.result_of(fetched)
        if vectors is not None:
            self.driver.begin_with(vectors.pop(ANCHOR), vectors)
        return vectors is not None

    def give(self, samples: int) -> None:
        """Give the work of a round whose inner steps were made elsewhere.

        Args:
            samples: samples of all of its steps, for weights.
        """
        self._give_back()  # gradients went with the last step: a copy of the weights comes now
        self._do(self.machine.give(samples, self._clock()))

    @property
    def awaits_outcome(self) -> bool:
        """True if our part is given, and is in an op that was planned."""
        driver = self.driver
        return driver.is_waiting and self._thread.shell.is_planned(driver.op + 1, self._group)

    def take_back(self) -> None:
        """Take back what was given and no op takes: it is work of the next one."""
        if self.driver.is_waiting:
            self.machine.take_back()

    def stepped(self, samples: int, loss: float | None, tokens: int) -> None:
        """One inner step was made; gives the part and waits when the round is due.

        Args:
            samples: samples of the step, for weights.
            loss: loss of the step, shown; None if nobody knows it.
            tokens: tokens of the step, shown.

        Raises:
            UserError: the network side ended, or the state directory cannot be written.
        """
        self.machine.stepped(samples, self._clock())
        self._meter.count(loss, tokens)
        self._look(wait=False)
        self._say_training()
        self._wait()

    def idle(self) -> None:
        """Wait a moment for news: there is nothing to train on yet."""
        self._look(wait=True)

    def finish_round(self) -> None:
        """Give what there is, be it less than a round's steps, wait for the outcome, and stop.

        The others finish their own steps first, so this may take as long as a round of theirs.
        """
        self._do(self.machine.finish_round(self._clock()))
        self.advance()
        self._wait()

    def request_stop(self) -> None:
        """Leave after this round. Safe to call from a signal handler."""
        self.machine.leave_soon()

    @property
    def is_finished(self) -> bool:
        """True if the run is over."""
        return self.machine.is_finished

    @property
    def should_stop(self) -> bool:
        """True if the run is over, or the round after which the peer was asked to leave."""
        return self.machine.should_stop

    def leave(
        self, reason: str, *, save: bool = True, waits: Callable[[], None] = lambda: None
    ) -> bool | None:
        """Save the state, let others take over what they lack of it, say goodbye, end the network
        thread.

        Args:
            reason: shown to the others.
            save: True if there is time for that; else the last checkpoint is replayed on.
            waits: called if the others take longer than a moment.

        Returns:
            False if nobody else is known to hold the newest state, None if nobody can be asked.

        Raises:
            UserError: SWT-E401, no room for the checkpoint; the goodbye was said all the same.
        """
        try:
            if save:
                self.save()
            return (
                not save or self.driver.op < 0 or self.is_finished or self._thread.hand_over(waits)
            )
        finally:
            self._thread.leave(reason)

    def save(self) -> None:
        """Keep the state for a later life; of a finished run it is the result.

        Raises:
            UserError: SWT-E401, no room for the checkpoint.
        """
        if self.driver.op >= 0:
            self._save(self.driver.op)
            if self.is_finished:
                self.result = self._saves.ending(self.machine.final_rounds, self.machine.final_loss)
                self._say("finished")

    def _save(self, op: int) -> Checkpoint:
        return self._saves.save(op, self.driver, self._thread.shell.text_at(op, self._group))

    # ---- rounds

    def _wait(self) -> None:
        """Until the next inner step may be made, and the peer's owner lets it."""
        while self.machine.holds_back or self._rests:
            self._look(wait=True)
        self._say_training()
        self.machine.begins_step(self._clock())

    @property
    def _rests(self) -> bool:
        """True if the owner has asked for a pause, and a round has just ended."""
        wishes, machine = self._thread.wishes, self.machine
        wishes.look()
        if wishes.finishes or wishes.leaves:
            machine.leave_soon()
        rests = wishes.is_paused and machine.is_between_rounds and not machine.should_stop
        if rests and self._phase != PAUSED:
            self._say(PAUSED)
        return rests

    def _look(self, *, wait: bool) -> None:
        """Handle what is in the inbox; with `wait`, give it a moment to come."""
        is_any = self.advance()
        timeout_s = _GLANCE_S if wait and not is_any else 0.0
        while True:
            try:
                item = self._thread.inbox.get(block=timeout_s > 0, timeout=timeout_s or None)
            except queue.Empty:
                break
            timeout_s = 0.0
            self._sort(item)
            self.advance()
        self.glance()

    def glance(self) -> None:
        """See how the network side stands: whoever leaves waits for no op that does not come."""
        shell = self._thread.shell
        self.machine.network(
            self._clock(), is_connected=shell.is_connected, is_exchanging=shell.is_exchanging
        )

    def _sort(self, item: ForTrainer) -> None:
        match item:
            case UserError():
                raise item
            case LeaseGrant():
                self._hooks.on_lease(item)
            case Waiting():
                self.machine.stands_still(is_so=bool(item.text))
                words = waiting_words(cleaned(item.text), item.seen_s, time.time())
                self._hooks.on_waiting(words)
            case Welcome():
                self._hooks.on_welcome()
            case do.LoadState() | do.ApplyResult() | do.OpSkipped() | do.RunFinished():
                self.machine.heard(item)

    def advance(self) -> bool:
        """Do all that the machine asks now; True if there was anything."""
        is_any = False
        while actions := self.machine.advance(self._clock()):
            self._do(actions)
            is_any = True
        return is_any

    def _do(self, actions: Actions) -> None:
        for action in actions:
            match action:
                case Ready():
                    self._give_back()
                    loss = self._meter.end_round()
                    if self._config.guard.spike:
                        action = replace(action, loss=loss)
                    self._thread.machine(partial(tell, action, group=self._group))
                    self._say("exchanging")
                case GiveAhead() | Applied():
                    self._thread.machine(partial(tell, action, group=self._group))
                case Loaded():
                    self._loaded(action.image)
                case KeepResult():
                    self._storage.keep_result(action.result)
                case Ended():
                    self._ended(action)
                case Evaluate():
                    self._evaluate(action.op)

    def _loaded(self, image: Image) -> None:
        if self._saves.newest != (image.op, image.manifest.root):
            # With the results that follow, the way back after a power cut.
            self._save(image.op)
        self._storage.end_download()
        self._meter.begin_round()
        give_back()
        self._hooks.on_state(image.op)

    def _ended(self, action: Ended) -> None:
        self._hooks.on_round(action.report)
        if action.result is not None:
            self._keep_state(action.result)
        self._give_back()

    def _give_back(self) -> None:
        """Give back what steps or an exchange have freed. These are on two threads, whose memory
        the C library keeps apart: neither can use what the other has left. It is seldom done where
        steps go on during an exchange, as the next one would get its memory back page by page."""
        now_s = self._clock()
        if self._is_large and now_s >= self._gave_back_s + _TRIM_PAUSE_S * self.driver.overlaps:
            self._gave_back_s = now_s
            give_back()

    def _keep_state(self, result: OpResult) -> None:
        """A checkpoint, where one is due: of a shared state one peer's is enough, but what is each
        peer's own nobody else can bring back."""
        every_rounds = self._config.checkpoint.every_rounds
        if result.checkpoint_by == self._me:
            saved = self._save(result.op)
            self._thread.send(CheckpointWritten(result.op, saved.manifest_hash, self._group))
        elif self.driver.is_paired and result.op % every_rounds == 0:
            self._save(result.op)
        elif result.op - self._saves.newest[0] >= limits.RESULT_KEEP_OPS:
            # Before a result is forgotten that leads from there to here.
            self._save(result.op)

    def _evaluate(self, op: int) -> None:
        if self._hooks.evaluate is not None:
            loss = self._hooks.evaluate(anchor_of(self.driver.strategy))
            self._thread.send(Evaluated(op, loss, self._group))

    # ---- numbers

    def _say_training(self) -> None:
        if self.is_finished or self.machine.holds_back:
            self._tell()
        elif self.machine.is_alone:
            self._say("training alone")
        else:
            self._say("exchanging" if self.driver.is_waiting else "training")

    def _say(self, phase: str) -> None:
        self._phase = phase
        self._tell()

    def _tell(self) -> None:
        meter = self._meter
        self._thread.note(
            TrainerNote(
                self._phase,
                self.driver.steps,
                meter.loss,
                meter.rate,
                meter.tokens,
                self.result,
                self._config.counted_unit,
            )
        )

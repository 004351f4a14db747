"""`swarmtrain join`: a peer that trains the run's model until it is told to stop.

The main thread trains; the network has its own thread. Ctrl+C once finishes the round and leaves
cleanly, twice leaves at once: either way the coordinator is told, so that a peer that left is not
taken for one that vanished.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import torch
from msgspec.structs import replace
from torch import Tensor

from swarmtrain.config.options import JoinOptions
from swarmtrain.config.owner_limits import NO_LIMITS, Limits
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation import signals as ending
from swarmtrain.foundation import supervisor
from swarmtrain.foundation.errors import Interrupted, UserError, cleaned
from swarmtrain.foundation.events import (
    Evaluated,
    Frozen,
    In,
    Left,
    Serving,
    StateInPlace,
)
from swarmtrain.models.device import device_of
from swarmtrain.peer.disk.shelf import free_bytes
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.network.shell import GIVEN_UP, PeerShell
from swarmtrain.peer.staged import Rehearsal, StagedPeer
from swarmtrain.peer.telling import Emit, Print, Telling, unheld
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.reading import Reader
from swarmtrain.peer.training.rounds import RoundReport, in_words
from swarmtrain.peer.training.session import Hooks
from swarmtrain.peer.training.trainer import BuiltinTrainer
from swarmtrain.pipeline.speed import flops_per_s
from swarmtrain.pipeline.staged_model import OwnWork
from swarmtrain_optimizers.scaling import schedule_step, tokens_since_commit
from swarmtrain_transport import actions as do
from swarmtrain_transport.limits import HAND_OVER_S
from swarmtrain_transport.wire.messages import (
    BUILT_IN,
    FIRST_GROUP,
    LEASED,
    OWN,
    Brings,
    LeaseGrant,
)

HANDING_OVER = (
    "Nobody else has the weights after round {round} yet: waiting until somebody does, for "
    f"{HAND_OVER_S:.0f} s at most."
)


def run_peer(
    options: JoinOptions,
    *,
    say: Print,
    emit: Emit,
    make_shell: Callable[..., PeerShell] = PeerShell,
) -> int:
    """Join, train, leave. Returns the exit status.

    Args:
        options: options of the command.
        say: shows people a line.
        emit: puts out an event for programs.
        make_shell: makes the network side, see PeerThread.

    Raises:
        UserError: what its table says.
        Interrupted: the second Ctrl+C came before the clean end.
    """
    telling = Telling(say, emit if options.json_events else None)
    live(options, telling, emit=emit, make_shell=make_shell)
    return 0


def live(
    options: JoinOptions,
    events: Telling,
    *,
    own: OwnWork | None = None,
    emit: Emit = lambda event: None,
    make_shell: Callable[..., PeerShell] = PeerShell,
) -> Left:
    """Join, train, leave.

    Args:
        options: options of the command.
        events: hears the news.
        own: a model in stages that this peer brings; None trains the built-in one.
        emit: puts out the event of a rehearsed death.
        make_shell: makes the network side, see PeerThread.

    Returns:
        Event of the peer's leaving.

    Raises:
        UserError: what its table says.
        Interrupted: the second Ctrl+C came before the clean end.
    """
    freeze = None
    number = options.freeze_in_round
    if number:
        freeze = (
            number,
            lambda op, sent, total: _freeze(Frozen(op, "scatter", sent, total), emit),
        )
    rehearsal = Rehearsal(
        options.pass_s, number, lambda held: _freeze(Frozen(number, "passes", 0, 0, held), emit)
    )
    enter = partial(
        Membership.enter, options,
        brings=_brings(options, own), freeze=freeze, make_shell=make_shell,
    )  # fmt: skip
    while isinstance(end := _lived(enter(), options, events, rehearsal, own), str):
        events.say(f"{end} The peer begins anew.")
    return end


def _lived(
    membership: Membership,
    options: JoinOptions,
    events: Telling,
    rehearsal: Rehearsal,
    own: OwnWork | None,
) -> Left | str:
    """Train until the end; or tell why this life of the peer ends, if it is to have another one."""
    try:
        identity, name = membership.identity, membership.name
        came_in = In(identity.peer_id.hex(), name, membership.thread.shell.listening_port)
        events.tell(came_in, f"in as {name} (id {identity.fingerprint})")
        supervisor.say(f"READY=1\nSTATUS=in {membership.config.run.name} as {name}")
        if own is None:
            _check_built_in(membership.config)
        if own is not None or membership.config.pipeline.num_stages > 1:
            if options.ways.micro_batch or options.ways.compile:
                events.say(
                    "The model is in stages, whose parts the run file says: --micro-batch and "
                    "--compile change nothing."
                )
            device = device_of(options.ways.device)
            staged = StagedPeer(
                membership, options.threads, events, device, rehearsal, own, options.ways.modules
            )
            return _train(staged, events)
        return _train(_Peer(membership, options, events), events)
    except UserError as error:
        if error.code != GIVEN_UP:
            raise
        return error.what
    finally:
        membership.close()


def _brings(options: JoinOptions, own: OwnWork | None) -> Brings:
    """Tell the door what this peer is and wishes."""
    text = OWN if options.data else LEASED
    brings = Brings(model=BUILT_IN, data=text) if own is None else own.brings
    span = (options.span[0], options.span[-1]) if options.span else ()
    return replace(
        brings, span=span,
        flops_per_s=flops_per_s(options.threads, device_of(options.ways.device)),
        disk_bytes=free_bytes(options.state_dirs[-1]) // 2,
    )  # fmt: skip


class _Peer:
    """The built-in trainer, its text and its session, tied together."""

    def __init__(self, membership: Membership, options: JoinOptions, events: Telling) -> None:
        config = membership.config
        self.membership = membership
        self._threads = options.threads
        self._limited(NO_LIMITS)
        membership.thread.wishes.apply = self._limited
        self.reader = Reader(
            config, membership.storage.directory, batch=config.inner.batch,
            seed=membership.own_seed(), send=membership.thread.send, data=options.data,
            tell=events.say,
        )  # fmt: skip
        self.trainer = BuiltinTrainer(
            config,
            batches=self.reader.next_batch,
            validation=(),
            seed=membership.own_seed(),
            threads=options.threads,
            ways=options.ways,
        )
        self._events = events
        self._has_validation = False
        self._loss = 0.0
        hooks = Hooks(
            evaluate=self._evaluate,
            on_round=self._on_round,
            on_state=self._on_state,
            on_lease=self._on_lease,
            on_welcome=self.reader.ask,
            on_waiting=events.waits,
        )
        group = _expert(membership, events) if config.experts.count > 1 else FIRST_GROUP
        self.session = membership.session(self.trainer, self.trainer.layout, hooks, group)

    def start(self) -> None:
        """Text first, because whoever brings the first state also evaluates it."""
        self.reader.ask()
        while not self.reader.has_text and not self.session.should_stop:
            self.session.idle()
        if not self.session.should_stop:
            self.session.start()

    def request_stop(self) -> None:
        """Leave after this round. Safe to call from a signal handler."""
        self.session.request_stop()

    @property
    def should_stop(self) -> bool:
        """True if the run is over, or the round after which the peer was asked to leave."""
        return self.session.should_stop

    @property
    def is_finished(self) -> bool:
        """True if the run is over."""
        return self.session.is_finished

    @property
    def op(self) -> int:
        """Newest op whose outcome is in place, -1 without a state."""
        return self.session.driver.op

    @property
    def root(self) -> bytes:
        """State root after it."""
        return self.session.driver.root

    @property
    def result(self) -> str:
        """Words for the end of a finished run: what it has come to and where the model is."""
        return self.session.result

    def leave(self, reason: str, *, save: bool, waits: Callable[[], None]) -> bool | None:
        """See `Session.leave`."""
        self.reader.finish()
        return self.session.leave(reason, save=save, waits=waits)

    def step(self) -> None:
        """One inner step and whatever falls due."""
        config, driver = self.membership.config, self.session.driver
        if config.inner.schedule == "tokens":
            self.trainer.step = step_by_tokens(config, driver)
        before = self.trainer.num_samples
        begun_s = time.monotonic()
        self._loss = loss = self.trainer.step_for(driver)
        self.membership.thread.wishes.breathe(time.monotonic() - begun_s)
        samples = self.trainer.num_samples - before
        self.session.stepped(samples, loss, self.trainer.bytes_per_step)

    def _limited(self, limits: Limits) -> None:
        threads = limits.threads or self._threads
        self.membership.thread.wishes.machine.threads = threads
        torch.set_num_threads(threads)

    def _on_lease(self, grant: LeaseGrant) -> None:
        self.membership.thread.run_coroutine(lambda shell: self.reader.fill(shell, grant))

    def _on_state(self, op: int) -> None:
        self.trainer.continue_at(self.membership.config.step_at(op))
        text = f"has the run's weights after round {op}" if op else "has the run's first weights"
        self._events.tell(StateInPlace(op), f"{text}, and trains")

    def _on_round(self, report: RoundReport) -> None:
        ended = report.event(self.session.driver.root, loss=self._loss or None)
        training = f"; training loss {self._loss:.3f}" if self._loss else ""
        self._events.tell(ended, in_words(report) + training)
        # A peer with shorter rounds, or with a part in some of the run's ops alone, is where the
        # run is, not where its own steps would be.
        self.trainer.step = max(self.trainer.step, self.membership.config.step_at(report.round))

    def _evaluate(self, anchor: Tensor) -> float:
        if not self._has_validation:
            self.trainer.use_validation(self.reader.validation or ())
            self._has_validation = True
        loss = self.trainer.evaluate(anchor)
        op = self.session.driver.op
        when = f"round {op}" if op else "before training"
        self._events.tell(Evaluated(op, loss), f"{when}: validation loss {loss:.3f}")
        return loss


def _expert(membership: Membership, events: Telling) -> int:
    """Wait until the ledger says which expert is ours."""
    membership.thread.call(lambda shell: shell.train_expert())
    while True:
        item = membership.thread.inbox.get()
        if isinstance(item, UserError):
            raise item
        if isinstance(item, do.Moved):
            (expert,) = item.groups
            why = f": {cleaned(membership.why)}" if membership.why else ""
            serving = Serving(expert, expert, cleaned(membership.why))
            count = membership.config.experts.count
            events.tell(serving, f"trains expert {expert} of {count}{why}")
            return expert


def _train(peer: _Peer | StagedPeer, events: Telling) -> Left:
    reason, save = "failed", False
    is_held: bool | None = True
    with _signals(peer.request_stop, events):
        try:
            peer.start()
            wishes = peer.membership.thread.wishes
            while not (peer.should_stop or wishes.leaves):
                if wishes.finishes:
                    peer.request_stop()
                peer.step()
            reason, save = "run finished" if peer.is_finished else "asked to stop", True
        except Interrupted:
            reason = "asked to stop at once"
            raise
        finally:
            waits = partial(events.say, HANDING_OVER.format(round=peer.op))
            is_held = peer.leave(reason, save=save, waits=waits)
    bytes_up, bytes_down = peer.membership.thread.shell.bytes_moved
    reached = peer.op
    where = f"after round {reached}" if reached >= 0 else "before it had the run's state"
    roots = peer.roots if isinstance(peer, StagedPeer) else {}
    left = Left(max(0, reached), peer.root.hex(), bytes_up, bytes_down, peer.result, roots)
    words = unheld(is_held, reached)
    text = f"left {where}. {words}" if words else f"left cleanly {where}"
    events.tell(left, f"the run is finished: {peer.result}" if peer.result else text)
    return left


@contextmanager
def _signals(request_stop: Callable[[], None], events: Telling) -> Iterator[None]:
    """Once: finish the round. Twice: at once, unless it is the terminal that has gone."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a program's own thread hears no signals
        return
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            request_stop()
            ending.let_go_of_dead_streams()
            events.say("Finishing this round; Ctrl+C again to leave at once.")
        elif ending.insists(number):
            raise Interrupted(128 + number)

    old = {number: signal.signal(number, stop) for number in ending.asking()}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _freeze(told: Frozen, emit: Emit) -> None:
    """Rehearse a death: say so, then stop like a machine that lost its power."""
    emit(told)
    os.kill(os.getpid(), signal.SIGSTOP)


def _check_built_in(config: RunConfig) -> None:
    """The command trains built-in models, nothing else."""
    if config.model.kind == "custom":
        raise UserError(
            "SWT-E607",
            f"The run {config.run.name} trains a model that its peers bring themselves.",
            "`swarmtrain join` only knows the built-in models.",
            "Ask whoever invited you for the run's training script, and start that one with the\n"
            "invite in SWARMTRAIN_INVITE.",
        )


def step_by_tokens(config: RunConfig, driver: Driver) -> int:
    """The schedule's step of the next inner step, by what the whole swarm has trained on. Before
    the first result is seen the swarm is taken to be the one that the schedule is written for."""
    tokens, steps = config.model.context, driver.round_steps
    round_tokens = driver.round_samples * tokens or steps * config.tokens_per_step
    ahead = tokens_since_commit(driver.steps, inner_steps=steps, round_tokens=round_tokens)
    total = driver.samples_so_far * tokens + ahead
    return schedule_step(total, tokens_per_step=config.tokens_per_step)
